"""Making a log of an archive: the same events at the same positions, with their times and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from seriatim.core.errors import BackendFailure, Conflict
from seriatim.core.ids import event_key, idempotency_index_key, stream_key
from seriatim.core.indexes import term_keys
from seriatim.core.kinds import Declaration, Rules
from seriatim.core.request import Prepared
from seriatim.core.times import instant_us
from seriatim.opening import Log, open_log
from seriatim.pipeline.archive.catalog import Archive, open_archive, read_segment
from seriatim.pipeline.archive.comparing import compare
from seriatim.pipeline.archive.place import Place, open_place
from seriatim.pipeline.archive.seals import Declared
from seriatim.pipeline.archive.tasks import Problem
from seriatim.pipeline.columns import NAMES
from seriatim.store.port import Restored

GROUP_EVENTS = 2000
GROUP_BYTES = 4 * 1024 * 1024

Progress = Callable[[int, int], None]


class RestoreReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was restored, into which log; `there` counts what an earlier run had restored."""

    log_id: str
    epoch: int
    head: int
    digest: str
    restored: int
    there: int


def restore(
    spark: SparkSession, at: str | Place, to_url: str, *, progress: Progress | None = None
) -> RestoreReport:
    """Restore an archive into a log that is empty, or holds the archive's first events already.

    A run that was killed is continued by the next. The log keeps its own identity, so that whoever
    followed the old one stops and looks; the archived log itself gets a new epoch. At the end every
    event is compared with the archive.
    """
    place = open_place(at)
    archive = open_archive(place)
    _refuse(compare(spark, None, place, archive.segments), "is broken")
    with closing(open_log(to_url)) as log:
        there = log.store.head()
        _check_beginning(log, place, archive, there)
        _Restoring(log, archive, there).run(_events(place, archive, there), progress)
        identity = log.store.identity()
        if identity.log_id == archive.log_id and archive.end > there:
            identity = log.store.raise_epoch()
    _refuse(compare(spark, to_url, place, archive.segments), "and the restored log differ")
    return RestoreReport(
        log_id=identity.log_id,
        epoch=identity.epoch,
        head=archive.end,
        digest=archive.digest,
        restored=archive.end - there,
        there=there,
    )


def _refuse(problems: list[Problem], what: str) -> None:
    if problems:
        msg = f"the archive {what}: {problems[0].message}"
        raise BackendFailure(msg, details={"position": problems[0].position}, retryable=False)


def _check_beginning(log: Log, place: Place, archive: Archive, head: int) -> None:
    """Refuse a log that holds anything but the first events of the archive."""
    if head == 0:
        return
    for segment in archive.segments:
        if segment.first <= head <= segment.last:
            [batch] = read_segment(place, segment, ["event_id"], head - 1, head)
            if batch.column(0)[0].as_py() == log.store.event_id_at(head):
                return
    msg = f"the log is not empty: it holds {head} events, and not those of the archive"
    raise Conflict(msg, details={"head": head})


def _events(place: Place, archive: Archive, after: int) -> Iterator[pa.RecordBatch]:
    later = (segment for segment in archive.segments if segment.last > after)
    return chain.from_iterable(read_segment(place, one, after=after) for one in later)


class _Restoring:
    """Events on their way into a log, in groups of whole appends, and declarations between them."""

    def __init__(self, log: Log, archive: Archive, head: int) -> None:
        self._log = log
        self._end = archive.end
        self._head = head
        declared = archive.segments[-1].declared if archive.segments else Declared()
        self._declared = declared
        self._zero_based = {kind.name for kind in declared.kinds if kind.first_seq == 0}
        self._starts = sorted({index.since for index in declared.indexes if index.since >= head})
        self._group: list[Restored] = []
        self._bytes = 0
        self._rules = log.store.rules()

    def run(self, batches: Iterator[pa.RecordBatch], progress: Progress | None) -> None:
        """Store every event, and everything that was declared."""
        self._declare_indexes()
        for batch in batches:
            for row in _rows(batch):
                self._take(row)
            if progress is not None:
                progress(self._head, self._end)
        self._flush()
        self._declare(*self._declared.types, *self._declared.kinds)
        self._declare(*(index.declared for index in self._declared.indexes))

    def _take(self, row: tuple[Any, ...]) -> None:
        place = dict(zip(NAMES, row, strict=True))
        begins = place["append_position"] == place["position"]
        full = len(self._group) >= GROUP_EVENTS or self._bytes >= GROUP_BYTES
        if (begins and full) or (self._starts and self._starts[0] < place["position"]):
            self._flush()
            self._declare_indexes()
        # Without its declaration a kind's streams begin at 1; with it they may have begun so
        # before. So it is declared when the first one needs it.
        if place["stream_seq"] == 0 and place["stream_type"] in self._zero_based:
            self._flush()
            self._declare_kind(place["stream_type"])
        self._group.append(restored_event(place, self._rules))
        self._bytes += len(place["payload"])

    def _declare_indexes(self) -> None:
        """Declare the indexes that know the events behind the head."""
        while self._starts and self._starts[0] <= self._head:
            since = self._starts.pop(0)
            self._declare(*(i.declared for i in self._declared.indexes if i.since == since))

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


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    columns = []
    for name in NAMES:
        column = batch.column(name)
        whole = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        columns.append(whole.to_pylist())
    return zip(*columns, strict=True)


def restored_event(row: dict[str, Any], rules: Rules) -> Restored:
    """Return an event of an archive with the keys it is found by; times are in microseconds."""
    tenant, stream = row["tenant_id"], (row["stream_type"], row["stream_id"])
    key, occurred = row["idempotency_key"], row["occurred_text"]
    paths = [
        path
        for path in rules.indexed_paths.get(row["event_type"], ())
        if path.since < row["position"]
    ]
    event = Prepared(
        event_id=row["event_id"],
        event_key=event_key(row["event_id"]),
        given_id=True,
        tenant_id=tenant,
        stream_type=stream[0],
        stream_id=stream[1],
        stream_key=None if stream[1] is None else stream_key(tenant, *stream),
        given_seq=row["stream_seq"],
        occurred_at=occurred,
        occurred_us=None if occurred is None else instant_us(occurred),
        idempotency_index=key and idempotency_index_key(tenant, row["producer_id"], key),
        metadata=dict(row["metadata"]),
        tags=tuple(row["tags"]),
        term_keys=term_keys(tenant, row["event_type"], paths, row["payload"]) if paths else (),
        **{name: row[name] for name in _SAME},
    )
    place = row["position"], row["append_position"], row["stream_seq"], row["recorded_at"]
    return Restored(*place, event)


# What a stored event and a prepared one have in common as it is.
_SAME = (
    "event_type",
    "event_version",
    "producer_id",
    "source_system",
    "source_subsystem",
    "actor_type",
    "actor_id",
    "request_id",
    "correlation_id",
    "causation_id",
    "idempotency_key",
    "app_id",
    "env_id",
    "payload",
    "payload_hash",
)
