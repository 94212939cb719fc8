"""How far one long Spark job has come, told while it runs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark import SparkContext, StatusTracker
from pyspark.sql import SparkSession

_GLANCE_S = 0.5
_GROUP = "spark.jobGroup.id"


@contextmanager
def watched(spark: SparkSession, tell: Callable[[float], None], stages: int) -> Iterator[None]:
    """Tell again and again which share of the tasks that the block starts is done.

    Spark knows of a stage only when it begins; so many will come at least, each an equal part of
    the work.
    """
    context, group = spark.sparkContext, f"seriatim-{uuid.uuid4().hex}"
    before = context.getLocalProperty(_GROUP)
    context.setLocalProperty(_GROUP, group)
    done = threading.Event()
    watcher = threading.Thread(
        target=_watch, args=(context, group, done, tell, stages), name="progress", daemon=True
    )
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        context.setLocalProperty(_GROUP, before)  # type: ignore[arg-type] # None takes it away


def _watch(
    context: SparkContext,
    group: str,
    done: threading.Event,
    tell: Callable[[float], None],
    stages: int,
) -> None:
    tracker, told = context.statusTracker(), 0.0
    while not done.wait(_GLANCE_S):
        share = _share(tracker, group, stages)
        if share > told:
            told = share
            tell(share)


def _share(tracker: StatusTracker, group: str, stages: int) -> float:
    """Return the mean over stages of the share of their tasks that is done."""
    jobs = (tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group))
    known = {stage for job in jobs if job is not None for stage in job.stageIds}
    infos = [info for info in map(tracker.getStageInfo, sorted(known)) if info is not None]
    shares = [info.numCompletedTasks / max(1, info.numTasks) for info in infos]
    return sum(shares) / max(stages, len(shares))
