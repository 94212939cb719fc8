"""Group commit: one queue, a few writers, an outcome for every caller."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from seriatim.core.errors import BackendFailure, Conflict, LimitExceeded
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
        committers.append(Committer(commit, **options))
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
    """B13: a single caller commits in its own thread, unless a commit is in flight."""
    gate = Gate()
    committer = make_committer(gate)

    assert committer.run_alone(receipt) is not None
    first = committer.submit(request(name="a"))
    gate.wait()
    assert committer.run_alone(pytest.fail) is None
    gate.open.set()
    first.result(PATIENCE_S)


def test_errors_of_a_single_caller(make_committer: Callable[..., Committer]) -> None:
    """L2: an error of a single caller is raised unchanged; an unexpected one is ambiguous."""
    committer = make_committer(Gate())

    def act(error: Exception) -> Outcome:
        raise error

    with pytest.raises(Conflict):
        committer.run_alone(lambda: act(Conflict()))
    with pytest.raises(Deferred):
        committer.run_alone(lambda: act(Deferred([])))
    with pytest.raises(BackendFailure) as caught:
        committer.run_alone(lambda: act(RuntimeError()))
    assert caught.value.ambiguous


def test_close_waits_for_a_single_caller(make_committer: Callable[..., Committer]) -> None:
    """B13: close waits for a caller that commits in its own thread, and refuses new ones."""
    committer = make_committer(Gate())
    inside, go = threading.Event(), threading.Event()

    def act() -> Outcome:
        inside.set()
        assert go.wait(PATIENCE_S)
        return receipt()

    alone = threading.Thread(target=committer.run_alone, args=(act,))
    alone.start()
    assert inside.wait(PATIENCE_S)
    committer.close(0.01)
    assert alone.is_alive()
    with pytest.raises(BackendFailure):
        committer.run_alone(receipt)
    closing = threading.Thread(target=committer.close)
    closing.start()
    go.set()
    closing.join(PATIENCE_S)
    alone.join(PATIENCE_S)
    assert not closing.is_alive()
