"""`Registry.handle`: a consumer does not pass an event without a final verdict."""

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
    """A registry of the events of that log."""
    opened = open_registry(registry_at, log=log)
    yield opened
    opened.close()


def append_paid(log: seriatim.Log, *numbers: int, stream: str = "o-1") -> None:
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
        """Apply the effect of a record."""
        number = record.payload["n"]
        if self.failures.get(number, 0):
            self.failures[number] -= 1
            raise ConnectionError("the mail server is away")
        self.seen.append(number)


def test_a_transient_error_is_retried(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: a subscription whose handler fails twice repeats the batch until it succeeds."""
    effects = Effects(n2=2)
    mailer = make_handler(retry=RetryPolicy(attempts=5, base_s=0.3, cap_s=0.3), run=effects.run)
    for number in (1, 2, 3):
        append_paid(log, number)
    subscription = log.subscribe("mailer", idle_timeout=0, backoff_s=0.01, backoff_cap_s=0.05)

    subscription.run(lambda batch: log_registry.handle(mailer, batch))

    assert effects.seen == [1, 2, 3]
    assert subscription.position == 3
    assert set(statuses_of(log_registry).values()) == {"done"}


def test_an_event_that_backs_off_is_not_settled(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: an event that waits for a retry raises EventNotSettled at each delivery."""
    effects = Effects(n1=1)
    mailer = make_handler(retry=LONG, run=effects.run)
    append_paid(log, 1)
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


def test_a_failure_does_not_repeat_the_rest_of_its_batch(
    log_registry: Registry, log: seriatim.Log
) -> None:
    """G10: the other events of a batch with a failure are handled once."""
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


def test_handle_waits_for_a_retry(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: with `wait_s` the call returns after the backoff and the effect."""
    effects = Effects(n1=2)
    mailer = make_handler(retry=QUICK, run=effects.run)
    append_paid(log, 1, 2)

    counts = log_registry.handle(mailer, list(log.read()), wait_s=30)

    assert effects.seen == [1, 2]
    assert (counts.done, counts.kept) == (2, 0)


def test_a_dead_letter_is_final_and_its_stream_is_not(
    log_registry: Registry, log: seriatim.Log
) -> None:
    """G10: a dead letter is settled; with `park` the next event of its stream is not."""
    effects = Effects(n1=99)
    mailer = make_handler(retry=QUICK, run=effects.run)
    append_paid(log, 1)
    append_paid(log, 2)
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


def test_a_retried_dead_letter_is_handled_without_a_delivery(
    log_registry: Registry, log: seriatim.Log
) -> None:
    """G5: a retried dead letter is handled by the next call, also by one without events."""
    effects = Effects(n1=99)
    mailer = make_handler(retry=QUICK, run=effects.run)
    append_paid(log, 1)
    log_registry.handle(mailer, list(log.read()), wait_s=30)
    effects.failures.clear()
    log_registry.retry(EntryFilter(status="dead"))

    log_registry.handle(mailer, [])

    assert effects.seen == [1]


def test_poison_is_skipped(log_registry: Registry, log: seriatim.Log) -> None:
    """G5: with `on_poison="skip"` the consumer continues after a poison event."""
    effects = Effects(n1=99)
    mailer = make_handler(retry=QUICK, run=effects.run, on_poison="skip")
    append_paid(log, 1, 2, 3)

    log_registry.handle(mailer, list(log.read()), wait_s=30)

    assert effects.seen == [2, 3]


def test_event_in_progress_elsewhere(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: an event in progress elsewhere raises, or is waited for with `wait_s`."""
    mailer = make_handler(retry=QUICK)
    append_paid(log, 1)
    records = list(log.read())
    deliveries = log_registry.deliveries(records)
    claims = claim(log_registry, mailer, *deliveries)

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


def test_a_blocked_event_is_not_settled(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: in strict mode an event with a missing predecessor is not settled."""
    effects = Effects()
    mailer = make_handler(run=effects.run)
    append_paid(log, 1)
    append_paid(log, 2)
    first, second = log.read()

    with pytest.raises(EventNotSettled) as raised:
        log_registry.handle(mailer, second)
    log_registry.handle(mailer, first)
    log_registry.handle(mailer, second)

    assert raised.value.details["verdict"] == "blocked"
    assert effects.seen == [1, 2]


def test_filtered_events_are_skipped(log_registry: Registry, log: seriatim.Log) -> None:
    """G4: events that the handler filters out block no others."""
    effects = Effects()
    mailer = make_handler(run=effects.run, events=["order.paid"])
    log.append([NewEvent("order.placed", stream=("order", "o-1"))])
    append_paid(log, 1)
    placed, record = log.read()

    assert log_registry.handle(mailer, placed).passed == 1
    assert log_registry.handle(mailer, record).done == 1
    assert effects.seen == [1]


def test_a_handler_that_starts_in_mid_log(log_registry: Registry, log: seriatim.Log) -> None:
    """G4: numbers before the handler's start are looked up in the log and block nothing."""
    effects = Effects()
    append_paid(log, 1)
    append_paid(log, 2)
    late = make_handler(run=effects.run, start=1)
    records = list(log.read(after=1))

    log_registry.handle(late, records)

    assert effects.seen == [2]


def test_a_stream_that_starts_at_zero(log_registry: Registry, log: seriatim.Log) -> None:
    """G4: the first event of a stream numbered from 0 is done, not stale."""
    log.declare(seriatim.StreamKind(name="ticket", first_seq=0))
    log.append([NewEvent("opened", {"n": 0}, stream=("ticket", "t-1"))])
    effects = Effects()

    counts = log_registry.handle(make_handler(run=effects.run), list(log.read()))

    assert (counts.done, counts.stale) == (1, 0)


def test_claim_block_raises_for_unsettled_events(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: `with registry.claim` raises if a verdict is not final, unless it is to be returned."""
    mailer = make_handler(retry=LONG)
    append_paid(log, 1)
    append_paid(log, 2)
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


def test_an_interrupted_block_releases_its_claim(log_registry: Registry) -> None:
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
    append_paid(log, 1, 2)
    records = list(log.read())

    async def consume() -> None:
        with pytest.raises(EventNotSettled):
            await log_registry.aio.handle(mailer, records)
        await log_registry.aio.handle(mailer, records, wait_s=30)
        assert loops == {asyncio.get_running_loop()}

    asyncio.run(consume())

    assert effects.seen == [1, 2]


def test_a_cancelled_call_releases_its_claims(log_registry: Registry, log: seriatim.Log) -> None:
    """G10: a cancelled call cancels its effect, costs no attempt and leaves no claim."""
    begun = threading.Event()

    async def run(_record: Any, _context: Any) -> None:
        begun.set()
        await asyncio.sleep(3600)

    append_paid(log, 1)
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


def test_a_transactional_handler_in_asyncio(log_registry: Registry, log: seriatim.Log) -> None:
    """G7: a transactional effect runs in the thread that holds the transaction."""
    at = log_registry.engine.schema_prefix
    with log_registry.engine.transaction() as session:
        session.run(f"create table {at}effects (n integer)")

    def run(record: Any, context: Any) -> None:
        context.connection.execute(f"insert into {at}effects values ({record.payload['n']})")

    append_paid(log, 1)

    asyncio.run(
        log_registry.aio.handle(make_handler(effect="transactional", run=run), list(log.read()))
    )

    with log_registry.engine.transaction(write=False) as session:
        assert session.run(f"select n from {at}effects") == [(1,)]


def test_invalid_arguments_are_refused(
    log_registry: Registry, registry: Registry, log: seriatim.Log
) -> None:
    """L3: invalid arguments are refused before anything is claimed."""
    append_paid(log, 1)
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


def test_handle_with_a_disabled_registry(registry_at: str, log: seriatim.Log) -> None:
    """G6: with a disabled registry every delivery has its effect, and a failure is raised."""
    off = open_registry(registry_at, RegistrySettings(enabled=False), log=log)
    effects = Effects(n2=1)
    mailer = make_handler(run=effects.run)
    append_paid(log, 1, 2)

    off.handle(mailer, list(log.read(limit=1)))
    with pytest.raises(EventNotSettled):
        off.handle(mailer, list(log.read(after=1)))
    off.handle(mailer, list(log.read()))

    assert effects.seen == [1, 1, 2]


def test_two_consumers_of_one_batch(registry_at: str, log: seriatim.Log) -> None:
    """G10: two concurrent consumers of the same events cause each effect once."""
    effects = Effects()
    mailer = make_handler(run=effects.run)
    for number in range(30):
        append_paid(log, number, stream=f"o-{number % 3}")
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
