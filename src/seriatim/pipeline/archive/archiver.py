"""Archiver: copies the log to sealed segments; idempotent, restartable, safe to run concurrently.

Spark tasks write the files and read them back. The driver seals them in order by conditional
puts, of which only the first archiver's succeeds at each position. A file without a seal is not
part of the archive. It is removed once its range is sealed, after which it cannot be sealed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

import msgspec
from pyspark.sql import SparkSession

from seriatim.config import Settings
from seriatim.core.errors import BackendFailure, InvalidArgument, LogIdentityChanged, NotFound
from seriatim.core.event import LogIdentity
from seriatim.factory import open_store
from seriatim.pipeline.archive.catalog import Archive, open_archive
from seriatim.pipeline.archive.manifest import (
    HEADER_NAME,
    ArchivedDeclarations,
    ArchiveHeader,
    ComparedEpoch,
    Segment,
    decode_segment,
    encode_entry,
    parse_first_position,
)
from seriatim.pipeline.archive.segment_tasks import PositionRange, run_tasks, write_segment
from seriatim.pipeline.archive.verification import compare_segments
from seriatim.pipeline.digest import add_digests, format_digest, parse_digest
from seriatim.pipeline.object_storage import ObjectStorage, open_storage
from seriatim.store.port import Store

SEGMENT_EVENTS = 500_000

Progress = Callable[[int, int], None]


class ArchiveReport(msgspec.Struct, kw_only=True):
    """The result of a run.

    Attributes:
        end: The last sealed position.
        head: The last position of the log.
        digest: The digest of all sealed events.
        sealed: The segments that this run sealed.
        sealed_by_others: How often a concurrent archiver sealed a position first.
        removed: The number of leftover files that were removed.
    """

    end: int
    head: int
    digest: str
    sealed: list[Segment] = []
    sealed_by_others: int = 0
    removed: int = 0

    @property
    def events(self) -> int:
        """The number of events that this run sealed."""
        return sum(segment.count for segment in self.sealed)


def archive(
    spark: SparkSession,
    url: str,
    to: str | ObjectStorage,
    *,
    until: int | None = None,
    segment_events: int = SEGMENT_EVENTS,
    seal_tail: bool = False,
    progress: Progress | None = None,
) -> ArchiveReport:
    """Copy the log's events after the last sealed position to new sealed segments.

    Segments end at multiples of `segment_events`. Events after the last multiple stay for a later
    run, unless `seal_tail` seals them in a shorter segment; the next segment then ends at the
    next multiple. Sealed segments are never written again.

    Args:
        spark: A session.
        url: The URL of the log.
        to: The location of the archive: a path, `file:///path` or `s3://bucket/prefix`.
        until: The last position to archive; by default the head.
        segment_events: The number of events in a full segment.
        seal_tail: Whether to seal the end of the log in a shorter segment.
        progress: Called after each sealed segment with its last position and the target.

    Raises:
        InvalidArgument: `segment_events` or the location is invalid.
        LogIdentityChanged: The archive belongs to another log, or the log was restored.
        BackendFailure: The database or the storage failed.

    Example:
        report = archive(spark, "sqlite:///app.db", "/backups/orders", seal_tail=True)
    """
    if segment_events < 1:
        msg = "segment_events must be at least 1"
        raise InvalidArgument(msg, details={"argument": "segment_events"})
    storage = open_storage(to)
    with closing(open_store(url, Settings(), create=False)) as store:
        run = _ArchiveRun(spark, url, storage, store)
        run.begin()
        head = store.head()
        target = head if until is None else min(head, until)
        while spans := _plan_spans(run.archive.end, target, segment_events, seal_tail=seal_tail):
            run.write(spans, target, progress)
        run.clean()
        run.report.head = head
    return run.report


def _plan_spans(end: int, target: int, size: int, *, seal_tail: bool) -> list[PositionRange]:
    """Split the range (end, target] at the multiples of a segment's size."""
    spans: list[PositionRange] = []
    while end < target:
        last = (end // size + 1) * size
        if last > target and not seal_tail:
            break
        spans.append(PositionRange(end + 1, min(last, target)))
        end = spans[-1].last
    return spans


class _ArchiveRun:
    """One run of the archiver: the log, the last known state of the archive, and the report."""

    def __init__(self, spark: SparkSession, url: str, storage: ObjectStorage, store: Store) -> None:
        self._spark = spark
        self._url = url
        self._storage = storage
        self._store = store
        self._identity = store.identity()
        self.archive = Archive(log_id="", epoch=0, segments=())
        self.report = ArchiveReport(end=0, head=0, digest=format_digest(0))

    def begin(self) -> None:
        """Open or create the archive, and check that it belongs to this log.

        Raises:
            LogIdentityChanged: It belongs to another log, or is not the past of this one.
        """
        try:
            self._reopen()
        except NotFound:
            self._storage.put_if_absent(
                HEADER_NAME, encode_entry(ArchiveHeader(log_id=self._identity.log_id))
            )
            self._reopen()
        end = self.archive.end
        if end and self.archive.log_id == self._identity.log_id:
            self._compare_new_epoch()
        event_id = self._store.event_id_at(end) if end else ""
        identity, head = self._identity, self._store.head()
        self.archive.check_log(identity.log_id, identity.epoch, head, event_id)
        self.clean()

    def _compare_new_epoch(self) -> None:
        """If the log was restored or promoted, compare the whole archive with it (F8)."""
        identity = self._identity
        if identity.epoch == self.archive.epoch or self._store.head() < self.archive.end:
            return
        problems = compare_segments(self._spark, self._url, self._storage, self.archive.segments)
        if problems:
            msg = (
                f"the archive of epoch {self.archive.epoch} is not the past of the log, now in "
                f"epoch {identity.epoch}: {problems[0].message}; archive the log to a new location"
            )
            details = {"position": problems[0].position, "epoch": identity.epoch}
            raise LogIdentityChanged(msg, details=details)
        record = ComparedEpoch(epoch=identity.epoch, last=self.archive.end)
        self._storage.put_if_absent(record.name, encode_entry(record))
        self._reopen()

    def _reopen(self) -> None:
        self.archive = open_archive(self._storage)
        self.report.end = self.archive.end
        self.report.digest = self.archive.digest

    def write(self, spans: list[PositionRange], target: int, progress: Progress | None) -> None:
        """Write segments and seal them in order, until a concurrent archiver interferes."""
        try:
            self._write(spans, target, progress)
        except (BackendFailure, NotFound):
            # A faster archiver removes files that can no longer be sealed, also this run's. If it
            # has sealed further positions, that explains the failure, and this run goes on there.
            sealed_end = self.report.end
            self._reopen()
            if self.archive.end <= sealed_end:
                raise
            self.report.sealed_by_others += 1
        self._reopen()

    def _write(self, spans: list[PositionRange], target: int, progress: Progress | None) -> None:
        write = partial(write_segment, self._url, self._storage, self._identity)
        declared = _read_declarations(self._store)
        # Files are written in parallel, but sealed one by one in order, so that no crash leaves a
        # gap between seals.
        for draft in run_tasks(self._spark, write, spans):
            self._check_same_log(draft)
            total = add_digests((parse_digest(self.report.digest), parse_digest(draft.digest)))
            segment = msgspec.structs.replace(draft, total=format_digest(total), declared=declared)
            sealed = self._seal(segment)
            if sealed.last != segment.last:
                break  # another archiver uses other segment sizes: read its seals and plan again
            self.report.end, self.report.digest = sealed.last, sealed.total
            if progress is not None:
                progress(sealed.last, target)

    def _seal(self, segment: Segment) -> Segment:
        """Seal a segment unless another archiver was first, and return the seal in force.

        Raises:
            LogIdentityChanged: Another archiver sealed other events at the same positions.
        """
        data = encode_entry(segment)
        # If the response to a put was lost, its retry finds the seal: it may be this run's own.
        if (
            self._storage.put_if_absent(segment.seal_name, data)
            or self._storage.read(segment.seal_name) == data
        ):
            self.report.sealed.append(segment)
            return segment
        self._storage.remove(segment.file)
        self.report.sealed_by_others += 1
        sealed = decode_segment(self._storage.read(segment.seal_name), segment.seal_name)
        if sealed.last == segment.last and sealed.total != segment.total:
            msg = f"another archiver sealed other events from position {segment.first}"
            raise LogIdentityChanged(msg, details={"position": segment.first})
        return sealed

    def _check_same_log(self, draft: Segment) -> None:
        """Raise `LogIdentityChanged` if the log was replaced while tasks were reading it."""
        identity: LogIdentity = self._store.identity()
        if identity != self._identity or self._store.event_id_at(draft.last) != draft.last_event_id:
            msg = (
                "the log was restored or replaced while it was archived: run seriatim archive again"
            )
            raise LogIdentityChanged(msg, details={"position": draft.last})

    def clean(self) -> None:
        """Remove files without a seal whose range is sealed, so that they are never sealed."""
        sealed = {segment.file for segment in self.archive.segments}
        for name in self._storage.list_names("segments"):
            first = parse_first_position(name)
            if first is not None and first <= self.archive.end and name not in sealed:
                self._storage.remove(name)
                self.report.removed += 1


def _read_declarations(store: Store) -> ArchivedDeclarations:
    rules = store.rules()
    return ArchivedDeclarations(
        kinds=rules.declared_kinds,
        types=list(rules.types.values()),
        indexes=list(rules.indexes),
    )
