"""The targets of a handler whose processes are killed, and what must hold for their effects."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

from seriatim import EntryFilter, Log, NewEvent
from seriatim.delivery.handlers import Handlers
from seriatim.factory import open_registry, registry_url
from tests.faults.handler_crash import HASTY, make_handler
from tests.pipeline.delivery.counting_server import CountingServer

ROOT = Path(__file__).parents[2]
STREAMS = ("o-1", "o-2")


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
