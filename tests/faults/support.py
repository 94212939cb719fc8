"""Helpers that start worker processes and check the log they leave."""

from __future__ import annotations

import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import psutil

import seriatim
from seriatim import ExpectedSeq, Settings
from seriatim.log.verification import verify

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0

# A condition on a stream that an append does not touch is always validated under the lock.
VALIDATED = ExpectedSeq(("untouched", "1"), None)


def wait_until(holds: Callable[[], Any], what: str, within_s: float = WAIT_S) -> None:
    """Wait until a condition holds, or fail with its description."""
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s} s: {what}"
        time.sleep(0.01)


class Worker:
    """A command of `tests.faults.workers` in its own process, which ends with the test."""

    def __init__(self, command: str, **arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.workers", command, json.dumps(arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self.lines: list[Any] = []
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill9()

    def __repr__(self) -> str:
        return f"worker printed {self.lines[-5:]}, stderr {''.join(self._errors)[-2000:]}"

    def wait_ready(self) -> Self:
        """Wait until the worker has opened its log."""
        wait_until(lambda: self.lines or self._process.poll() is not None, "a worker's start")
        assert self.lines[:1] == ["ready"], repr(self)
        return self

    def wait_lines(self, count: int, within_s: float = WAIT_S) -> list[Any]:
        """Wait until the worker has printed this number of lines."""
        wait_until(lambda: len(self.lines) >= count, f"{count} lines, {self!r}", within_s)
        return self.lines

    def wait_stopped(self) -> None:
        """Wait until the worker has stopped itself with SIGSTOP."""
        process = psutil.Process(self.pid)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED, f"a stop, {self!r}")

    def send(self, sent: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, sent)

    def finish(self) -> list[Any]:
        """Stop the worker with SIGTERM and return its output."""
        self.send(signal.SIGTERM)
        return self.wait_end()

    def wait_end(self) -> list[Any]:
        """Wait until the worker ends, and return its output."""
        code = self._process.wait(WAIT_S)
        self._close()
        assert code == 0, f"ended with {code}: {self!r}"
        return self.lines

    def kill9(self) -> None:
        """Kill the worker; safe to call twice."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(WAIT_S)
        self._close()

    def _close(self) -> None:
        for reader in self._readers:
            reader.join(WAIT_S)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def race(racer: Callable[..., Any], count: int, url: str, rounds: int, *more: Any) -> list[Any]:
    """Run a racer in `count` processes with a common barrier, and return their results."""
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(count)
    results: Any = spawn.Queue()
    processes = [
        spawn.Process(target=_report, args=(results, racer, url, barrier, rounds, number, *more))
        for number in range(count)
    ]
    for process in processes:
        process.start()
    try:
        found = [results.get(timeout=90) for _ in processes]
    except queue.Empty:
        raise AssertionError("a racer did not finish") from None
    finally:
        for process in processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
        results.close()
    failed = [result for result in found if isinstance(result, BaseException)]
    assert failed == []
    return found


def _report(results: Any, racer: Callable[..., Any], url: str, barrier: Any, *more: Any) -> None:
    try:
        results.put(racer(url, barrier, *more))
    except BaseException as error:  # noqa: BLE001 - the parent fails with it
        barrier.abort()
        results.put(RuntimeError(repr(error)))


class TailThread:
    """Tails a log in a thread and records the received positions in order."""

    def __init__(self, log: seriatim.Log, *, poll_s: float = 0.05) -> None:
        self.seen: list[int] = []
        self.error: Exception | None = None
        self._tail = log.tail(after=0, poll_s=poll_s)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for batch in self._tail:
                self.seen.extend(record.position for record in batch)
        except seriatim.SeriatimError as error:
            self.error = error

    def wait_for(self, position: int, within_s: float = WAIT_S) -> None:
        """Wait until the tail has reached a position."""
        wait_until(
            lambda: self.error or (self.seen and self.seen[-1] >= position),
            f"position {position}, seen up to {self.seen[-1:]}",
            within_s,
        )

    def stop(self) -> list[int]:
        """Stop the tail and return all positions."""
        self._tail.stop()
        self._thread.join(WAIT_S)
        if self.error is not None:
            raise self.error
        return self.seen


def find_gaps(seen: Iterable[int]) -> list[str]:
    """Return every place where positions are not consecutive from 1 (B3)."""
    problems = []
    for expected, position in enumerate(seen, start=1):
        if position != expected:
            problems.append(f"saw {position} where {expected} should be")
    return problems


def read_acknowledged(*files: Path) -> dict[str, int]:
    """Return the acknowledged events of all loaders with their positions, without repeats."""
    # A loader that was killed while it wrote may leave a torn line at the end.
    texts = [file.read_text().rpartition("\n")[0] for file in files if file.exists()]
    lines = [line.split() for text in texts for line in text.splitlines()]
    counts = Counter(event_id for event_id, _ in lines)
    assert [event_id for event_id, count in counts.items() if count > 1] == []
    return {event_id: int(position) for event_id, position in lines}


def check_log_complete(url: str, acknowledged: dict[str, int] | None = None) -> int:
    """Check that a log is gapless and sound and contains each acknowledged event once."""
    with seriatim.open(url) as log:
        report = verify(log.store, lookups=50)
        bad = [finding for finding in report.findings if finding.level == "error"]
        assert bad == []
        places: dict[str, list[int]] = {}
        for record in log.read(batch_size=5000):
            places.setdefault(record.event_id, []).append(record.position)
        head = log.head()
    positions = sorted(position for found in places.values() for position in found)
    assert positions == list(range(1, head + 1))
    for event_id, position in (acknowledged or {}).items():
        assert places.get(event_id) == [position], f"{event_id} was acknowledged at {position}"
    return head


QUICK = Settings(lock_wait_s=1.0, lock_hold_s=1.0)
