"""Several processes on one file, and forks."""

import itertools
import os
import threading
import time

import pytest

from seriatim.core.errors import BackendFailure
from seriatim.store.port import ReadSpec
from seriatim.store.sqlite.store import SqliteStore
from tests.integration.sqlite.store_appender import StoreAppender, make_facts, read_everything
from tests.integration.sqlite.writer_launcher import start_writer


def test_positions_of_concurrent_processes_are_gapless(store: SqliteStore, path: str) -> None:
    """B3: a tail reads the appends of four processes in order, without gaps or duplicates."""
    writers = [start_writer(path, 100, f"writer-{number}") for number in range(4)]
    seen: list[int] = []
    while len(seen) < 400:
        after = seen[-1] if seen else 0
        page = store.read(ReadSpec(tenant_id="default", limit=1000, after=after))
        seen += [record.position for record in page]
        if not page:
            store.wait(after, 5)
    assert seen == list(range(1, 401))
    for writer in writers:
        receipts = [int(line) for line in writer.communicate()[0].splitlines()]
        assert receipts == sorted(receipts)
        assert writer.returncode == 0
    for number in range(4):
        stream = ("by", f"writer-{number}")
        page = store.read(ReadSpec(tenant_id="default", limit=1000, stream=stream))
        assert [record.stream_seq for record in page] == list(range(1, 101))
    assert all(finding.level == "ok" for finding in store.verify())


def test_a_waiter_is_woken_by_another_process(store: SqliteStore, path: str) -> None:
    """E5: a wait ends when another process appends, or when its time is over."""
    other = SqliteStore(path)
    timer = threading.Timer(0.2, lambda: StoreAppender().append(other, *make_facts(1)))
    timer.start()
    started = time.monotonic()
    store.wait(0, 10)
    assert time.monotonic() - started < 5
    timer.join()
    assert store.head() == 1
    started = time.monotonic()
    store.wait(1, 0.1)
    assert 0.1 <= time.monotonic() - started < 5
    other.close()


def test_a_waiter_is_released_when_the_log_closes(store: SqliteStore) -> None:
    """B13: closing a log ends the waits of other threads."""
    waiter = threading.Thread(target=store.wait, args=(0, 60))
    waiter.start()
    store.close()
    waiter.join(5)
    assert not waiter.is_alive()


def test_a_held_lock_is_a_retryable_failure(
    store: SqliteStore, path: str, appender: StoreAppender
) -> None:
    """B14: an append to a file that stays locked fails, retryable and not ambiguous."""
    impatient = SqliteStore(path, busy_timeout_s=0.2)
    with store._writer.transaction():
        started = time.monotonic()
        with pytest.raises(BackendFailure, match="another process holds the lock") as failure:
            appender.append(impatient, *make_facts(1))
        assert time.monotonic() - started < 5
        assert impatient.head() == 0  # readers do not wait
    assert failure.value.retryable
    assert not failure.value.ambiguous
    assert appender.append(impatient, *make_facts(1)).first_position == 1
    impatient.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forks_under_load(store: SqliteStore) -> None:
    """B13: parent and children append and read around forks, and the file stays intact."""
    stop = threading.Event()

    def load(name: str) -> None:
        numbers = itertools.count()
        appender = StoreAppender(lambda: f"{name}-{next(numbers)}")
        while not stop.is_set():
            appender.append(store, *make_facts(2))
            store.read(ReadSpec(tenant_id="default", limit=10))

    threads = [threading.Thread(target=load, args=(f"thread-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    children = [fork_appender(store, f"child-{number}") for number in range(5)]
    statuses = [os.waitpid(child, 0)[1] for child in children]
    stop.set()
    for thread in threads:
        thread.join()
    assert statuses == [0] * 5
    found = read_everything(store)
    assert [record.position for record in found] == list(range(1, len(found) + 1))
    assert sum(record.event_id.startswith("child") for record in found) == 15
    assert all(finding.level == "ok" for finding in store.verify())


def fork_appender(store: SqliteStore, name: str) -> int:
    """Fork a child that appends three events and ends."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        store.after_fork()
        numbers = itertools.count()
        StoreAppender(lambda: f"{name}-{next(numbers)}").append(store, *make_facts(3))
        code = 0 if store.head() >= 3 else 2
        store.close()
    finally:
        os._exit(code)


def test_a_closed_log_is_reported(store: SqliteStore, appender: StoreAppender) -> None:
    """B13: a closed log refuses reads and appends."""
    request = appender.request(store, make_facts(1))
    store.close()
    for act in (store.head, lambda: store.append([request])):
        with pytest.raises(BackendFailure, match="closed") as failure:
            act()
        assert not failure.value.retryable
