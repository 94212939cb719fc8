"""Events, stores and waits for tests: what the contract suite makes, for others to use too."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from seriatim.config import Settings
from seriatim.core.errors import SeriatimError
from seriatim.core.event import EventRecord, NewEvent, StreamRef
from seriatim.core.request import Request
from seriatim.opening import Log
from seriatim.store.port import Lease, Outcome, Store

T = TypeVar("T")

PATIENCE_S = 20.0
"""How long a test waits for what must happen; only a failing one waits that long."""

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


def event(event_type: Any = "thing.happened", **fields: Any) -> NewEvent:
    """Make a plain event; a payload of `{"n": …}` comes from `n=`."""
    if "n" in fields:
        fields["payload"] = {"n": fields.pop("n")}
    return NewEvent(event_type, **fields)


def events(count: int, event_type: str = "thing.happened", **fields: Any) -> list[NewEvent]:
    """Make so many events, numbered in their payload."""
    return [event(event_type, n=number, **fields) for number in range(count)]


def trace_event(event_type: str, trace_id: str, stream_seq: int, /, **fields: Any) -> NewEvent:
    """Make a valid event of a trace; fields given replace the made ones."""
    made: dict[str, Any] = {
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
    return NewEvent(event_type, **(made | fields))


def trace(trace_id: str = "t-1", *, finished: bool = True) -> list[NewEvent]:
    """Make a whole trace with one event of each type."""
    types = [name for name in TRACE_PAYLOADS if finished or name != "TraceFinished"]
    return [trace_event(name, trace_id, number) for number, name in enumerate(types)]


def positions(records: Sequence[EventRecord]) -> list[int]:
    """Return the positions of records, in the order given."""
    return [record.position for record in records]


def numbers(log: Log, stream: StreamRef) -> list[int | None]:
    """Return the numbers of a stream's events, in the order of reading."""
    return [record.stream_seq for record in log.read_stream(stream)]


@contextmanager
def unchanged(log: Log) -> Iterator[None]:
    """Check that what happens inside stores nothing: the same head, the same records."""
    before = log.head(), list(log.read())
    yield
    after = log.head(), list(log.read())
    if before != after:
        msg = f"the log changed: its head went from {before[0]} to {after[0]}"
        raise AssertionError(msg)


@contextmanager
def refused(log: Log, code: str, **details: Any) -> Iterator[list[SeriatimError]]:
    """Check that what happens inside is refused with this code and these details, and unstored.

    What is yielded holds the error afterwards.
    """
    caught: list[SeriatimError] = []
    with unchanged(log):
        try:
            yield caught
        except SeriatimError as error:
            caught.append(error)
    if not caught:
        msg = f"it was accepted, not refused as {code}"
        raise AssertionError(msg)
    shown = caught[0].as_dict()
    told = {name: shown["details"].get(name) for name in details}
    if (shown["code"], told) != (code, details):
        msg = f"refused as {shown}, not as {code} with {details}"
        raise AssertionError(msg)


def refuse_all(
    log: Log, act: Callable[[Any], object], cases: Mapping[str, tuple[Any, ...]]
) -> None:
    """Check many refusals in one log: each case is an argument, its code and the field it names.

    The field stands in the details as `field`, `argument`, `where`, `limit` or `path`.
    """
    wrong: list[str] = []
    with unchanged(log):
        for name, (argument, code, field) in cases.items():
            try:
                act(argument)
            except SeriatimError as error:
                told = [error.details.get(key) for key in _PLACES]
                if error.code != code or (field is not None and field not in told):
                    wrong.append(f"{name}: {error.as_dict()}, not {code} at {field}")
            except Exception as error:  # noqa: BLE001 - exactly what must not reach a caller
                wrong.append(f"{name}: {error!r}, not {code} at {field}")
            else:
                wrong.append(f"{name}: accepted, not {code} at {field}")
    if wrong:
        raise AssertionError("\n".join(wrong))


_PLACES = ("field", "argument", "where", "limit", "path")


def eventually(probe: Callable[[], T | None]) -> T:
    """Ask again and again until there is an answer; for what no signal tells."""
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while time.monotonic() < deadline:
        if answer := probe():
            return answer
        pause.wait(0.005)
    msg = f"it did not happen within {PATIENCE_S} s"
    raise AssertionError(msg)


class Collector:
    """A handler that keeps what it gets, and lets a test wait for it."""

    def __init__(self) -> None:
        self._batches: queue.Queue[list[EventRecord]] = queue.Queue()

    def __call__(self, batch: list[EventRecord]) -> None:
        """Take a batch."""
        self._batches.put(batch)

    def next(self) -> list[EventRecord]:
        """Wait for the next batch."""
        return self._batches.get(timeout=PATIENCE_S)

    def records(self, count: int) -> list[EventRecord]:
        """Wait until so many records came, and return them."""
        found: list[EventRecord] = []
        while len(found) < count:
            found.extend(self.next())
        return found

    @property
    def empty(self) -> bool:
        """Whether everything that came was taken."""
        return self._batches.empty()


class Borrowed:
    """A store that belongs to another log: closing the log on it leaves it open."""

    def __init__(self, store: Store) -> None:
        self.lent = store

    def __getattr__(self, name: str) -> Any:
        """Do everything else as the lent store does it."""
        return getattr(self.lent, name)

    def at_once(self, request: Request, timeout: float) -> None:
        """Take the usual way: `append` is what these stores do differently."""

    def light(self, request: Request) -> bool:
        """Take the usual way."""
        del request
        return False

    def after_fork(self) -> None:
        """Leave it to the log that owns the store."""

    def close(self) -> None:
        """Leave the store open."""


class GatedStore(Borrowed):
    """A store whose commits wait at a gate, so that a test can look at the queue before it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.gate = threading.Event()
        self.arrived = threading.Semaphore(0)
        self.groups: list[int] = []

    def append(self, group: Sequence[Request]) -> list[Outcome]:
        """Say that a group arrived, wait for the gate, then commit."""
        self.groups.append(len(group))
        self.arrived.release()
        if not self.gate.wait(PATIENCE_S):
            msg = "nobody opened the gate"
            raise AssertionError(msg)
        return self.lent.append(group)

    def wait_for_group(self) -> None:
        """Wait until a group stands at the gate."""
        if not self.arrived.acquire(timeout=PATIENCE_S):
            msg = "no group came to the gate"
            raise AssertionError(msg)


class DeafStore(Borrowed):
    """A store that hears no wake-ups: every hint is lost."""

    def wait(self, position: int, timeout: float) -> None:
        """Sleep the time out, whatever happens meanwhile."""
        del position
        threading.Event().wait(timeout)


class ForgetfulStore(Borrowed):
    """A store that renews no lease, as if its owner had stood still."""

    def renew_lease(self, lease: Lease, seconds: float) -> bool:
        """Pretend to."""
        del lease, seconds
        return True


@contextmanager
def borrowing(log: Log, store: Any = None, **settings: Any) -> Iterator[Log]:
    """Open a second log on the same store, wrapped if given, with settings of its own."""
    lent = Borrowed(log.store) if store is None else store
    with type(log)(lent, settings=Settings(**settings), tenant_id=log.tenant_id) as other:
        yield other


def at_once(act: Callable[[int], T], count: int) -> list[T | SeriatimError]:
    """Run an act in so many threads that start together; return answers and errors by number."""
    barrier = threading.Barrier(count)
    answers: list[Any] = [None] * count

    def run(number: int) -> None:
        barrier.wait(PATIENCE_S)
        try:
            answers[number] = act(number)
        except SeriatimError as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return answers
