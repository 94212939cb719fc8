"""Runs jobs in one driver and kills it with SIGKILL when each has reached a given point."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
END_S = 300.0


def describe_job(name: str, point: str, *arguments: Any, **options: object) -> dict[str, Any]:
    """Return the description of a copy job and its crash point."""
    return {"job": name, "point": point, "arguments": arguments, "options": options}


def kill_at_points(*jobs: dict[str, Any]) -> None:
    """Run jobs in a driver until each has reached its point and the driver is killed."""
    with tempfile.TemporaryFile() as stderr:
        with run_driver(*jobs, stderr=stderr) as process:
            code = process.wait(END_S)
        stderr.seek(0)
        assert code == -signal.SIGKILL, stderr.read()[-4000:].decode(errors="replace")


@contextmanager
def run_driver(
    *jobs: dict[str, Any], stderr: Any = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """Run jobs in a driver, which is killed with all its child processes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.jobs.crash_points", json.dumps(jobs)],
        cwd=ROOT,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_S)
