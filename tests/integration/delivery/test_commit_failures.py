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
    """Tables of a user in the registry's database; event 3 breaks their rules."""

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
        """Write a bill and its order, of event 3 without the order."""
        context.connection.execute(f"insert into {self.at}bills (n) values ({given['n']})")
        if given["n"] != BAD:
            context.connection.execute(f"insert into {self.at}orders values ({given['n']})")

    @property
    def billed(self) -> list[int]:
        """The bills that were committed."""
        with self._registry.engine.transaction(write=False) as session:
            return sorted(row[0] for row in session.run(f"select n from {self.at}bills"))


@pytest.fixture
def ledger(registry: Registry) -> Ledger:
    """The user's tables."""
    return Ledger(registry)


def apart(number: int) -> Delivery:
    """Make an event of a stream of its own."""
    return make_event(1, stream=("order", f"o-{number}"), event={"n": number}, position=number)


def within(seconds: float, act: Any) -> Any:
    """Run in a thread; fail if it runs for ever."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(act())
        except BaseException as error:  # noqa: BLE001 - shown to the test
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it does not end"
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]


def handled(registry: Registry, by: Handler, events: list[Delivery]) -> Any:
    """Let a loop handle events in one chunk."""
    registry.declare(by)
    return within(60, lambda: HandlerLoop(registry, by).handle(events))


def test_a_deferred_constraint_fails_its_event_alone(registry: Registry, ledger: Ledger) -> None:
    """G10: a foreign key checked at COMMIT fails one event; the others of its chunk are done."""
    billing = make_handler("billing", effect="transactional", run=ledger.bill, retry=QUICK)

    counts = handled(registry, billing, [apart(number) for number in range(1, 7)])

    assert (counts.done, counts.failed) == (5, 1)
    assert ledger.billed == [1, 2, 4, 5, 6]
    [entry] = registry.entries(EntryFilter(status="failed"))
    assert (entry.event_id, entry.attempts) == (apart(BAD).event_id, 1)
    assert "oreign" in entry.error.replace("FOREIGN", "Foreign")


def test_a_stream_stops_at_the_event_that_fails(registry: Registry, ledger: Ledger) -> None:
    """G10: in strict mode later events of the stream wait, with no claim left to a lease."""
    billing = make_handler("billing", effect="transactional", run=ledger.bill, retry=QUICK)

    counts = handled(registry, billing, [make_event(number) for number in range(1, 6)])

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
    handled(registry, billing, [apart(number) for number in range(1, 7)])
    loop = HandlerLoop(registry, billing)

    def drain() -> None:
        while "failed" in statuses_of(registry).values():
            loop.handle(registry.due(billing))

    within(60, drain)

    [entry] = registry.entries(EntryFilter(status="dead"))
    assert (entry.event_id, entry.attempts) == (apart(BAD).event_id, QUICK.attempts)


def test_an_async_handler_that_fails_at_commit(registry: Registry, ledger: Ledger) -> None:
    """G10: the same for a handler that is awaited."""

    async def bill(given: Any, context: HandlerContext) -> None:
        ledger.bill(given, context)

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    counts = handled(registry, billing, [apart(number) for number in range(1, 7)])

    assert (counts.done, counts.failed) == (5, 1)
    assert ledger.billed == [1, 2, 4, 5, 6]


def test_a_swallowed_violation(registry: Registry, ledger: Ledger) -> None:
    """G10: an error that the handler ignores aborts its transaction only where the database does.

    On SQLite the statement alone is undone; on Postgres nothing can be committed any more.
    """

    def bill(given: Any, context: HandlerContext) -> None:
        with suppress(Exception):  # the mistake under test
            ledger.bill({"n": 1 if given["n"] == BAD else given["n"]}, context)

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    counts = handled(registry, billing, [apart(number) for number in range(1, 7)])

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
    """G10: an effect that ends the registry's transaction itself is never marked done."""

    def bill(given: Any, context: HandlerContext) -> None:
        ledger.bill(given, context)
        if given["n"] == BAD - 1:
            context.connection.execute(ending)

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    handled(registry, billing, [apart(BAD - 1)])

    [entry] = registry.entries(EntryFilter(status="failed"))
    assert "committed or rolled back" in entry.error


def test_the_block_of_a_claim(registry: Registry, ledger: Ledger) -> None:
    """G10: in `with registry.claim` the database's error is raised, and the event has failed."""
    billing = make_handler("billing", effect="transactional", retry=QUICK)
    registry.declare(billing)

    def block() -> None:
        with registry.claim(billing, apart(BAD)) as claim:
            ledger.bill({"n": BAD}, claim.context)  # type: ignore[arg-type]

    with pytest.raises(Exception, match=r"(?i)foreign key") as raised:
        within(60, block)

    assert not isinstance(raised.value, BackendFailure)
    assert statuses_of(registry) == {apart(BAD).event_id: "failed"}
    assert ledger.billed == []


def test_an_error_of_the_loop_leaves_no_claims(registry: Registry) -> None:
    """G10: when a loop ends by an error that is no event's, its claims are free at once."""
    mailer = make_handler("mailer", effect="keyed", retry=QUICK, on_poison="stop")
    registry.declare(mailer)

    class Interrupted(BaseException):
        """Not an error of the handler: a signal, say."""

    def run(given: Any, _context: HandlerContext) -> None:
        if given["n"] == BAD:
            raise Interrupted

    loop = HandlerLoop(
        registry, make_handler("mailer", effect="keyed", retry=QUICK, on_poison="stop", run=run)
    )
    with pytest.raises(Interrupted):
        loop.handle([apart(number) for number in range(1, 7)])

    assert "claimed" not in statuses_of(registry).values()
    assert sum(one == "done" for one in statuses_of(registry).values()) == 2


def test_an_outage_costs_no_attempt(registry: Registry, ledger: Ledger) -> None:
    """G10: a lost connection, or a full disk, in the middle of an effect is tried again."""
    begun: list[int] = []

    def bill(given: Any, context: HandlerContext) -> None:
        begun.append(given["n"])
        if len(begun) == 1:
            _fail_the_database(registry, context.connection)
        ledger.bill(given, context)

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    counts = handled(registry, billing, [apart(1), apart(2)])

    assert (counts.done, counts.failed) == (2, 0)
    assert begun == [1, 1, 2]
    assert ledger.billed == [1, 2]


def _fail_the_database(registry: Registry, connection: Any) -> None:
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
