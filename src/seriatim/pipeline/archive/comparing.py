"""Comparing an archive with its seals and with the log, a task for each segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import msgspec
from pyspark.sql import SparkSession

from seriatim.config import Settings
from seriatim.core.errors import BackendFailure, LogIdentityChanged
from seriatim.opening import open_store
from seriatim.pipeline.archive.catalog import Archive, open_archive
from seriatim.pipeline.archive.place import Place, open_place
from seriatim.pipeline.archive.seals import Segment
from seriatim.pipeline.archive.tasks import Problem, check_segment, on_spark

Progress = Callable[[int, int], None]


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was compared, and what is wrong with it, in the order of positions."""

    segments: int
    end: int
    digest: str
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def verify_archive(
    spark: SparkSession,
    url: str | None,
    at: str | Place,
    *,
    progress: Progress | None = None,
) -> VerifyReport:
    """Read every segment again and compare it with its seal and each event with the log's.

    Without a URL of a log the archive is only compared with itself.
    """
    place = open_place(at)
    try:
        archive = open_archive(place)
    except BackendFailure as error:
        if error.retryable:
            raise
        problem = Problem(error.message, str(error.details.get("name", "")))
        return VerifyReport(segments=0, end=0, digest="", problems=[problem])
    problems: list[Problem] = []
    if url is not None:
        problems += _check_identity(url, archive)
    problems += compare(spark, None if problems else url, place, archive.segments, progress)
    return VerifyReport(
        segments=len(archive.segments),
        end=archive.end,
        digest=archive.digest,
        problems=problems,
    )


def _check_identity(url: str, archive: Archive) -> list[Problem]:
    """Refuse another log; say whether this one has lost part of what is archived."""
    with closing(open_store(url, Settings(), create=False)) as store:
        log_id, head = store.identity().log_id, store.head()
    if log_id != archive.log_id:
        msg = f"this is the archive of log {archive.log_id}, not of {log_id}"
        raise LogIdentityChanged(msg, details={"archived": archive.log_id, "log_id": log_id})
    if head < archive.end:
        return [Problem(f"the archive ends at {archive.end}, the log at {head}", position=head + 1)]
    return []


def compare(
    spark: SparkSession,
    url: str | None,
    place: Place,
    segments: Sequence[Segment],
    progress: Progress | None = None,
) -> list[Problem]:
    """Return what is wrong with segments, by themselves and against a log."""
    found: list[Problem] = []
    act = partial(check_segment, place, url)
    for segment, problems in zip(segments, on_spark(spark, act, segments), strict=True):
        found += problems
        if progress is not None:
            progress(segment.last, segments[-1].last)
    return found
