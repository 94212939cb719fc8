"""Restore of a log from an archive: the same events, positions, times and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from seriatim.core.errors import BackendFailure, Conflict
from seriatim.core.event import ENVELOPE_TEXTS
from seriatim.core.ids import event_key, idempotency_index_key, stream_key
from seriatim.core.indexes import term_keys
from seriatim.core.kinds import Declaration, Rules
from seriatim.core.request import PreparedEvent
from seriatim.core.times import parse_us
from seriatim.factory import Log, open_log
from seriatim.pipeline.archive.catalog import Archive, open_archive, read_segment
from seriatim.pipeline.archive.manifest import ArchivedDeclarations
from seriatim.pipeline.archive.segment_tasks import ArchiveProblem
from seriatim.pipeline.archive.verification import compare_segments
from seriatim.pipeline.columns import EVENT_COLUMNS
from seriatim.pipeline.object_storage import ObjectStorage, open_storage
from seriatim.store.port import RestoredEvent

GROUP_EVENTS = 2000
GROUP_BYTES = 4 * 1024 * 1024

Progress = Callable[[int, int], None]


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore.

    Attributes:
        log_id: The id of the restored log.
        epoch: The epoch of the restored log.
        head: The last position.
        digest: The digest of all events.
        restored: The number of events that this run restored.
        there: The number of events that the log had before, from an interrupted run.
    """

    log_id: str
    epoch: int
    head: int
    digest: str
    restored: int
    there: int


def restore(
    spark: SparkSession, at: str | ObjectStorage, to_url: str, *, progress: Progress | None = None
) -> RestoreReport:
    """Restore an archive into a log that is empty or has the first events of the archive.

    The next run continues an interrupted one. The log keeps its own id, so consumers of the
    archived log notice the change and stop; if the log is the archived one itself, its epoch is
    raised instead. At the end, every event is compared with the archive.

    Args:
        spark: A session.
        at: The location of the archive.
        to_url: The URL of the log, which is created if it does not exist.
        progress: Called after each batch with the stored position and the last position.

    Raises:
        NotFound: There is no archive.
        Conflict: The log has other events than the archive.
        BackendFailure: The archive is damaged, or the restored log differs from it.

    Example:
        report = restore(spark, "/backups/orders", "sqlite:///restored.db")
    """
    storage = open_storage(at)
    archive = open_archive(storage)
    _raise_first(compare_segments(spark, None, storage, archive.segments), "is damaged")
    with closing(open_log(to_url)) as log:
        head = log.store.head()
        _check_existing(log, storage, archive, head)
        _RestoreRun(log, archive, head).run(_read_events(storage, archive, head), progress)
        # A restored log gets an id of its own. The archived log itself keeps its id, and gets
        # another epoch, so that no cursor from before the restore continues.
        identity = log.store.identity()
        if identity.log_id == archive.log_id and archive.end > head:
            identity = log.store.raise_epoch()
    _raise_first(
        compare_segments(spark, to_url, storage, archive.segments), "and the restored log differ"
    )
    return RestoreReport(
        log_id=identity.log_id,
        epoch=identity.epoch,
        head=archive.end,
        digest=archive.digest,
        restored=archive.end - head,
        there=head,
    )


def _raise_first(problems: list[ArchiveProblem], finding: str) -> None:
    if problems:
        msg = f"the archive {finding}: {problems[0].message}"
        raise BackendFailure(msg, details={"position": problems[0].position}, retryable=False)


def _check_existing(log: Log, storage: ObjectStorage, archive: Archive, head: int) -> None:
    """Raise `Conflict` unless the log's events are the first events of the archive.

    Comparing the last one suffices here: `restore` compares every event at its end.
    """
    if head == 0:
        return
    for segment in archive.segments:
        if segment.first <= head <= segment.last:
            [batch] = read_segment(storage, segment, ["event_id"], head - 1, head)
            if batch.column(0)[0].as_py() == log.store.event_id_at(head):
                return
    msg = f"the log is not empty: it has {head} events, which are not those of the archive"
    raise Conflict(msg, details={"head": head})


def _read_events(storage: ObjectStorage, archive: Archive, after: int) -> Iterator[pa.RecordBatch]:
    later = (segment for segment in archive.segments if segment.last > after)
    return chain.from_iterable(read_segment(storage, segment, after=after) for segment in later)


class _RestoreRun:
    """Stores events in groups of whole appends, and declares kinds and indexes in between."""

    def __init__(self, log: Log, archive: Archive, head: int) -> None:
        self._log = log
        self._end = archive.end
        self._head = head
        declared = archive.segments[-1].declared if archive.segments else ArchivedDeclarations()
        self._declared = declared
        self._zero_based = {kind.name for kind in declared.kinds if kind.first_seq == 0}
        self._starts = sorted({index.since for index in declared.indexes if index.since >= head})
        self._group: list[RestoredEvent] = []
        self._bytes = 0
        self._rules = log.store.rules()

    def run(self, batches: Iterator[pa.RecordBatch], progress: Progress | None) -> None:
        """Store every event, and every declaration of the archive."""
        self._declare_indexes()
        for batch in batches:
            for row in _to_rows(batch):
                self._add(row)
            if progress is not None:
                progress(self._head, self._end)
        self._flush()
        self._declare(*self._declared.types, *self._declared.kinds)
        self._declare(*(index.declaration for index in self._declared.indexes))

    def _add(self, values: tuple[Any, ...]) -> None:
        """Add an event to the current group; flush the group first where it must end."""
        row = dict(zip(EVENT_COLUMNS, values, strict=True))
        begins = row["append_position"] == row["position"]
        full = len(self._group) >= GROUP_EVENTS or self._bytes >= GROUP_BYTES
        if (begins and full) or (self._starts and self._starts[0] < row["position"]):
            self._flush()
            self._declare_indexes()
        # Streams of an undeclared kind start at 1, and so may streams that are older than the
        # declaration. So a zero-based kind is declared before the first event that needs it.
        if row["stream_seq"] == 0 and row["stream_type"] in self._zero_based:
            self._flush()
            self._declare_kind(row["stream_type"])
        self._group.append(build_restored_event(row, self._rules))
        self._bytes += len(row["payload"])

    def _declare_indexes(self) -> None:
        """Declare the indexes that cover the events after the head."""
        while self._starts and self._starts[0] <= self._head:
            since = self._starts.pop(0)
            self._declare(
                *(index.declaration for index in self._declared.indexes if index.since == since)
            )

    def _declare_kind(self, name: str) -> None:
        self._zero_based.discard(name)
        types = [entry for entry in self._declared.types if entry.kind == name]
        kinds = [kind for kind in self._declared.kinds if kind.name == name]
        self._declare(*types, *kinds)

    def _declare(self, *declarations: Declaration) -> None:
        for declaration in declarations:
            self._log.store.declare(declaration)
        self._rules = self._log.store.rules()

    def _flush(self) -> None:
        if self._group:
            self._log.store.restore(self._group)
            self._head = self._group[-1].position
        self._group, self._bytes = [], 0


def _to_rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = []
    for name in EVENT_COLUMNS:
        column = batch.column(name)
        # Times as microseconds: Python's datetime would be slower.
        values = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        columns.append(values.to_pylist())
    return zip(*columns, strict=True)


def build_restored_event(row: dict[str, Any], rules: Rules) -> RestoredEvent:
    """Return an archived event with its lookup keys, ready to be stored.

    Args:
        row: The columns of an event; times are in microseconds since the Unix epoch.
        rules: The declarations of the log, whose indexes decide on the keys.
    """
    tenant, stream = row["tenant_id"], (row["stream_type"], row["stream_id"])
    key, occurred = row["idempotency_key"], row["occurred_text"]
    paths = [
        path
        for path in rules.indexed_paths.get(row["event_type"], ())
        if path.since < row["position"]
    ]
    event = PreparedEvent(
        event_id=row["event_id"],
        event_key=event_key(row["event_id"]),
        has_caller_id=True,
        tenant_id=tenant,
        stream_type=stream[0],
        stream_id=stream[1],
        stream_key=None if stream[1] is None else stream_key(tenant, *stream),
        requested_seq=row["stream_seq"],
        occurred_at=occurred,
        occurred_us=None if occurred is None else parse_us(occurred),
        idempotency_index=key and idempotency_index_key(tenant, row["producer_id"], key),
        metadata=dict(row["metadata"]),
        tags=tuple(row["tags"]),
        term_keys=term_keys(tenant, row["event_type"], paths, row["payload"]) if paths else (),
        **{name: row[name] for name in _COPIED_FIELDS},
    )
    return RestoredEvent(
        row["position"], row["append_position"], row["stream_seq"], row["recorded_at"], event
    )


# Fields that are copied unchanged from the archive.
_COPIED_FIELDS = ("event_type", "event_version", *ENVELOPE_TEXTS, "payload", "payload_hash")
