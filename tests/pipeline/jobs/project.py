"""A driver that projects seats, and dies where it is told to: near a commit."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from seriatim import EventRecord
from seriatim.core.projection import Projection, projection
from seriatim.pipeline.project.projector import Projector
from seriatim.pipeline.session import session
from seriatim.store.readmodel.model import ReadModel
from tests.pipeline.project.kit import SEAT, seat


def slow_seats(marks: str, seconds: float) -> Projection:
    """Declare seats whose fold leaves a mark and takes a while, once in each task."""
    seen: set[int] = set()

    def apply(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any] | None:
        if marks and os.getpid() not in seen:
            seen.add(os.getpid())
            Path(marks, str(os.getpid())).touch()
            time.sleep(seconds)
        return seat(state, event)

    return projection("seats", key="stream_id", events=["seat.*"], columns=SEAT)(apply)


def die_at(point: str, commits: int) -> None:
    """Kill this process at a point of the given commit, as nothing else would."""
    commit, write = ReadModel.commit, ReadModel.write
    left = [commits]

    def dying_commit(*args: Any, **options: Any) -> None:
        left[0] -= 1
        if left[0] == 0 and point == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        commit(*args, **options)
        if left[0] == 0 and point == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    def dying_write(*args: Any, **options: Any) -> None:
        write(*args, **options)
        if left[0] == 0 and point == "inside":
            os.kill(os.getpid(), signal.SIGKILL)

    ReadModel.commit, ReadModel.write = dying_commit, dying_write  # type: ignore[method-assign]


def main(
    url: str,
    do: str = "run",
    target: str | None = None,
    point: str = "",
    commits: int = 1,
    batch_events: int = 200_000,
    marks: str = "",
    seconds: float = 0.0,
    checkpoint: str | None = None,
    archive: str | None = None,
) -> None:
    """Run, follow live, rebuild or verify; print where it ended."""
    if point:
        die_at(point, commits)
    spark = session()
    made = slow_seats(marks, seconds)
    with Projector(
        spark, made, url, target=target, batch_events=batch_events, archive=archive
    ) as job:
        if do in ("run", "live"):
            progress = job.run(live=do == "live", lease_s=2.0, checkpoint=checkpoint)
            answer: Any = {"position": progress.position}
        else:
            proof = job.rebuild() if do == "rebuild" else job.verify()
            answer = {"position": proof.position, "digest": proof.digest, "equal": proof.equal}
    spark.stop()
    print(json.dumps(answer))  # noqa: T201 - its answer


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
