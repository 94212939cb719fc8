"""Handlers on the local engine under kill -9: one effect for each event (G2, G7, G10)."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from seriatim import Log
from tests.faults.handler_crash import HASTY, POINTS
from tests.faults.handler_target import (
    ROOT,
    Target,
    append,
    check_order,
    command,
    finish,
    kill_at,
)
from tests.faults.support import wait_until


@pytest.fixture(params=["transactional", "keyed", "unsafe"])
def target(request: pytest.FixtureRequest, url: str, log: Log) -> Iterator[Target]:
    """A target of each kind of effect."""
    del log  # the log exists before its registry
    with ExitStack() as stack:
        yield Target(request.param, url, stack)


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
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
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

        wait_until(is_settled, "the events are settled", 120)
        for process in running[1:]:
            process.terminate()
        outputs = [process.communicate(timeout=60)[0].strip() for process in running[1:]]
        assert outputs == ["stopped", "stopped"]
    finally:
        for process in running:
            process.kill()
            process.communicate()
    assert len(finish(log, target)) <= (target.effect == "unsafe")
