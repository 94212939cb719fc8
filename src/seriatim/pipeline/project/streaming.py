"""The live part of a run: a Spark stream whose batches go through one function."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame

from seriatim.pipeline.failures import SPARK_ERRORS, failure_of, quiet_spark
from seriatim.pipeline.project import frames
from seriatim.pipeline.project.job import SMALL_EVENTS, Job

Apply = Callable[[DataFrame, int], int]


class Stream:
    """A stream of a projection's events from a position on.

    Its checkpoint holds Spark's own notes; what counts is the cursor in the read model, so the
    folder may be lost, old, or one that is thrown away.
    """

    def __init__(self, job: Job, position: int, apply: Apply, checkpoint: str | None) -> None:
        self._position = position
        self._apply = apply
        self._raised: BaseException | None = None
        self._given = checkpoint is not None
        self._folder = Path(checkpoint or tempfile.mkdtemp(prefix="seriatim-checkpoint-"))
        reader = job.spark.readStream.format("seriatim").options(
            **job.options,
            startingPosition=str(position),
            maxEventsPerBatch=str(min(job.batch_events, SMALL_EVENTS)),
            marks="true",
        )
        events = reader.load()
        if not job.projection.is_frame:
            events = frames.ready(events, job.projection)
        self._query = (
            events.writeStream.foreachBatch(self._batch)
            .queryName(f"seriatim_{job.projection.name}_{time.monotonic_ns()}")
            .option("checkpointLocation", str(self._folder))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()
        if not self._given:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _batch(self, given: DataFrame, _batch_id: int) -> None:
        # Spark keeps only the text of what is raised here. Its batch ids begin at 0 with a new
        # checkpoint, so the position alone guards against applying a batch twice.
        try:
            with quiet_spark():  # in a thread of Spark's
                self._position = self._apply(given, self._position)
        except BaseException as error:
            self._raised = error
            raise

    def ended(self, within_s: float) -> bool:
        """Wait a while; tell whether the stream has ended, or raise what ended it."""
        try:
            return bool(self._query.awaitTermination(within_s))  # type: ignore[arg-type]
        except SPARK_ERRORS as error:
            # Spark's own words for what a batch raised are only a copy of it.
            raised = error if self._raised is None else self._raised
            if isinstance(raised, SPARK_ERRORS):
                raise failure_of(raised) from None
            raise raised from None
