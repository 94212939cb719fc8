"""Copying the log to sealed segments: idempotent, restartable, by any number of archivers at once.

Tasks write and re-read the files; this process seals them in order, by puts that only the first
archiver at a position succeeds with. A file without a seal is nothing: it is removed once its
range is sealed, when nobody can seal it any more.
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
from seriatim.core.kinds import BUILT_IN_KINDS
from seriatim.opening import open_store
from seriatim.pipeline.archive.catalog import Archive, open_archive
from seriatim.pipeline.archive.comparing import compare
from seriatim.pipeline.archive.place import Place, open_place
from seriatim.pipeline.archive.seals import (
    HEADER,
    Declared,
    Epoch,
    Header,
    Segment,
    decoded_segment,
    encoded,
    first_of,
)
from seriatim.pipeline.archive.tasks import Span, on_spark, write_segment
from seriatim.pipeline.digest import added, digest_number, digest_text
from seriatim.store.port import Store

SEGMENT_EVENTS = 500_000

Progress = Callable[[int, int], None]


class ArchiveReport(msgspec.Struct, kw_only=True):
    """What a run did: where the archive ends now, and what of it was sealed here or by others."""

    end: int
    head: int
    digest: str
    sealed: list[Segment] = []
    sealed_by_others: int = 0
    removed: int = 0

    @property
    def events(self) -> int:
        """How many events this run has sealed."""
        return sum(segment.count for segment in self.sealed)


def archive(  # noqa: PLR0913 - what, where to, how much
    spark: SparkSession,
    url: str,
    to: str | Place,
    *,
    until: int | None = None,
    segment_events: int = SEGMENT_EVENTS,
    seal_tail: bool = False,
    progress: Progress | None = None,
) -> ArchiveReport:
    """Copy the log's events behind the last sealed position to further sealed segments.

    Segments end at multiples of `segment_events`; what lies behind the last such position waits
    for a later run, or is sealed as a shorter segment with `seal_tail`; the next one then ends at
    the same multiple. Sealed segments are never written again.
    """
    if segment_events < 1:
        msg = "segment_events must be at least 1"
        raise InvalidArgument(msg, details={"argument": "segment_events"})
    place = open_place(to)
    with closing(open_store(url, Settings(), create=False)) as store:
        run = _Run(spark, url, place, store)
        run.begin()
        head = store.head()
        target = head if until is None else min(head, until)
        while spans := _spans(run.archive.end, target, segment_events, seal_tail=seal_tail):
            run.write(spans, target, progress)
        run.clean()
        run.report.head = head
    return run.report


def _spans(end: int, target: int, size: int, *, seal_tail: bool) -> list[Span]:
    """Cut what is to be sealed at the multiples of a segment's size."""
    spans: list[Span] = []
    while end < target:
        last = (end // size + 1) * size
        if last > target and not seal_tail:
            break
        spans.append(Span(end + 1, min(last, target)))
        end = spans[-1].last
    return spans


class _Run:
    """One run of an archiver: the log, the archive as far as it is known, and the report."""

    def __init__(self, spark: SparkSession, url: str, place: Place, store: Store) -> None:
        self._spark = spark
        self._url = url
        self._place = place
        self._store = store
        self._identity = store.identity()
        self.archive = Archive(log_id="", epoch=0, segments=())
        self.report = ArchiveReport(end=0, head=0, digest=digest_text(0))

    def begin(self) -> None:
        """Open the archive or begin one, and make sure that it is this log's."""
        try:
            self._reopen()
        except NotFound:
            self._place.create(HEADER, encoded(Header(log_id=self._identity.log_id)))
            self._reopen()
        end = self.archive.end
        if end and self.archive.log_id == self._identity.log_id:
            self._accept_epoch()
        tip = self._store.event_id_at(end) if end else ""
        self.archive.check_log(self._identity.log_id, self._identity.epoch, self._store.head(), tip)
        self.clean()

    def _accept_epoch(self) -> None:
        """After a restore or a promotion, compare everything before going on (F8)."""
        identity = self._identity
        if identity.epoch == self.archive.epoch or self._store.head() < self.archive.end:
            return
        problems = compare(self._spark, self._url, self._place, self.archive.segments)
        if problems:
            msg = (
                f"the log is in epoch {identity.epoch}, the archive of epoch {self.archive.epoch} "
                f"is not its past: {problems[0].message}; archive it anew, to another place"
            )
            details = {"position": problems[0].position, "epoch": identity.epoch}
            raise LogIdentityChanged(msg, details=details)
        mark = Epoch(epoch=identity.epoch, last=self.archive.end)
        self._place.create(mark.name, encoded(mark))
        self._reopen()

    def _reopen(self) -> None:
        self.archive = open_archive(self._place)
        self.report.end = self.archive.end
        self.report.digest = self.archive.digest

    def write(self, spans: list[Span], target: int, progress: Progress | None) -> None:
        """Write segments and seal them in order, until another archiver did otherwise."""
        try:
            self._write(spans, target, progress)
        except (BackendFailure, NotFound):
            # Another archiver that was faster removes what cannot be sealed any more.
            done = self.report.end
            self._reopen()
            if self.archive.end <= done:
                raise
            self.report.sealed_by_others += 1
        self._reopen()

    def _write(self, spans: list[Span], target: int, progress: Progress | None) -> None:
        act = partial(write_segment, self._url, self._place, self._identity)
        declared = _declared(self._store)
        for draft in on_spark(self._spark, act, spans):
            self._check_same_log(draft)
            total = added((digest_number(self.report.digest), digest_number(draft.digest)))
            segment = msgspec.structs.replace(draft, total=digest_text(total), declared=declared)
            there = self._seal(segment)
            if there.last != segment.last:
                break  # sealed by another in other pieces: look anew
            self.report.end, self.report.digest = there.last, there.total
            if progress is not None:
                progress(there.last, target)

    def _seal(self, segment: Segment) -> Segment:
        """Seal a segment unless another archiver was first; return the seal that holds."""
        data = encoded(segment)
        # Of a put whose answer was lost, the repetition finds the seal there: it may be this one.
        if self._place.create(segment.name, data) or self._place.read(segment.name) == data:
            self.report.sealed.append(segment)
            return segment
        self._place.remove(segment.file)
        self.report.sealed_by_others += 1
        there = decoded_segment(self._place.read(segment.name), segment.name)
        if there.last == segment.last and there.total != segment.total:
            msg = f"another archiver sealed other events from position {segment.first}"
            raise LogIdentityChanged(msg, details={"position": segment.first})
        return there

    def _check_same_log(self, draft: Segment) -> None:
        """Seal nothing of a log that was replaced under the tasks' reading."""
        now: LogIdentity = self._store.identity()
        if now != self._identity or self._store.event_id_at(draft.last) != draft.tip:
            msg = "the log was restored or replaced while it was archived; start again"
            raise LogIdentityChanged(msg, details={"position": draft.last})

    def clean(self) -> None:
        """Remove files that were written and never sealed, where nobody can seal them any more."""
        sealed = {segment.file for segment in self.archive.segments}
        for name in self._place.names("segments"):
            first = first_of(name)
            if first is not None and first <= self.archive.end and name not in sealed:
                self._place.remove(name)
                self.report.removed += 1


def _declared(store: Store) -> Declared:
    rules = store.rules()
    return Declared(
        kinds=[kind for kind in rules.kinds.values() if kind not in BUILT_IN_KINDS],
        types=list(rules.types.values()),
        indexes=list(rules.indexes),
    )
