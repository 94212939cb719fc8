"""Handlers on the local engine under kill -9: one effect for each event (G2, G7, G10)."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import seriatim
from seriatim import EntryFilter, Log, NewEvent
from seriatim.delivery.handlers import Handlers
from seriatim.factory import open_registry, registry_url
from seriatim.testing.factories import wait_for
from tests.faults.handler_crash import HASTY, POINTS, make_handler
from tests.pipeline.delivery.counting_server import CountingServer

ROOT = Path(__file__).parents[2]
STREAMS = ("o-1", "o-2")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty log."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    """The log at the URL."""
    with seriatim.open(url) as opened:
        yield opened


class Target:
    """The target of one kind of effect: a table without a key, or a server that counts."""

    def __init__(self, effect: str, url: str, stack: ExitStack) -> None:
        self.effect = effect
        self.url = url
        self._server = stack.enter_context(CountingServer(keyed=effect == "keyed"))
        self._registry = stack.enter_context(closing(open_registry(registry_url(url))))
        self._table = "effects" if url.startswith("sqlite") else "public.effects"
        with self._registry.engine.transaction() as session:
            columns = "event_id text, stream_id text, seq bigint, pid bigint"
            session.run(f"create table {self._table} ({columns})")

    @property
    def address(self) -> str:
        """The URL of the server."""
        return self._server.url

    @property
    def requests(self) -> int:
        """The number of requests to the server, also those with the key of an earlier one."""
        return self._server.requests

    def effects(self) -> list[tuple[str, str | None, int | None]]:
        """Return the effects: event, stream and sequence number, in order of their arrival."""
        if self.effect != "transactional":
            return [(one["event"], one["stream"], one["seq"]) for one in self._server.effects]
        with self._registry.engine.transaction(write=False) as session:
            rows = session.run(f"select event_id, stream_id, seq from {self._table}")
        return [(row[0], row[1], row[2]) for row in rows]

    def statuses(self) -> dict[str, str]:
        """Return the status of each event in the registry."""
        return {
            one.event_id: one.status for one in self._registry.entries(EntryFilter(), limit=1000)
        }


@pytest.fixture(params=["transactional", "keyed", "unsafe"])
def target(request: pytest.FixtureRequest, url: str, log: Log) -> Iterator[Target]:
    """A target of each kind of effect."""
    del log  # the log exists before its registry
    with ExitStack() as stack:
        yield Target(request.param, url, stack)


def append(log: Log, count: int) -> None:
    """Append events to two streams in turn, and some without a stream."""
    for number in range(count):
        stream = None if number % 5 == 4 else ("order", STREAMS[number % 2])
        log.append([NewEvent("order.changed", {"n": number}, stream=stream)])


def command(target: Target, way: str, point: str, nth: int = 1) -> list[str]:
    """Return the command of a process that runs the handler up to a crash."""
    program = [sys.executable, "-m", "tests.faults.handler_crash"]
    return [*program, target.url, target.effect, target.address, way, point, str(nth)]


def kill_at(target: Target, way: str, point: str, nth: int) -> None:
    """Run the handler in a process of its own until it kills itself."""
    ended = subprocess.run(
        command(target, way, point, nth), cwd=ROOT, capture_output=True, timeout=120, check=False
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-4000:].decode(errors="replace")


def finish(log: Log, target: Target) -> set[str]:
    """Handle the remaining events, skip and return the unknown ones, and check all effects."""
    handlers = handle_rest(log, target)
    unknown = {name for name, status in target.statuses().items() if status == "unknown"}
    if unknown:
        with closing(handlers.open_registry()) as registry:
            registry.skip(EntryFilter(status="unknown"), "looked up at the target")
        handlers.run(make_handler(target.effect, target.address))
    check_order(target)
    done = {event for event, _, _ in target.effects()}
    assert {record.event_id for record in log.read()} - done <= unknown
    assert set(target.statuses().values()) <= {"done", "skipped"}
    return unknown


def handle_rest(log: Log, target: Target) -> Handlers:
    """Run the handler until every event is settled, or is unknown and blocks its stream."""
    handlers = log.handlers_at(registry_url(target.url), HASTY)
    declared = make_handler(target.effect, target.address)
    deadline = time.monotonic() + 60
    while True:
        handlers.run(declared)
        open_statuses = {"claimed", "failed"} & set(target.statuses().values())
        if not open_statuses:
            break
        assert time.monotonic() < deadline, target.statuses()
        time.sleep(0.1)
    handlers.run(declared)
    return handlers


def check_order(target: Target) -> None:
    """Check that each event had at most one effect, and each stream its own in order."""
    found = target.effects()
    assert set(Counter(event for event, _, _ in found).values()) <= {1}
    for stream in STREAMS:
        numbers = [seq for _, one, seq in found if one == stream]
        assert numbers == sorted(numbers, key=lambda seq: seq or 0)


@pytest.mark.parametrize("way", ["run", "live"])
def test_kills_at_each_point(log: Log, target: Target, way: str) -> None:
    """G7: 003 §6.2: after kills at all points every event has one effect, an unsafe one at most.

    An effect that may have happened without its completion stays unknown if it is unsafe.
    """
    may_be_unknown = 0
    for number, point in enumerate(POINTS):
        if point == "before commit" and target.effect != "transactional":
            continue
        append(log, 12)
        requests = target.requests
        kill_at(target, way, point, 1 + number % 2)
        check_order(target)
        if target.effect == "unsafe" and point in ("after claim", "after effect"):
            may_be_unknown += 1
        if point in ("after effect", "after mark") and target.effect != "transactional":
            assert target.requests > requests  # the crash was after an effect
        time.sleep(HASTY.lease_s)  # of the killed process: its events are free again
    append(log, 3)
    assert len(finish(log, target)) == may_be_unknown


def test_processes_share_a_handler(log: Log, target: Target) -> None:
    """G1, G2: processes share a handler's events; those of a killed one are taken over."""
    append(log, 20)
    running = [
        subprocess.Popen(
            command(target, "live", "none"), cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    try:
        wait_for(lambda: len(target.effects()) >= 20)
        for round_number in range(6):
            append(log, 10)
            if round_number == 2:
                running[0].kill()
        count = log.head()

        def is_settled() -> bool:
            found = Counter(target.statuses().values())
            if found["unknown"]:  # which blocks its stream
                return not found["claimed"] and not found["failed"]
            return found["done"] == count

        wait_for(is_settled)
        for process in running[1:]:
            process.terminate()
        outputs = [process.communicate(timeout=60)[0].strip() for process in running[1:]]
        assert outputs == ["stopped", "stopped"]
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert len(finish(log, target)) <= (target.effect == "unsafe")
