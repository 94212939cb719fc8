"""A slow projection that leaves marker files for the tasks that fold it."""

import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from seriatim import EventRecord
from seriatim.core.projection import Projection, projection
from seriatim.pipeline.project.projector import Projector
from tests.pipeline.project.support import SEAT, count_seats


def slow_seats(marks: str, seconds: float) -> Projection:
    """Declare a projection whose fold writes a marker and sleeps, once in each task."""
    seen: set[int] = set()

    def apply(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any] | None:
        if os.getpid() not in seen:
            seen.add(os.getpid())
            Path(marks, str(os.getpid())).touch()
            time.sleep(seconds)
        return count_seats(state, event)

    return projection("seats", key="stream_id", events=["seat.*"], columns=SEAT)(apply)


def main(
    spark: SparkSession, url: str, do: str, marks: str, seconds: float
) -> dict[str, int | str | bool]:
    """Catch up or rebuild; return the final position."""
    with Projector(spark, slow_seats(marks, seconds), url) as job:
        if do == "run":
            return {"position": job.run().position}
        proof = job.rebuild()
        return {"position": proof.position, "digest": proof.digest, "equal": proof.equal}
