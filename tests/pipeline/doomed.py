"""Jobs that are killed -9 at their points, all in one driver."""

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


def job(name: str, point: str, *arguments: Any, **options: Any) -> dict[str, Any]:
    """Describe a job that copies a log, and the point at which it is to die."""
    return {"job": name, "point": point, "arguments": arguments, "options": options}


def kill_at_points(*jobs: dict[str, Any]) -> None:
    """Do the jobs in a driver of their own until each is at its point, and the driver killed."""
    with tempfile.TemporaryFile() as said:
        with driver(*jobs, stderr=said) as process:
            code = process.wait(END_S)
        said.seek(0)
        assert code == -signal.SIGKILL, said.read()[-4000:].decode(errors="replace")


@contextmanager
def driver(
    *jobs: dict[str, Any], stderr: Any = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """Do the jobs in a driver of their own, which is killed with all that it started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.jobs.doomed", json.dumps(jobs)],
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
