"""Custom consumers: no cursor moves past an event without a final verdict."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import seriatim
from seriatim import EventNotSettled, InvalidArgument, NewEvent, RegistrySettings, RetryPolicy
from seriatim.core.handler import Delivery
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry
from tests.integration.delivery.support import QUICK, claim, make_event, make_handler, statuses_of

LONG = RetryPolicy(attempts=3, base_s=3600, cap_s=3600)
TRACE = ("trace", "t-1")


@pytest.fixture
def log() -> Iterator[seriatim.Log]:
    """A log that feeds consumers."""
    with seriatim.open("memory:") as opened:
        yield opened


@pytest.fixture
def log_registry(registry_at: str, log: seriatim.Log) -> Iterator[Registry]:
    """A registry of that log's events."""
    opened = open_registry(registry_at, log=log)
    yield opened
    opened.close()


def paid(log: seriatim.Log, *numbers: int, stream: str = "o-1") -> None:
    """Append one event for each number, as one append."""
    log.append(
        [NewEvent("order.paid", {"n": number}, stream=("order", stream)) for number in numbers]
    )


class Effects:
    """Counts effects by their number, and fails a given number of times."""

    def __init__(self, **failures: int) -> None:
        self.seen: list[int] = []
        self.failures = {int(name[1:]): times for name, times in failures.items()}

    def run(self, record: Any, _context: Any) -> None:
        """Have the effect of a record."""
        number = record.payload["n"]
        if self.failures.get(number, 0):
            self.failures[number] -= 1
            raise ConnectionError("the mail server is away")
        self.seen.append(number)


def test_a_transient_error_loses_nothing(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: a subscription whose handler fails once redelivers until it succeeds."""
    effects = Effects(n2=2)
    mailer = make_handler(retry=RetryPolicy(attempts=5, base_s=0.3, cap_s=0.3), run=effects.run)
    for number in (1, 2, 3):
        paid(log, number)
    subscription = log.subscribe("mailer", idle_timeout=0, backoff_s=0.01, backoff_cap_s=0.05)

    subscription.run(lambda batch: log_registry.handle(mailer, batch))

    assert effects.seen == [1, 2, 3]
    assert subscription.position == 3
    assert set(statuses_of(log_registry).values()) == {"done"}


def test_the_cursor_stays_while_an_event_backs_off(
    log_registry: Registry, log: seriatim.Log
) -> None:
    """G10: `waiting` is no verdict to move on with, at the first delivery and at the next ones."""
    effects = Effects(n1=1)
    mailer = make_handler(retry=LONG, run=effects.run)
    paid(log, 1)
    records = list(log.read())

    with pytest.raises(EventNotSettled) as first:
        log_registry.handle(mailer, records)
    with pytest.raises(EventNotSettled) as second:
        log_registry.handle(mailer, records)

    assert isinstance(first.value.__cause__, ConnectionError)
    assert first.value.retryable
    assert second.value.details["verdict"] == "waiting"
    assert statuses_of(log_registry) == {records[0].event_id: "failed"}
    assert [entry.attempts for entry in log_registry.entries(EntryFilter())] == [1]


def test_one_batch_with_one_failure(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: the other events of the batch are done once, and not again with the next delivery."""
    effects = Effects(n2=1)
    mailer = make_handler(retry=QUICK, run=effects.run)
    log.append(
        [NewEvent("order.paid", {"n": one}, stream=("order", f"o-{one}")) for one in (1, 2, 3)]
    )
    records = list(log.read())

    with pytest.raises(EventNotSettled):
        log_registry.handle(mailer, records)
    counts = log_registry.handle(mailer, records, wait_s=30)

    assert sorted(effects.seen) == [1, 2, 3]
    assert (counts.done, counts.duplicate, counts.kept) == (1, 2, 0)


def test_waiting_in_the_call(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: with `wait_s` the call returns after the backoff and the effect."""
    effects = Effects(n1=2)
    mailer = make_handler(retry=QUICK, run=effects.run)
    paid(log, 1, 2)

    counts = log_registry.handle(mailer, list(log.read()), wait_s=30)

    assert effects.seen == [1, 2]
    assert (counts.done, counts.kept) == (2, 0)


def test_a_dead_letter_is_final_and_its_stream_is_not(
    log_registry: Registry, log: seriatim.Log
) -> None:
    """G10: after its attempts an event is final; with `park` the next of its stream is not."""
    effects = Effects(n1=99)
    mailer = make_handler(retry=QUICK, run=effects.run)
    paid(log, 1)
    paid(log, 2)
    first, second = log.read()

    counts = log_registry.handle(mailer, first, wait_s=30)
    with pytest.raises(EventNotSettled) as raised:
        log_registry.handle(mailer, second)

    assert counts.dead == 1
    assert log_registry.handle(mailer, first).kept == 0
    assert raised.value.details["verdict"] == "blocked"

    effects.failures.clear()
    log_registry.retry(EntryFilter(event_id=first.event_id))
    log_registry.handle(mailer, second, wait_s=30)

    assert effects.seen == [1, 2]


def test_a_retried_dead_letter_without_a_delivery(
    log_registry: Registry, log: seriatim.Log
) -> None:
    """G5: what an operator retries is handled by the next call, also one without events."""
    effects = Effects(n1=99)
    mailer = make_handler(retry=QUICK, run=effects.run)
    paid(log, 1)
    log_registry.handle(mailer, list(log.read()), wait_s=30)
    effects.failures.clear()
    log_registry.retry(EntryFilter(status="dead"))

    log_registry.handle(mailer, [])

    assert effects.seen == [1]


def test_skipped_poison(log_registry: Registry, log: seriatim.Log) -> None:
    """G5: with `on_poison="skip"` the consumer continues."""
    effects = Effects(n1=99)
    mailer = make_handler(retry=QUICK, run=effects.run, on_poison="skip")
    paid(log, 1, 2, 3)

    log_registry.handle(mailer, list(log.read()), wait_s=30)

    assert effects.seen == [2, 3]


def test_event_in_progress_elsewhere(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: `in_progress` raises at once, or is waited for as long as the caller says."""
    mailer = make_handler(retry=QUICK)
    paid(log, 1)
    records = list(log.read())
    mine = log_registry.deliveries(records)
    claims = claim(log_registry, mailer, *mine)

    with pytest.raises(EventNotSettled) as raised:
        log_registry.handle(mailer, records)
    assert raised.value.details["verdict"] == "in_progress"

    other = log_registry.clone()
    timer = threading.Timer(0.2, lambda: other.mark_done(mailer, claims))
    timer.start()
    counts = log_registry.handle(mailer, records, wait_s=60)
    timer.join()
    other.close()

    assert counts.duplicate == 1


def test_a_blocked_event(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: in strict mode an event before which one is missing is not final."""
    effects = Effects()
    mailer = make_handler(run=effects.run)
    paid(log, 1)
    paid(log, 2)
    first, second = log.read()

    with pytest.raises(EventNotSettled) as raised:
        log_registry.handle(mailer, second)
    log_registry.handle(mailer, first)
    log_registry.handle(mailer, second)

    assert raised.value.details["verdict"] == "blocked"
    assert effects.seen == [1, 2]


def test_filtered_events_are_skipped(log_registry: Registry, log: seriatim.Log) -> None:
    """G4: events of a batch that the handler filters out block nothing."""
    effects = Effects()
    mailer = make_handler(run=effects.run, events=["order.paid"])
    log.append([NewEvent("order.placed", stream=("order", "o-1"))])
    paid(log, 1)
    placed, record = log.read()

    assert log_registry.handle(mailer, placed).passed == 1
    assert log_registry.handle(mailer, record).done == 1
    assert effects.seen == [1]


def test_a_handler_that_starts_in_mid_log(log_registry: Registry, log: seriatim.Log) -> None:
    """G4: numbers before the handler's start are looked up in the log and block nothing."""
    effects = Effects()
    paid(log, 1)
    paid(log, 2)
    late = make_handler(run=effects.run, start=1)
    records = list(log.read(after=1))

    log_registry.handle(late, records)

    assert effects.seen == [2]


def test_a_stream_that_begins_with_zero(log_registry: Registry, log: seriatim.Log) -> None:
    """G4: the first event of a stream numbered from 0 is no stale one."""
    log.declare(seriatim.StreamKind(name="ticket", first_seq=0))
    log.append([NewEvent("opened", {"n": 0}, stream=("ticket", "t-1"))])
    effects = Effects()

    counts = log_registry.handle(make_handler(run=effects.run), list(log.read()))

    assert (counts.done, counts.stale) == (1, 0)


def test_claim_block_raises_for_undecided_events(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: `with registry.claim` raises without a claim or final verdict, unless requested."""
    mailer = make_handler(retry=LONG)
    paid(log, 1)
    paid(log, 2)
    first, second = log.read()

    def consume(record: Any) -> str:
        with log_registry.claim(mailer, record) as held:
            if held:
                raise ConnectionError("the mail server is away")
            return str(held.verdict)

    with pytest.raises(ConnectionError):
        consume(first)
    for record, verdict in ((first, "waiting"), (second, "blocked")):
        with pytest.raises(EventNotSettled) as raised:
            consume(record)
        assert raised.value.details["verdict"] == verdict
        with log_registry.claim(mailer, record, unsettled="return") as held:
            assert held.verdict == verdict
    log_registry.skip(EntryFilter(event_id=first.event_id), "given up")
    assert consume(first) == "duplicate_done"


def test_an_interrupted_block_frees_its_claim(log_registry: Registry) -> None:
    """G2: an interrupted block releases its claim, unless the effect is unsafe."""

    def interrupt(effect: str, name: str) -> str:
        by = make_handler(name, effect=effect)
        with pytest.raises(KeyboardInterrupt), log_registry.claim(by, make_event(1)):
            raise KeyboardInterrupt
        return statuses_of(log_registry, handler=name)[make_event(1).event_id]

    assert interrupt("keyed", "one") == "blocked"
    assert interrupt("unsafe", "two") == "claimed"


def test_async_handle_has_the_same_results(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: the awaited call returns or raises in the same cases, on the caller's event loop."""
    loops: set[Any] = set()
    effects = Effects(n2=1)

    async def run(record: Any, context: Any) -> None:
        loops.add(asyncio.get_running_loop())
        effects.run(record, context)

    mailer = make_handler(retry=QUICK, run=run)
    paid(log, 1, 2)
    records = list(log.read())

    async def consume() -> None:
        with pytest.raises(EventNotSettled):
            await log_registry.aio.handle(mailer, records)
        await log_registry.aio.handle(mailer, records, wait_s=30)
        assert loops == {asyncio.get_running_loop()}

    asyncio.run(consume())

    assert effects.seen == [1, 2]


def test_a_cancelled_call(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: a cancelled call cancels its effect, costs no attempt and leaves no claim."""
    begun = threading.Event()

    async def run(_record: Any, _context: Any) -> None:
        begun.set()
        await asyncio.sleep(3600)

    paid(log, 1)
    records = list(log.read())

    async def consume() -> None:
        task = asyncio.create_task(log_registry.aio.handle(make_handler(run=run), records))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(consume())

    [entry] = log_registry.entries(EntryFilter())
    assert (entry.status, entry.attempts) == ("blocked", 0)


def test_a_transactional_handler_awaited(log_registry: Registry, log: seriatim.Log) -> None:
    """G7: a transactional effect runs in the thread that holds the transaction."""
    at = log_registry.engine.schema_prefix
    with log_registry.engine.transaction() as session:
        session.run(f"create table {at}effects (n integer)")

    def run(record: Any, context: Any) -> None:
        context.connection.execute(f"insert into {at}effects values ({record.payload['n']})")

    paid(log, 1)

    asyncio.run(
        log_registry.aio.handle(make_handler(effect="transactional", run=run), list(log.read()))
    )

    with log_registry.engine.transaction(write=False) as session:
        assert session.run(f"select n from {at}effects") == [(1,)]


def test_arguments_of_handle(log_registry: Registry, registry: Registry, log: seriatim.Log) -> None:
    """L3: invalid arguments are refused before anything is claimed."""
    paid(log, 1)
    mailer = make_handler()

    with pytest.raises(InvalidArgument, match="wait_s"):
        log_registry.handle(mailer, [], wait_s=-1)
    with pytest.raises(InvalidArgument, match="records or deliveries"):
        log_registry.handle(mailer, [{"n": 1}])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="holds no event"):
        log_registry.handle(mailer, Delivery(event_id="e-1"))
    with pytest.raises(InvalidArgument, match="of which log"):
        registry.handle(mailer, list(log.read()))
    with pytest.raises(InvalidArgument, match="of which log"):
        registry.claim(mailer, next(iter(log.read())))
    assert statuses_of(log_registry) == {}


def test_without_a_registry(registry_at: str, log: seriatim.Log) -> None:
    """G6: switched off, every delivery has its effect, and a failure is raised."""
    off = open_registry(registry_at, RegistrySettings(enabled=False), log=log)
    effects = Effects(n2=1)
    mailer = make_handler(run=effects.run)
    paid(log, 1, 2)

    off.handle(mailer, list(log.read(limit=1)))
    with pytest.raises(EventNotSettled):
        off.handle(mailer, list(log.read(after=1)))
    off.handle(mailer, list(log.read()))

    assert effects.seen == [1, 1, 2]


def test_two_consumers_of_one_batch(registry_at: str, log: seriatim.Log) -> None:
    """G10: two consumers of the same events cause each effect once."""
    effects = Effects()
    mailer = make_handler(run=effects.run)
    for number in range(30):
        paid(log, number, stream=f"o-{number % 3}")
    records = list(log.read())

    def consume() -> None:
        own = open_registry(registry_at, log=log)
        for record in records:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                try:
                    own.handle(mailer, record)
                except EventNotSettled:
                    continue
                break
        own.close()

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(effects.seen) == list(range(30))
