"""A projection of seats that takes a while, and leaves marks where it is folded."""

import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from seriatim import EventRecord
from seriatim.core.projection import Projection, projection
from seriatim.pipeline.project.projector import Projector
from tests.pipeline.project.kit import SEAT, seat


def slow_seats(marks: str, seconds: float) -> Projection:
    """Declare seats whose fold leaves a mark and takes a while, once in each task."""
    seen: set[int] = set()

    def apply(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any] | None:
        if os.getpid() not in seen:
            seen.add(os.getpid())
            Path(marks, str(os.getpid())).touch()
            time.sleep(seconds)
        return seat(state, event)

    return projection("seats", key="stream_id", events=["seat.*"], columns=SEAT)(apply)


def main(
    spark: SparkSession, url: str, do: str, marks: str, seconds: float
) -> dict[str, int | str | bool]:
    """Catch up or rebuild; return where it ended."""
    with Projector(spark, slow_seats(marks, seconds), url) as job:
        if do == "run":
            return {"position": job.run().position}
        proof = job.rebuild()
        return {"position": proof.position, "digest": proof.digest, "equal": proof.equal}
