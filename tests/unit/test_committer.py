"""Group commit: one queue, a few writers, an outcome for every caller."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from seriatim.core.errors import BackendFailure, Conflict, LimitExceeded, TimedOut
from seriatim.core.event import AppendResult, NewEvent
from seriatim.core.limits import Limits
from seriatim.core.prepare import ValidationContext, prepare
from seriatim.core.request import AppendRequest
from seriatim.store.committer import SPLIT_THRESHOLD, AppendQueue, Committer, QueuedAppend
from seriatim.store.port import Deferred, Outcome

PATIENCE_S = 20


def request(count: int = 1, size: int = 10, name: str = "x") -> AppendRequest:
    """Make an append with a number of events and a size."""
    numbers = iter(range(count))
    context = ValidationContext(tenant_id="t", new_id=lambda: f"e-{next(numbers)}")
    events, _ = prepare(context, [NewEvent(name)] * count)
    return AppendRequest("t", events, size=size)


def receipt() -> AppendResult:
    """Make a receipt."""
    return AppendResult(1, 1, tuple)


class FakeStore:
    """A store that commits by a function, for the writer threads only."""

    recommended_writers = 1

    def __init__(self, write: Callable[[Sequence[AppendRequest]], list[Outcome]]) -> None:
        self.write = write

    def append(self, group: Sequence[AppendRequest]) -> list[Outcome]:
        """Commit a group of the writer threads."""
        return self.write(group)

    def can_commit_now(self, request: AppendRequest) -> bool:
        """Decline commits in callers' threads."""
        del request
        return False

    def commit_now(self, group: Sequence[AppendRequest], timeout: float) -> Any:
        """Decline a commit in a caller's thread."""
        del group, timeout

    def can_begin_append(self, request: AppendRequest) -> bool:
        """Decline event loops."""
        del request
        return False

    def begin_append(self, group: Sequence[AppendRequest]) -> None:
        """Decline event loops."""


class CallerStore(FakeStore):
    """A store that commits in callers' threads, and records which thread committed what."""

    def __init__(self, commit: Callable[[Sequence[AppendRequest]], Any]) -> None:
        super().__init__(lambda _: pytest.fail("no writer thread should commit"))
        self.commit = commit
        self.threads: list[int] = []

    def can_commit_now(self, request: AppendRequest) -> bool:
        """Accept all appends but those named "heavy"."""
        return request.events[0].event_type != "heavy"

    def commit_now(self, group: Sequence[AppendRequest], timeout: float) -> Any:
        """Commit a group."""
        assert timeout >= 0
        self.threads.append(threading.get_ident())
        return self.commit(group)


class Gate:
    """A commit that blocks until it is opened, and records its groups."""

    def __init__(self, outcome: Callable[[AppendRequest], Outcome] | None = None) -> None:
        self.open = threading.Event()
        self.arrived = threading.Semaphore(0)
        self.groups: list[list[str]] = []
        self.outcome = outcome or (lambda _: receipt())

    def __call__(self, group: Sequence[AppendRequest]) -> list[Outcome]:
        """Commit a group."""
        self.groups.append([one.events[0].event_type for one in group])
        self.arrived.release()
        assert self.open.wait(PATIENCE_S)
        return [self.outcome(one) for one in group]

    def wait(self) -> None:
        """Wait until a group has arrived."""
        assert self.arrived.acquire(timeout=PATIENCE_S)


@pytest.fixture
def make_committer() -> Iterator[Callable[..., Committer]]:
    """Return a function that makes committers, which are closed after the test."""
    committers: list[Committer] = []

    def make(commit: Any, **options: Any) -> Committer:
        store = commit if isinstance(commit, FakeStore) else FakeStore(commit)
        committers.append(Committer(store, **options))
        return committers[-1]

    yield make
    for committer in committers:
        committer.close(PATIENCE_S)


def test_single_append_is_not_delayed(make_committer: Callable[..., Committer]) -> None:
    """B13: a single append is committed as a group of one."""
    result = receipt()
    committer = make_committer(lambda _: [result])

    assert committer.submit(request()).result(PATIENCE_S) is result


def test_queued_requests_share_a_commit(make_committer: Callable[..., Committer]) -> None:
    """B13: queued appends are committed together, in order, each with its own outcome."""
    gate = Gate(lambda one: Conflict() if one.events[0].event_type == "bad" else receipt())
    committer = make_committer(gate)
    futures = [committer.submit(request(name="first"))]
    gate.wait()
    futures += [committer.submit(request(name=name)) for name in ("a", "bad", "b")]
    gate.open.set()

    assert futures[0].result(PATIENCE_S).count == 1
    assert futures[1].result(PATIENCE_S).count == 1
    with pytest.raises(Conflict):
        futures[2].result(PATIENCE_S)
    assert futures[3].result(PATIENCE_S).count == 1
    assert gate.groups == [["first"], ["a", "bad", "b"]]


def test_groups_are_bounded(make_committer: Callable[..., Committer]) -> None:
    """K3: a group has at most the events and bytes of one append, or is a single append."""
    gate = Gate()
    committer = make_committer(gate, limits=Limits(append_events=3, append_bytes=100))
    futures = [committer.submit(request(name="first"))]
    gate.wait()
    for name, count, size in (
        ("a", 2, 1),
        ("b", 1, 1),
        ("c", 1, 1),
        ("d", 1, 100),
        ("e", 5, 1),
        ("f", 1, 99),
        ("g", 1, 1),
        ("h", 1, 1),
    ):
        futures.append(committer.submit(request(count, size, name)))
    gate.open.set()
    for future in futures:
        future.result(PATIENCE_S)

    assert gate.groups == [["first"], ["a", "b"], ["c"], ["d"], ["e"], ["f", "g"], ["h"]]


@pytest.mark.parametrize(
    ("limits", "more", "name"),
    [
        (Limits(queue_events=3), (2, 1), "queue_events"),
        (Limits(queue_bytes=30), (1, 11), "queue_bytes"),
    ],
)
def test_the_queue_is_bounded(
    make_committer: Callable[..., Committer], limits: Limits, more: tuple[int, int], name: str
) -> None:
    """B13: a full queue refuses with a retryable error, and accepts again when it has space."""
    gate = Gate()
    committer = make_committer(gate, limits=limits)
    committer.submit(request())
    gate.wait()
    waiting = committer.submit(request(2, 20))

    with pytest.raises(LimitExceeded) as caught:
        committer.submit(request(*more))
    assert caught.value.retryable
    assert caught.value.details["limit"] == name
    fits = committer.submit(request(1, 10))
    gate.open.set()
    assert fits.result(PATIENCE_S).count == waiting.result(PATIENCE_S).count == 1
    assert committer.submit(request(1, 10)).result(PATIENCE_S).count == 1


def test_an_empty_queue_accepts_any_append(make_committer: Callable[..., Committer]) -> None:
    """B13: an empty queue accepts even the largest append."""
    committer = make_committer(
        lambda group: [receipt() for _ in group], limits=Limits(queue_events=1)
    )

    assert committer.submit(request(5)).result(PATIENCE_S).count == 1


def test_queued_appends_can_be_cancelled(make_committer: Callable[..., Committer]) -> None:
    """B13: a queued append can be cancelled and is not sent; one that was taken cannot."""
    gate = Gate()
    committer = make_committer(gate)
    taken = committer.submit(request(name="taken"))
    gate.wait()
    waiting = committer.submit(request(name="waiting"))
    last = committer.submit(request(name="last"))

    assert waiting.cancel()
    assert not taken.cancel()
    gate.open.set()
    last.result(PATIENCE_S)
    assert gate.groups == [["taken"], ["last"]]


def test_a_queue_of_cancelled_appends(make_committer: Callable[..., Committer]) -> None:
    """B13: a writer continues after all queued appends were cancelled."""
    gate = Gate()
    committer = make_committer(gate)
    taken = committer.submit(request())
    gate.wait()
    assert committer.submit(request()).cancel()
    gate.open.set()
    taken.result(PATIENCE_S)

    assert committer.submit(request(name="next")).result(PATIENCE_S).count == 1
    assert gate.groups == [["x"], ["next"]]


@pytest.mark.parametrize("error", [BackendFailure("gone"), RuntimeError("bug"), None])
def test_a_failing_commit_fails_every_append(
    make_committer: Callable[..., Committer], error: Exception | None
) -> None:
    """L2: if a commit fails, every append of the group has an error, and the writer continues."""

    def commit(group: Sequence[AppendRequest]) -> list[Outcome]:
        if group[0].events[0].event_type == "good":
            return [receipt()]
        if error is not None:
            raise error
        return []

    committer = make_committer(commit)
    with pytest.raises(BackendFailure) as caught:
        committer.submit(request()).result(PATIENCE_S)

    failure = caught.value
    assert failure.ambiguous is (not isinstance(error, BackendFailure))
    if isinstance(error, RuntimeError):
        assert failure.__cause__ is error
    assert committer.submit(request(name="good")).result(PATIENCE_S).count == 1


def test_writers_commit_concurrently(make_committer: Callable[..., Committer]) -> None:
    """B13: a second writer commits a group while the first one is in flight."""
    gate = Gate()
    committer = make_committer(gate, writers=2)
    first = committer.submit(request(name="a"))
    gate.wait()
    second = committer.submit(request(name="b"))
    gate.wait()
    third = committer.submit(request(name="c"))
    gate.open.set()

    assert {one.result(PATIENCE_S).count for one in (first, second, third)} == {1}
    assert gate.groups[:2] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("waiting", "under_way", "writers", "taken"),
    [
        (SPLIT_THRESHOLD, 0, 2, [SPLIT_THRESHOLD // 2, SPLIT_THRESHOLD // 2]),
        (SPLIT_THRESHOLD + 1, 0, 2, [SPLIT_THRESHOLD // 2 + 1, SPLIT_THRESHOLD // 2]),
        (SPLIT_THRESHOLD - 1, 0, 2, [SPLIT_THRESHOLD - 1]),
        (SPLIT_THRESHOLD, 1, 2, [SPLIT_THRESHOLD]),
        (SPLIT_THRESHOLD, 0, 1, [SPLIT_THRESHOLD]),
    ],
)
def test_idle_writer_takes_half_of_the_queue(
    waiting: int, under_way: int, writers: int, taken: list[int]
) -> None:
    """B13: with an idle second writer a writer takes half of a long queue."""
    queue: AppendQueue[QueuedAppend] = AppendQueue(Limits())
    for _ in range(waiting):
        queue.put(QueuedAppend(request(), threading.Lock(), None))

    for count in taken:
        assert len(queue.take_share(in_flight=under_way, writers=writers)) == count
        under_way += 1
    assert not queue


def test_close_waits_for_accepted_appends(make_committer: Callable[..., Committer]) -> None:
    """B13: close waits for accepted appends and refuses later ones."""
    gate = Gate()
    committer = make_committer(gate)
    accepted = [committer.submit(request(name="a"))]
    gate.wait()
    accepted.append(committer.submit(request(name="b")))
    closing = threading.Thread(target=committer.close)
    closing.start()
    gate.open.set()
    closing.join(PATIENCE_S)

    assert not closing.is_alive()
    assert [one.result(0).count for one in accepted] == [1, 1]
    with pytest.raises(BackendFailure) as caught:
        committer.submit(request())
    assert not caught.value.retryable


def test_close_timeout(make_committer: Callable[..., Committer]) -> None:
    """B13: close returns at its timeout, although a commit is in flight."""
    gate = Gate()
    committer = make_committer(gate)
    committer.submit(request())
    gate.wait()
    committer.close(0.01)
    gate.open.set()


def test_fork_has_an_empty_queue(make_committer: Callable[..., Committer]) -> None:
    """B13: a forked committer has an empty queue and its own writers, or stays closed."""
    gate = Gate()
    committer = make_committer(gate)
    parents = committer.submit(request(name="parent"))
    gate.wait()
    committer.submit(request(name="waiting"))

    parents_threads = list(committer._threads)
    committer.after_fork()
    gate.open.set()
    assert committer.submit(request(name="child")).result(PATIENCE_S).count == 1
    parents.result(PATIENCE_S)
    assert sorted(gate.groups) == [["child"], ["parent"]]
    for thread in parents_threads:  # a real child process has no threads of its parent
        thread.join(0.05)
    committer.close(0.05)
    committer.after_fork()
    with pytest.raises(BackendFailure):
        committer.submit(request())


def test_single_caller_commits_in_its_own_thread(make_committer: Callable[..., Committer]) -> None:
    """B13: a caller without others commits in its own thread."""
    store = CallerStore(lambda group: [receipt() for _ in group])
    committer = make_committer(store)

    assert committer.append(request(), PATIENCE_S).count == 1
    assert store.threads == [threading.get_ident()]
    assert not committer._threads


def test_errors_of_a_single_caller(make_committer: Callable[..., Committer]) -> None:
    """L2: an error of a single caller is raised unchanged; an unexpected one is ambiguous."""

    def refuse(group: Sequence[AppendRequest]) -> list[Outcome]:
        if group[0].events[0].event_type == "refused":
            return [Conflict()]
        raise {"conflict": Conflict(), "bug": RuntimeError()}[group[0].events[0].event_type]

    committer = make_committer(CallerStore(refuse))
    for name in ("refused", "conflict"):
        with pytest.raises(Conflict):
            committer.append(request(name=name), PATIENCE_S)
    with pytest.raises(BackendFailure) as caught:
        committer.append(request(name="bug"), PATIENCE_S)
    assert caught.value.ambiguous


@pytest.mark.parametrize("declines", [lambda _: None, lambda group: _raise(Deferred(group))])
def test_writer_commits_what_a_caller_cannot(
    make_committer: Callable[..., Committer], declines: Callable[[Sequence[AppendRequest]], Any]
) -> None:
    """B13: an append that its caller's thread cannot commit is committed by a writer thread."""
    store = CallerStore(declines)
    store.write = lambda group: [receipt() for _ in group]
    committer = make_committer(store)

    assert committer.append(request(), PATIENCE_S).count == 1
    assert len(committer._threads) == 1


def _raise(error: BaseException) -> None:
    raise error


class Callers:
    """Threads that append, each with its outcome."""

    def __init__(self, committer: Committer) -> None:
        self.committer = committer
        self.outcomes: dict[str, object] = {}
        self.threads: list[threading.Thread] = []

    def start(self, name: str, timeout: float = PATIENCE_S) -> None:
        """Start a caller, and wait until its append is queued or in flight."""
        queued = self.committer.queued
        leading = self.committer._leading
        self.threads.append(threading.Thread(target=self._append, args=(name, timeout)))
        self.threads[-1].start()
        deadline = time.monotonic() + PATIENCE_S
        while self.committer.queued == queued and self.committer._leading == leading:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def _append(self, name: str, timeout: float) -> None:
        try:
            self.outcomes[name] = self.committer.append(request(name=name), timeout).count
        except BaseException as error:  # noqa: BLE001 - compared by the test
            self.outcomes[name] = type(error)

    def join(self) -> None:
        """Wait for all callers."""
        for thread in self.threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


def test_one_waiting_caller_commits_for_all(make_committer: Callable[..., Committer]) -> None:
    """B13: callers that wait share a commit, in the thread of the first of them."""
    gate = Gate(lambda one: Conflict() if one.events[0].event_type == "bad" else receipt())
    store = CallerStore(gate)
    committer = make_committer(store)
    callers = Callers(committer)
    for name in ("first", "a", "bad", "b"):
        callers.start(name)
    gate.open.set()
    callers.join()

    assert gate.groups == [["first"], ["a", "bad", "b"]]
    assert store.threads == [callers.threads[0].ident, callers.threads[1].ident]
    assert callers.outcomes == {"first": 1, "a": 1, "bad": Conflict, "b": 1}
    assert not committer._threads


def test_callers_commit_as_many_groups_as_there_are_writers(
    make_committer: Callable[..., Committer],
) -> None:
    """B13: a second caller commits while the first group is in flight; a third one waits."""
    gate = Gate()
    committer = make_committer(CallerStore(gate), writers=2)
    callers = Callers(committer)
    for name in ("a", "b", "c"):
        callers.start(name)

    assert committer.queued == 1
    gate.open.set()
    callers.join()
    assert gate.groups == [["a"], ["b"], ["c"]]


def test_group_of_callers_is_deferred_to_a_writer(
    make_committer: Callable[..., Committer],
) -> None:
    """B13: a group that its leader cannot commit, or a part of it, goes to a writer thread."""
    gate = Gate()

    def commit(group: Sequence[AppendRequest]) -> list[Outcome | Deferred]:
        outcomes = gate(group)
        deferred = [one.events[0].event_type == "later" for one in group]
        return [
            Deferred((one,)) if later else outcome
            for one, outcome, later in zip(group, outcomes, deferred, strict=True)
        ]

    store = CallerStore(commit)
    written: list[str] = []

    def write(group: Sequence[AppendRequest]) -> list[Outcome]:
        written.extend(one.events[0].event_type for one in group)
        return [receipt() for _ in group]

    store.write = write
    committer = make_committer(store)
    callers = Callers(committer)
    for name in ("first", "now", "later", "too"):
        callers.start(name)
    gate.open.set()
    callers.join()

    assert callers.outcomes == {"first": 1, "now": 1, "later": 1, "too": 1}
    assert written == ["later"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(Conflict(), Conflict), (RuntimeError("bug"), BackendFailure), (None, BackendFailure)],
)
def test_failing_group_of_callers(
    make_committer: Callable[..., Committer], error: Exception | None, expected: type
) -> None:
    """L2: if a leader's commit fails, each caller has an error, and later groups are committed."""
    gate = Gate()

    def commit(group: Sequence[AppendRequest]) -> list[Outcome]:
        outcomes = gate(group)
        if len(group) == 1:
            return outcomes
        if error is not None:
            raise error
        return outcomes[:1]

    committer = make_committer(CallerStore(commit))
    callers = Callers(committer)
    for name in ("first", "a", "b"):
        callers.start(name)
    gate.open.set()
    callers.join()

    assert callers.outcomes == {"first": 1, "a": expected, "b": expected}
    assert committer.append(request(), PATIENCE_S).count == 1


def test_interrupted_leader_frees_the_others(make_committer: Callable[..., Committer]) -> None:
    """B13: when a leader is interrupted, its group has an unknown outcome and others continue."""
    gate = Gate()

    def commit(group: Sequence[AppendRequest]) -> list[Outcome]:
        outcomes = gate(group)
        if group[0].events[0].event_type == "leader":
            raise KeyboardInterrupt
        return outcomes

    committer = make_committer(CallerStore(commit), limits=Limits(append_events=2))
    callers = Callers(committer)
    for name in ("first", "leader", "member", "next"):
        callers.start(name)
    gate.open.set()
    callers.join()

    assert callers.outcomes == {
        "first": 1,
        "leader": KeyboardInterrupt,
        "member": BackendFailure,
        "next": 1,
    }


def test_waiting_caller_times_out(make_committer: Callable[..., Committer]) -> None:
    """B13: a queued caller that times out stores nothing, and never leads a group."""
    gate = Gate()
    committer = make_committer(CallerStore(gate), timeout_s=0.01)
    callers = Callers(committer)
    callers.start("first")
    with pytest.raises(TimedOut):
        committer.append(request(name="late"), 0.02)
    callers.start("next")
    gate.open.set()
    callers.join()

    assert gate.groups == [["first"], ["next"]]


def test_caller_that_stops_waiting_passes_its_group_on(
    make_committer: Callable[..., Committer],
) -> None:
    """B13: if a caller gives up when it is made the leader, a writer commits the group."""
    store = CallerStore(lambda _: pytest.fail("the group was given up"))
    store.write = lambda group: [receipt() for _ in group]
    committer = make_committer(store)
    appends = [QueuedAppend(request(), committer._ready, None) for _ in range(2)]
    with committer._ready:
        for append in appends:
            committer._shared.put(append)
        committer._start_next()

    assert committer._leading == 1
    assert committer._abandon(appends[0])
    assert committer._leading == 0
    assert appends[1].result(PATIENCE_S).count == 1


def test_impatient_and_heavy_appends_are_left_to_writers(
    make_committer: Callable[..., Committer],
) -> None:
    """B13: a caller with a short timeout, or an append that may take long, leads no group."""
    gate = Gate()
    store = CallerStore(gate)
    written: list[str] = []

    def write(group: Sequence[AppendRequest]) -> list[Outcome]:
        written.extend(one.events[0].event_type for one in group)
        return [receipt() for _ in group]

    store.write = write
    committer = make_committer(store, writers=2, timeout_s=5.0)
    callers = Callers(committer)
    callers.start("first")
    assert committer.append(request(name="impatient"), 4.0).count == 1
    assert committer.append(request(name="heavy"), PATIENCE_S).count == 1
    gate.open.set()
    callers.join()

    assert gate.groups == [["first"]]
    assert written == ["impatient", "heavy"]


def test_queue_of_waiting_callers_is_bounded(make_committer: Callable[..., Committer]) -> None:
    """B13: the queue of waiting callers is bounded, too."""
    gate = Gate()
    committer = make_committer(CallerStore(gate), limits=Limits(queue_events=1))
    callers = Callers(committer)
    callers.start("first")
    callers.start("waiting")
    with pytest.raises(LimitExceeded):
        committer.append(request(), PATIENCE_S)
    gate.open.set()
    callers.join()


def test_close_waits_for_callers(make_committer: Callable[..., Committer]) -> None:
    """B13: close waits for callers in flight and queued, and refuses new ones."""
    gate = Gate()
    committer = make_committer(CallerStore(gate))
    callers = Callers(committer)
    for name in ("first", "a", "b"):
        callers.start(name)
    committer.close(0.01)
    with pytest.raises(BackendFailure):
        committer.append(request(), PATIENCE_S)
    closing = threading.Thread(target=committer.close)
    closing.start()
    gate.open.set()
    closing.join(PATIENCE_S)

    assert not closing.is_alive()
    assert committer.queued == 0
    callers.join()
    assert callers.outcomes == {"first": 1, "a": 1, "b": 1}
