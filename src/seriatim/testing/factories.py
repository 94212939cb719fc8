"""Factories for events, test doubles of stores, and helpers of the contract suite.

They are public: tests of your own store and application can use them, too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, Unpack

from msgspec import UNSET

from seriatim.config import Settings
from seriatim.core.errors import SeriatimError
from seriatim.core.event import EventRecord, NewEvent, StreamRef
from seriatim.core.request import AppendRequest
from seriatim.factory import Log
from seriatim.log.catalogue import EventFields
from seriatim.store.port import Lease, Outcome, Store

T = TypeVar("T")

WAIT_TIMEOUT_S = 20.0
"""How long a test waits for an expected event; only a failing test waits that long."""

OCCURRED_AT = "2024-05-01T10:00:00Z"

TRACE_PAYLOADS: Mapping[str, Mapping[str, Any]] = {
    "TraceStarted": {
        "workflow": "deal_desk",
        "title": "A discount",
        "primary_entity": {"entity_type": "deal", "entity_id": "d-1"},
    },
    "InputObserved": {
        "input_id": "i-1",
        "source": {"system": "crm", "object_type": "deal", "object_id": "d-1"},
        "facts": [{"key": "amount", "value": {"type": "int", "value": "900"}}],
    },
    "EntityObserved": {
        "entity": {"entity_type": "account", "entity_id": "a-1"},
        "role": "related",
        "facts": [],
    },
    "PolicyEvaluated": {
        "policy": {"policy_id": "discounts", "policy_version": "3"},
        "inputs": [],
        "decision": "require_exception",
    },
    "ExceptionRequested": {
        "exception_id": "x-1",
        "policy": {"policy_id": "discounts", "policy_version": "3"},
        "reason": "a long-standing customer",
    },
    "ApprovalRecorded": {
        "approval_id": "ap-1",
        "subject": {"subject_type": "exception", "subject_id": "x-1"},
        "approver": {"actor_type": "person", "actor_id": "p-1"},
        "decision": "approved",
    },
    "PrecedentCited": {"cited_trace_id": "t-0", "reason": "the same customer"},
    "ActionProposed": {
        "action_id": "ac-1",
        "action_type": "update",
        "target_entity": {"entity_type": "deal", "entity_id": "d-1"},
        "target_system": "crm",
        "changes": [{"path": "discount", "old_value": None, "new_value": "10"}],
    },
    "ActionCommitted": {"action_id": "ac-1", "status": "success"},
    "TraceFinished": {"outcome": "success"},
}
"""A valid payload for each of the ten trace types."""


class EventOptions(EventFields, total=False):
    """The fields of an event without its type."""

    payload: Any
    event_version: int


def event(
    event_type: Any = "thing.happened", *, n: object = UNSET, **fields: Unpack[EventOptions]
) -> NewEvent:
    """Return an event of any type.

    Args:
        event_type: The type.
        n: A number: `n=5` is short for the payload `{"n": 5}`.
        fields: Fields of `NewEvent`.

    Example:
        log.append([event("order.placed", stream=("order", "o-1"), n=5)])

    """
    if n is not UNSET:
        fields["payload"] = {"n": n}
    return NewEvent(event_type, **fields)


def events(
    count: int, event_type: str = "thing.happened", **fields: Unpack[EventFields]
) -> list[NewEvent]:
    """Return events that are numbered in their payload from 0.

    Args:
        count: The number of events.
        event_type: Their type.
        fields: Further fields of `NewEvent`, the same for all.

    Example:
        assert log.append(events(3)).count == 3

    """
    return [event(event_type, n=number, **fields) for number in range(count)]


def trace_event(
    event_type: str, trace_id: str, stream_seq: int, /, **fields: Unpack[EventOptions]
) -> NewEvent:
    """Return a valid event of a trace.

    Args:
        event_type: One of the types in `TRACE_PAYLOADS`.
        trace_id: The id of the trace.
        stream_seq: The number of the event in the trace, from 0.
        fields: Fields of `NewEvent` that replace the defaults.

    """
    defaults: EventOptions = {
        "payload": dict(TRACE_PAYLOADS.get(event_type, {})),
        "stream": ("trace", trace_id),
        "stream_seq": stream_seq,
        "event_id": f"{trace_id}-{stream_seq}",
        "occurred_at": OCCURRED_AT,
        "producer_id": "producer-1",
        "source_system": "crm",
        "actor_type": "agent",
        "actor_id": "agent-1",
        "idempotency_key": f"{trace_id}/{stream_seq}",
    }
    defaults.update(fields)
    return NewEvent(event_type, **defaults)


def trace(trace_id: str = "t-1", *, finished: bool = True) -> list[NewEvent]:
    """Return the events of a trace, one of each type; without the last one if not `finished`."""
    types = [name for name in TRACE_PAYLOADS if finished or name != "TraceFinished"]
    return [trace_event(name, trace_id, number) for number, name in enumerate(types)]


def positions(records: Sequence[EventRecord]) -> list[int]:
    """Return the positions of records."""
    return [record.position for record in records]


def stream_seqs(log: Log, stream: StreamRef) -> list[int | None]:
    """Return the sequence numbers of a stream's events in reading order."""
    return [record.stream_seq for record in log.read_stream(stream)]


@contextmanager
def assert_unchanged(log: Log) -> Iterator[None]:
    """Check that the body of the `with` block does not change the log."""
    before = log.head(), list(log.read())
    yield
    after = log.head(), list(log.read())
    if before != after:
        msg = f"the log changed: its head went from {before[0]} to {after[0]}"
        raise AssertionError(msg)


@contextmanager
def assert_refused(log: Log, code: str, **details: object) -> Iterator[list[SeriatimError]]:
    """Check that the body of the `with` block is refused and leaves the log unchanged.

    Args:
        log: The log that must not change.
        code: The expected error code.
        details: The expected details; others are ignored.

    Yields:
        A list that contains the error after the block.

    Raises:
        AssertionError: If the body succeeds or fails differently.

    """
    caught: list[SeriatimError] = []
    with assert_unchanged(log):
        try:
            yield caught
        except SeriatimError as error:
            caught.append(error)
    if not caught:
        msg = f"expected the error {code}, but the operation succeeded"
        raise AssertionError(msg)
    raised = caught[0].as_dict()
    actual = {name: raised["details"].get(name) for name in details}
    if (raised["code"], actual) != (code, details):
        msg = f"expected the error {code} with {details}, got {raised}"
        raise AssertionError(msg)


def assert_all_refused(
    log: Log, operation: Callable[[Any], object], cases: Mapping[str, tuple[Any, ...]]
) -> None:
    """Check that an operation refuses every case and leaves the log unchanged.

    Args:
        log: The log that must not change.
        operation: The function to call with the argument of each case.
        cases: By name, the argument, the expected error code, and the field that the details must
            name as `field`, `argument`, `where`, `limit` or `path`; None checks no field.

    Raises:
        AssertionError: If a case succeeds or fails differently; it lists all such cases.

    """
    wrong: list[str] = []
    with assert_unchanged(log):
        for name, (argument, code, field) in cases.items():
            try:
                operation(argument)
            except SeriatimError as error:
                named = [error.details.get(key) for key in _FIELD_KEYS]
                if error.code != code or (field is not None and field not in named):
                    wrong.append(f"{name}: {error.as_dict()}, not {code} at {field}")
            except Exception as error:  # noqa: BLE001 - only typed errors may reach a caller
                wrong.append(f"{name}: {error!r}, not {code} at {field}")
            else:
                wrong.append(f"{name}: accepted, not {code} at {field}")
    if wrong:
        raise AssertionError("\n".join(wrong))


_FIELD_KEYS = ("field", "argument", "where", "limit", "path")


def wait_for(probe: Callable[[], T | None]) -> T:
    """Call `probe` until its result is truthy, and return it.

    Args:
        probe: A function that is called every few milliseconds.

    Raises:
        AssertionError: If that takes longer than `WAIT_TIMEOUT_S`.

    Example:
        wait_for(lambda: log.head() == 3)

    """
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    pause = threading.Event()
    while time.monotonic() < deadline:
        if result := probe():
            return result
        pause.wait(0.005)
    msg = f"the condition did not become true within {WAIT_TIMEOUT_S} s"
    raise AssertionError(msg)


def count_queued(log: Log) -> int:
    """Return the number of appends of a log that wait in the queues of its threads."""
    return log.appender.submission.threads.queued


class BatchCollector:
    """A subscription handler that queues its batches, for a test to wait for."""

    def __init__(self) -> None:
        self._batches: queue.Queue[list[EventRecord]] = queue.Queue()

    def __call__(self, batch: list[EventRecord]) -> None:
        """Queue a batch."""
        self._batches.put(batch)

    def next(self) -> list[EventRecord]:
        """Wait for the next batch."""
        return self._batches.get(timeout=WAIT_TIMEOUT_S)

    def records(self, count: int) -> list[EventRecord]:
        """Wait until at least `count` records have arrived, and return them."""
        records: list[EventRecord] = []
        while len(records) < count:
            records.extend(self.next())
        return records

    @property
    def empty(self) -> bool:
        """Whether no batch is queued."""
        return self._batches.empty()


class SharedStore:
    """A wrapper around the store of another log, which stays open when this one is closed.

    Subclasses override single methods to inject faults.
    """

    def __init__(self, store: Store) -> None:
        self.wrapped = store

    def __getattr__(self, name: str) -> Any:
        """Delegate every other attribute to the wrapped store."""
        return getattr(self.wrapped, name)

    def can_commit_now(self, request: AppendRequest) -> bool:
        """Decline, so that every append goes through `append`, which subclasses override."""
        del request
        return False

    def commit_now(self, group: Sequence[AppendRequest], timeout: float) -> None:
        """Decline a single append, too."""

    def can_begin_append(self, request: AppendRequest) -> bool:
        """Decline the fast path, so that every append goes through `append`."""
        del request
        return False

    def after_fork(self) -> None:
        """Do nothing: the log that owns the store handles forks."""

    def close(self) -> None:
        """Do nothing: the owner closes the store."""


class GatedStore(SharedStore):
    """A store whose commits block until a test opens the gate, to inspect the queue meanwhile."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.gate = threading.Event()
        self.arrived = threading.Semaphore(0)
        self.groups: list[int] = []

    def append(self, group: Sequence[AppendRequest]) -> list[Outcome]:
        """Signal that a group has arrived, wait for the gate, then commit."""
        self.groups.append(len(group))
        self.arrived.release()
        if not self.gate.wait(WAIT_TIMEOUT_S):
            msg = "the gate was not opened in time"
            raise AssertionError(msg)
        return self.wrapped.append(group)

    def wait_for_group(self) -> None:
        """Wait until a group has arrived at the gate."""
        if not self.arrived.acquire(timeout=WAIT_TIMEOUT_S):
            msg = "no group arrived at the gate"
            raise AssertionError(msg)


class NoWakeupStore(SharedStore):
    """A store that receives no wake-ups, so that readers depend on polling."""

    def wait(self, position: int, timeout: float) -> None:
        """Sleep for the whole timeout, whatever is appended meanwhile."""
        del position
        threading.Event().wait(timeout)


class NoRenewalStore(SharedStore):
    """A store that silently renews no lease, as if its owner had been suspended."""

    def renew_lease(self, lease: Lease, seconds: float) -> bool:
        """Report success without renewing the lease."""
        del lease, seconds
        return True


@contextmanager
def open_on_same_store(
    log: Log, store: Any = None, *, settings: Settings | None = None
) -> Iterator[Log]:
    """Open a second log on the store of `log`, with other settings.

    Args:
        log: The log that owns the store.
        store: A wrapper of its store to use instead.
        settings: The settings of the second log; by default those of a new log.

    """
    shared = SharedStore(log.store) if store is None else store
    with type(log)(shared, settings=settings, tenant_id=log.tenant_id) as other:
        yield other


def run_concurrently(operation: Callable[[int], T], count: int) -> list[T | SeriatimError]:
    """Call `operation` in `count` threads that start together.

    Args:
        operation: The function to call with the number of its thread.
        count: The number of threads.

    Returns:
        The result or the `SeriatimError` of each thread, by its number.

    """
    barrier = threading.Barrier(count)
    results: list[Any] = [None] * count

    def run(number: int) -> None:
        barrier.wait(WAIT_TIMEOUT_S)
        try:
            results[number] = operation(number)
        except SeriatimError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_TIMEOUT_S)
    return results
