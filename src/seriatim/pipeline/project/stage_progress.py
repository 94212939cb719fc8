"""Report the completed fraction of the Spark stages that a block starts."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark import SparkContext, StatusTracker
from pyspark.sql import SparkSession

_POLL_S = 0.5
_GROUP = "spark.jobGroup.id"


@contextmanager
def report_progress(
    spark: SparkSession, report: Callable[[float], None], stages: int
) -> Iterator[None]:
    """Report the completed fraction of the tasks that the block starts, twice a second.

    Args:
        spark: The session.
        report: Called from a thread with a number from 0 to 1, whenever it has grown.
        stages: How many stages to expect at least. Spark lists a stage only when it starts; each
            counts as an equal part of the work.

    """
    context, group = spark.sparkContext, f"seriatim-{uuid.uuid4().hex}"
    # Jobs are found by their group, which is a property of the submitting thread.
    before = context.getLocalProperty(_GROUP)
    context.setLocalProperty(_GROUP, group)
    done = threading.Event()
    watcher = threading.Thread(
        target=_watch_progress,
        args=(context, group, done, report, stages),
        name="progress",
        daemon=True,
    )
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        context.setLocalProperty(_GROUP, before)  # type: ignore[arg-type] # None removes it


def _watch_progress(
    context: SparkContext,
    group: str,
    done: threading.Event,
    report: Callable[[float], None],
    stages: int,
) -> None:
    tracker, reported = context.statusTracker(), 0.0
    while not done.wait(_POLL_S):
        fraction = _compute_completed_fraction(tracker, group, stages)
        if fraction > reported:
            reported = fraction
            report(fraction)


def _compute_completed_fraction(tracker: StatusTracker, group: str, stages: int) -> float:
    """Return the mean, over all stages, of the fraction of completed tasks."""
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    known = {stage for job in jobs if job is not None for stage in job.stageIds}
    infos = [info for info in map(tracker.getStageInfo, sorted(known)) if info is not None]
    fractions = [info.numCompletedTasks / max(1, info.numTasks) for info in infos]
    return sum(fractions) / max(stages, len(fractions))
