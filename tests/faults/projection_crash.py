"""Run a projection on the local engine, and die by SIGKILL at a point of a given commit."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import seriatim
from seriatim.runs.projection_job import Ended, ModelLease
from tests.pipeline.project.local_job import LocalJob
from tests.pipeline.project.support import fill, seats

LIVE_EVENTS = 30


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


class _DoomedJob(LocalJob):
    """A job that dies before, inside or after its n-th commit."""

    crash: tuple[str, int] | None = None  # where to die while following the log

    def follow(
        self, position: int, lease: ModelLease, report: Callable[[int], None], ended: Ended
    ) -> None:
        """Append events when the run has caught up, and count the commits from there."""
        if self.crash is not None:
            self.doom(*self.crash)
            with seriatim.open(self.url) as log:
                fill(log, LIVE_EVENTS, start=log.head())
        super().follow(position, lease, report, ended)

    def doom(self, point: str, commits: int) -> None:
        """Arm the crash: from now on, count commits."""
        model: Any = self.model
        if point == "inside":  # all rows are written, and nothing is committed
            model.write = _die_at(model.write, commits, after=True)
        else:
            model.commit = _die_at(model.commit, commits, after=point == "after")


def _die_at(act: Callable[..., Any], nth: int, *, after: bool) -> Callable[..., Any]:
    calls = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and not after:
            die()
        result = act(*arguments, **options)
        if calls == nth:
            die()
        return result

    return counted


def main(url: str, way: str, point: str, commits: int) -> None:
    """Catch up, follow or rebuild until the crash."""
    with _DoomedJob(seats, url, batch_events=20) as job:
        if way == "live":
            job.crash = point, commits
            job.run(live=True, lease_s=2.0)
        job.doom(point, commits)
        if way == "rebuild":
            job.rebuild()
        job.run(lease_s=2.0)
    raise SystemExit("the run ended before its crash point")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
