"""Exactly once under kill -9: before, inside and after the transaction of a batch (I2)."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seriatim import Log
from seriatim.pipeline.project.projector import Projector
from tests.pipeline.project.kit import fill, plain_digest, seats, stored_digest

pytestmark = pytest.mark.slow
Start = Callable[..., Projector]
ROOT = Path(__file__).parents[3]


def driver(**arguments: Any) -> int:
    """Run a driver of its own until it ends or dies, and return how."""
    command = [sys.executable, "-m", "tests.pipeline.jobs.project", json.dumps(arguments)]
    done = subprocess.run(
        command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=400
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.returncode


@pytest.mark.parametrize("do", ["run", "live"])
def test_a_driver_killed_again_and_again(start: Start, log: Log, url: str, do: str) -> None:
    """I2: wherever it dies, each event counts once; the end equals a rebuild and a plain fold."""
    fill(log, 90)
    job = start(seats, batch_events=20)
    reached = []
    for number, point in enumerate(("before", "inside", "after")):
        died = driver(url=url, do=do, point=point, commits=2 - number % 2, batch_events=20)
        assert died == -signal.SIGKILL
        status = job.status()
        assert status is not None
        reached.append(status.position)
        records = [record for record in log.read() if record.position <= status.position]
        assert stored_digest(job) == plain_digest(records, seats)
        fill(log, 10, start=log.head())

    assert reached == sorted(reached)
    assert reached[-1] > 0
    job.run(lease_s=2.0)
    assert stored_digest(job) == plain_digest(log.read(), seats)
    assert job.rebuild().equal


def test_a_rebuild_killed_in_the_middle(start: Start, log: Log, url: str) -> None:
    """I4: what a killed rebuild leaves behind harms nothing, and is gone after the next one."""
    fill(log, 60)
    job = start(seats)
    job.run()
    before = stored_digest(job)
    assert driver(url=url, do="rebuild", point="inside") == -signal.SIGKILL

    assert stored_digest(job) == before
    fill(log, 10, start=60)
    job.run()
    with job.model.engine.transaction() as session:  # do not wait for the dead one's lease
        session.run(f"update {job.model.engine.at}seriatim_projections set expires_us = 0")
    assert job.rebuild().equal
    assert job.model.progress("seats", shadow=True) is None
    assert stored_digest(job) == plain_digest(log.read(), seats)
