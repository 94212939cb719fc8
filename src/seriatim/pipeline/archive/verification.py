"""Verification of an archive against its seals and against the log, one task per segment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import msgspec
from pyspark.sql import SparkSession

from seriatim.config import Settings
from seriatim.core.errors import BackendFailure, LogIdentityChanged
from seriatim.factory import open_store
from seriatim.pipeline.archive.catalog import Archive, open_archive
from seriatim.pipeline.archive.manifest import Segment
from seriatim.pipeline.archive.segment_tasks import ArchiveProblem, check_segment, run_tasks
from seriatim.pipeline.object_storage import ObjectStorage, open_storage

Progress = Callable[[int, int], None]


class ArchiveVerificationReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification.

    Attributes:
        segments: The number of segments that were compared.
        end: The last sealed position.
        digest: The digest of all sealed events, as the seals state it.
        problems: All problems, in the order of positions.
    """

    segments: int
    end: int
    digest: str
    problems: list[ArchiveProblem]

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def verify_archive(
    spark: SparkSession,
    url: str | None,
    at: str | ObjectStorage,
    *,
    progress: Progress | None = None,
) -> ArchiveVerificationReport:
    """Read every segment again and compare it with its seal and with the log.

    Args:
        spark: A session.
        url: The URL of the log; None compares the archive only with its own seals.
        at: The location of the archive.
        progress: Called after each segment with its last position and the last sealed position.

    Returns:
        A report whose `problems` list all damage.

    Raises:
        NotFound: There is no archive.
        LogIdentityChanged: The archive belongs to another log.

    Example:
        report = verify_archive(spark, "sqlite:///app.db", "/backups/orders")
        assert report.ok, report.problems
    """
    storage = open_storage(at)
    try:
        archive = open_archive(storage)
    except BackendFailure as error:
        if error.retryable:
            raise
        problem = ArchiveProblem(error.message, str(error.details.get("name", "")))
        return ArchiveVerificationReport(segments=0, end=0, digest="", problems=[problem])
    problems: list[ArchiveProblem] = []
    if url is not None:
        problems += _check_identity(url, archive)
    problems += compare_segments(
        spark, None if problems else url, storage, archive.segments, progress
    )
    return ArchiveVerificationReport(
        segments=len(archive.segments),
        end=archive.end,
        digest=archive.digest,
        problems=problems,
    )


def _check_identity(url: str, archive: Archive) -> list[ArchiveProblem]:
    """Raise for another log; return a problem if this log has lost archived events."""
    with closing(open_store(url, Settings(), create=False)) as store:
        log_id, head = store.identity().log_id, store.head()
    if log_id != archive.log_id:
        msg = f"the archive belongs to another log ({archive.log_id}), not to {log_id}"
        raise LogIdentityChanged(msg, details={"archived": archive.log_id, "log_id": log_id})
    if head < archive.end:
        return [
            ArchiveProblem(
                f"the archive ends at {archive.end}, the log at {head}", position=head + 1
            )
        ]
    return []


def compare_segments(
    spark: SparkSession,
    url: str | None,
    storage: ObjectStorage,
    segments: Sequence[Segment],
    progress: Progress | None = None,
) -> list[ArchiveProblem]:
    """Compare segments with their seals and, with a URL, every event with the log's.

    Args:
        spark: A session.
        url: The URL of the log, or None.
        storage: The storage of the archive.
        segments: The segments to compare.
        progress: Called after each segment with its last position and that of the last segment.

    Returns:
        The problems, in the order of positions.
    """
    found_problems: list[ArchiveProblem] = []
    check = partial(check_segment, storage, url)
    for segment, problems in zip(segments, run_tasks(spark, check, segments), strict=True):
        found_problems += problems
        if progress is not None:
            progress(segment.last, segments[-1].last)
    return found_problems
