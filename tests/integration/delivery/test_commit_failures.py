"""Effects that fail at commit: only their own event fails."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

from seriatim.core.errors import BackendFailure
from seriatim.core.handler import Delivery, Handler
from seriatim.delivery.claim_context import HandlerContext
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.handler_loop import HandlerLoop
from seriatim.delivery.registry import Registry
from tests.integration.delivery.support import QUICK, make_event, make_handler, statuses_of

BAD = 3
DEFERRED = "references {at}orders (n) deferrable initially deferred"


class Ledger:
    """Tables of a user in the registry's database; event 3 violates a constraint."""

    def __init__(self, registry: Registry) -> None:
        self.at = registry.engine.schema_prefix
        self._registry = registry
        if not self.at:
            with registry.engine._lock:  # type: ignore[attr-defined]
                registry.engine._connection.execute(  # type: ignore[attr-defined]
                    "pragma foreign_keys = on"
                )
        with registry.engine.transaction() as session:
            session.run(f"create table {self.at}orders (n integer primary key)")
            session.run(
                f"create table {self.at}bills (n integer {DEFERRED.format(at=self.at)}, way text)"
            )

    def bill(self, given: Any, context: HandlerContext) -> None:
        """Insert a bill and its order; event 3 inserts no order."""
        context.connection.execute(f"insert into {self.at}bills (n) values ({given['n']})")
        if given["n"] != BAD:
            context.connection.execute(f"insert into {self.at}orders values ({given['n']})")

    @property
    def billed(self) -> list[int]:
        """Return the numbers of the committed bills."""
        with self._registry.engine.transaction(write=False) as session:
            return sorted(row[0] for row in session.run(f"select n from {self.at}bills"))


@pytest.fixture
def ledger(registry: Registry) -> Ledger:
    """The tables of a user."""
    return Ledger(registry)


def event_of_own_stream(number: int) -> Delivery:
    """Make an event of a stream of its own."""
    return make_event(1, stream=("order", f"o-{number}"), event={"n": number}, position=number)


def run_within(seconds: float, act: Any) -> Any:
    """Run a function in a thread; fail if it exceeds the time."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(act())
        except BaseException as error:  # noqa: BLE001 - shown to the test
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it did not end in time"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def handle(registry: Registry, by: Handler, events: list[Delivery]) -> Any:
    """Let a loop handle events in one chunk."""
    registry.declare(by)
    return run_within(60, lambda: HandlerLoop(registry, by).handle(events))


def test_a_deferred_constraint_fails_its_event_alone(registry: Registry, ledger: Ledger) -> None:
    """G10: a foreign key violated at COMMIT fails one event; the others of its chunk are done."""
    billing = make_handler("billing", effect="transactional", run=ledger.bill, retry=QUICK)

    counts = handle(registry, billing, [event_of_own_stream(number) for number in range(1, 7)])

    assert (counts.done, counts.failed) == (5, 1)
    assert ledger.billed == [1, 2, 4, 5, 6]
    [entry] = registry.entries(EntryFilter(status="failed"))
    assert (entry.event_id, entry.attempts) == (event_of_own_stream(BAD).event_id, 1)
    assert "oreign" in entry.error.replace("FOREIGN", "Foreign")


def test_a_failed_event_blocks_its_stream(registry: Registry, ledger: Ledger) -> None:
    """G10: in strict mode later events of the stream are blocked, without a claim."""
    billing = make_handler("billing", effect="transactional", run=ledger.bill, retry=QUICK)

    counts = handle(registry, billing, [make_event(number) for number in range(1, 6)])

    assert (counts.done, counts.failed, counts.kept) == (2, 1, 2)
    assert sorted(statuses_of(registry).values()) == [
        "blocked",
        "blocked",
        "done",
        "done",
        "failed",
    ]


def test_repeated_commit_failure_becomes_a_dead_letter(registry: Registry, ledger: Ledger) -> None:
    """G5: an event that always fails at COMMIT is dead after its attempts."""
    billing = make_handler("billing", effect="transactional", run=ledger.bill, retry=QUICK)
    handle(registry, billing, [event_of_own_stream(number) for number in range(1, 7)])
    loop = HandlerLoop(registry, billing)

    def drain() -> None:
        while "failed" in statuses_of(registry).values():
            loop.handle(registry.due(billing))

    run_within(60, drain)

    [entry] = registry.entries(EntryFilter(status="dead"))
    assert (entry.event_id, entry.attempts) == (event_of_own_stream(BAD).event_id, QUICK.attempts)


def test_an_async_handler_that_fails_at_commit(registry: Registry, ledger: Ledger) -> None:
    """G10: an async handler that fails at COMMIT fails its event alone."""

    async def bill(given: Any, context: HandlerContext) -> None:
        ledger.bill(given, context)

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    counts = handle(registry, billing, [event_of_own_stream(number) for number in range(1, 7)])

    assert (counts.done, counts.failed) == (5, 1)
    assert ledger.billed == [1, 2, 4, 5, 6]


def test_a_suppressed_database_error(registry: Registry, ledger: Ledger) -> None:
    """G10: a suppressed error fails the event where the database aborts the transaction.

    SQLite undoes the statement alone; on Postgres the transaction cannot be committed any more.
    """

    def bill(given: Any, context: HandlerContext) -> None:
        with suppress(Exception):  # the error of a handler that is tested here
            ledger.bill({"n": 1 if given["n"] == BAD else given["n"]}, context)

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    counts = handle(registry, billing, [event_of_own_stream(number) for number in range(1, 7)])

    if ledger.at:
        assert (counts.done, counts.failed) == (5, 1)
        assert ledger.billed == [1, 2, 4, 5, 6]
        [entry] = registry.entries(EntryFilter(status="failed"))
        assert "savepoint" in entry.error
    else:
        assert counts.done == 6


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_handler_that_ends_the_transaction(
    registry: Registry, ledger: Ledger, ending: str
) -> None:
    """G10: an effect that commits or rolls back the registry's transaction is not marked done."""

    def bill(given: Any, context: HandlerContext) -> None:
        ledger.bill(given, context)
        if given["n"] == BAD - 1:
            context.connection.execute(ending)

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    handle(registry, billing, [event_of_own_stream(BAD - 1)])

    [entry] = registry.entries(EntryFilter(status="failed"))
    assert "committed or rolled back" in entry.error


def test_a_claim_block_raises_the_database_error(registry: Registry, ledger: Ledger) -> None:
    """G10: `with registry.claim` raises the database's error, and the event has failed."""
    billing = make_handler("billing", effect="transactional", retry=QUICK)
    registry.declare(billing)

    def block() -> None:
        with registry.claim(billing, event_of_own_stream(BAD)) as claim:
            ledger.bill({"n": BAD}, claim.context)  # type: ignore[arg-type]

    with pytest.raises(Exception, match=r"(?i)foreign key") as raised:
        run_within(60, block)

    assert not isinstance(raised.value, BackendFailure)
    assert statuses_of(registry) == {event_of_own_stream(BAD).event_id: "failed"}
    assert ledger.billed == []


def test_an_interrupted_loop_releases_its_claims(registry: Registry) -> None:
    """G10: a loop that ends by an interruption releases its claims."""
    mailer = make_handler("mailer", effect="keyed", retry=QUICK, on_poison="stop")
    registry.declare(mailer)

    class Interrupted(BaseException):
        """An interruption by a signal, which is no error of the handler."""

    def run(given: Any, _context: HandlerContext) -> None:
        if given["n"] == BAD:
            raise Interrupted

    loop = HandlerLoop(
        registry, make_handler("mailer", effect="keyed", retry=QUICK, on_poison="stop", run=run)
    )
    with pytest.raises(Interrupted):
        loop.handle([event_of_own_stream(number) for number in range(1, 7)])

    assert "claimed" not in statuses_of(registry).values()
    assert sum(one == "done" for one in statuses_of(registry).values()) == 2


def test_an_outage_counts_as_no_attempt(registry: Registry, ledger: Ledger) -> None:
    """G10: after a lost connection or a full disk in an effect the event is tried again."""
    begun: list[int] = []

    def bill(given: Any, context: HandlerContext) -> None:
        begun.append(given["n"])
        if len(begun) == 1:
            fail_database(registry, context.connection)
        ledger.bill(given, context)

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    counts = handle(registry, billing, [event_of_own_stream(1), event_of_own_stream(2)])

    assert (counts.done, counts.failed) == (2, 0)
    assert begun == [1, 1, 2]
    assert ledger.billed == [1, 2]


def fail_database(registry: Registry, connection: Any) -> None:
    """Fill the SQLite file, or end the Postgres session, of a connection."""
    if not registry.engine.schema_prefix:
        [(pages,)] = connection.execute("pragma page_count")
        connection.execute(f"pragma max_page_count = {pages}")
        try:
            connection.execute("insert into bills (way) values (zeroblob(1000000))")
        finally:
            connection.execute("pragma max_page_count = 1000000")
    other = registry.engine.open_another()
    with other.transaction() as session:
        session.run("select pg_terminate_backend(:pid)", {"pid": connection.info.backend_pid})
    other.close()
