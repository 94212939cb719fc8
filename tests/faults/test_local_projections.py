"""The local engine under kill -9: before, inside and after the transaction of a batch (I2, I4)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seriatim import Log
from tests.pipeline.project.local_job import LocalJob
from tests.pipeline.project.support import digest_in_python, fill, seats, stored_digest

ROOT = Path(__file__).parents[2]
POINTS = ("before", "inside", "after")


@pytest.fixture
def job(url: str, log: Log) -> Iterator[LocalJob]:
    """The projection of seats."""
    with LocalJob(seats, url, batch_events=20) as opened:
        yield opened


def kill_at(url: str, way: str, point: str, commits: int) -> None:
    """Run a projection in a process of its own until it kills itself."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.projection_crash", url, way, point, str(commits)],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr[-4000:].decode(errors="replace")


def check_stored(job: LocalJob, log: Log) -> int:
    """Check that the tables equal a fold up to their position, and return the position."""
    status = job.status()
    assert status is not None
    records = [record for record in log.read() if record.position <= status.position]
    assert stored_digest(job) == digest_in_python(records, seats)
    return status.position


def test_repeatedly_killed_catch_ups(url: str, log: Log, job: LocalJob) -> None:
    """I2: after kills at each point every event counts once, as in a rebuild and a plain fold."""
    fill(log, 90)
    reached = []
    for number, point in enumerate(POINTS):
        kill_at(url, "run", point, 2 - number % 2)
        reached.append(check_stored(job, log))
        fill(log, 10, start=log.head())

    assert reached == [20, 20, 60]
    job.run(lease_s=2.0)
    assert check_stored(job, log) == log.head()
    assert job.rebuild().equal


def test_repeatedly_killed_followers(url: str, log: Log, job: LocalJob) -> None:
    """I2: a follower that is killed in live batches counts every event once."""
    fill(log, 30)
    for point in POINTS:
        kill_at(url, "live", point, 1)
        check_stored(job, log)

    job.run(lease_s=2.0)
    assert check_stored(job, log) == 120
    assert job.verify().equal


@pytest.mark.parametrize("point", POINTS)
def test_killed_rebuilds(url: str, log: Log, job: LocalJob, point: str) -> None:
    """I4: remains of a killed rebuild are harmless and removed by the next one."""
    fill(log, 60)
    job.run()
    before = stored_digest(job)
    kill_at(url, "rebuild", point, 2)

    assert stored_digest(job) == before
    fill(log, 10, start=60)
    job.run()
    with job.model.engine.transaction() as session:  # the killed lease has not expired
        session.run(
            f"update {job.model.engine.schema_prefix}seriatim_projections set expires_us = 0"
        )
    assert job.rebuild().equal
    assert job.model.progress("seats", shadow=True) is None
    assert check_stored(job, log) == 70
