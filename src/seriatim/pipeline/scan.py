"""Reads of a range of the log, as record batches in the columns of events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.errors import BackendFailure
from seriatim.core.event import LogIdentity
from seriatim.core.patterns import Names
from seriatim.core.times import EARLIEST_US, LATEST_US
from seriatim.pipeline import decode
from seriatim.pipeline.columns import EVENTS
from seriatim.pipeline.database import (
    BATCH_BYTES,
    Connection,
    Place,
    connected,
    find_place,
)
from seriatim.pipeline.seldom import bundled, seldom_used, unbundled
from seriatim.pipeline.selects import count_statement, raw_columns, statement_for, type_of
from seriatim.pipeline.wanted import END, EVERYTHING, Scan, Share, Window

__all__ = [
    "END",
    "EVERYTHING",
    "Look",
    "Names",
    "Scan",
    "Window",
    "count_events",
    "head",
    "identity",
    "look",
    "look_through",
    "scan",
]

BATCH_ROWS = 20_000
_WORTH_ASKING = 5000  # events: below this, the question costs what it saves


class Look(msgspec.Struct, frozen=True):
    """What a glance at a log showed: who it is, its end, and the events at two positions."""

    identity: LogIdentity
    head: int
    until: int
    tip_at: str | None
    tip_until: str | None

    @property
    def identity_and_head(self) -> tuple[str, int, int]:
        """What an archive is compared with."""
        return self.identity.log_id, self.identity.epoch, self.head


def look(url: str, at: int = 0, until: int = END) -> Look:
    """Look at a log; `until` is lowered to the head."""
    place = find_place(url)
    with connected(place, "looking at the log") as connection:
        return look_through(connection, place, at, until)


def look_through(connection: Connection, place: Place, at: int, until: int) -> Look:
    """Look at a log over a connection that is kept."""
    text = place.sql["look"].replace("{at}", str(int(at))).replace("{until}", str(int(until)))
    rows = connection.rows(text)
    if not rows:
        msg = "the database has the log's tables and no log in them: run seriatim init"
        raise BackendFailure(msg, retryable=False)
    log_id, epoch, head, end, tip_at, tip_until = rows[0].values()
    return Look(LogIdentity(log_id, epoch), head, end, tip_at, tip_until)


def head(url: str) -> int:
    """Return the last position of a log."""
    return look(url).head


def identity(url: str) -> LogIdentity:
    """Return which log this is, and its epoch."""
    return look(url).identity


def count_events(url: str, wanted: Scan, after: int, until: int) -> int:
    """Return how many events of a range are wanted, by one statement that reads no payload."""
    place = find_place(url)
    with connected(place, "counting events", keep=True) as connection:
        [row] = connection.rows(count_statement(place, wanted, after, until))
    return int(row["events"])


def scan(url: str, wanted: Scan, after: int, until: int) -> Iterator[pa.RecordBatch]:
    """Stream what is wanted of the positions after one and up to another, in their order.

    The batches have the wanted columns of `EVENTS`; memory holds a few of them at a time.
    """
    place = find_place(url)
    seen = 0
    with connected(place, "reading events", keep=True) as connection:
        raw = raw_columns(place, wanted.columns)
        seldom = _seldom(connection, place, raw, after, until)
        often = [name for name in raw if name not in seldom]
        extra = [bundled(seldom)] if seldom else []
        statement = statement_for(place, wanted, after, until, often, extra)
        for found in _grouped(place, connection.batches(statement)):
            batch = unbundled(found, seldom) if seldom else found
            if wanted.share is not None and place.backend == "sqlite":
                batch = _own(batch, wanted.share)
            seen += batch.num_rows
            if batch.num_rows:
                yield _events(batch, wanted.columns)
    if not wanted.filtered and seen != until - after:
        msg = (
            f"the log holds {seen} events after position {after} and up to {until}, where "
            f"{until - after} were seen before: it was restored or replaced while it was read"
        )
        raise BackendFailure(msg, retryable=False)


def _seldom(
    connection: Connection, place: Place, raw: Sequence[str], after: int, until: int
) -> tuple[str, ...]:
    if place.backend != "postgres" or until - after < _WORTH_ASKING:
        return ()
    return seldom_used(connection, place, raw, after, until)


def _own(batch: pa.RecordBatch, share: Share) -> pa.RecordBatch:
    """Keep what belongs to a share; SQLite has no hash of a text."""
    parts = zip(*(batch.column(name).to_pylist() for name in share.columns), strict=True)
    mine = [crc32(repr(one).encode()) % share.of == share.nth for one in parts]
    return batch.filter(pa.array(mine))


def _grouped(place: Place, raw: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make batches that are worth their overhead: none too small, none over the bounds."""
    if place.backend == "postgres":
        yield from raw
        return
    first = next(raw)
    group = [first.slice(1)]  # without the row that shows the types
    rows, size = group[0].num_rows, group[0].nbytes
    for batch in raw:
        if rows + batch.num_rows > BATCH_ROWS or size + batch.nbytes > BATCH_BYTES:
            yield from _one_batch(group)
            group, rows, size = [], 0, 0
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    yield from _one_batch(group)


def _one_batch(group: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from pa.Table.from_batches(group).combine_chunks().to_batches()


def _events(raw: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    schema = pa.schema([EVENTS.field(name) for name in columns])
    arrays = [_MAKERS.get(name, _plain)(raw, name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _plain(raw: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column; one that did not come holds nothing but nulls."""
    at = raw.schema.get_field_index(name)
    if at >= 0:
        return raw.column(at)
    return pa.nulls(raw.num_rows, type_of(name))


def _event_ids(raw: pa.RecordBatch, _name: str) -> pa.Array:
    given = _plain(raw, "event_id")
    if "event_key" not in raw.schema.names or given.null_count == 0:
        return given
    keys = decode.uuid_texts(raw.column("event_key"))
    return keys if given.null_count == len(given) else pc.coalesce(given, keys)


def _occurred(raw: pa.RecordBatch, _name: str) -> pa.Array:
    given, recorded = _plain(raw, "occurred_us"), raw.column("recorded_us")
    if given.null_count == len(given):
        return decode.instants(recorded)
    found = given if given.null_count == 0 else pc.coalesce(given, recorded)
    # Earlier versions took instants that neither Python nor Spark can show; their text is kept.
    return decode.instants(pc.min_element_wise(pc.max_element_wise(found, EARLIEST_US), LATEST_US))


_MAKERS: dict[str, Callable[[pa.RecordBatch, str], Any]] = {
    "event_id": _event_ids,
    "event_version": lambda raw, name: raw.column(name).cast(pa.int32()),
    "occurred_at": _occurred,
    "occurred_text": lambda raw, _: _plain(raw, "occurred_at"),
    "recorded_at": lambda raw, _: decode.instants(raw.column("recorded_us")),
    "metadata": lambda raw, name: decode.metadata_maps(_plain(raw, name)),
    "payload_hash": lambda raw, name: decode.hash_texts(raw.column(name)),
    "tags": lambda raw, name: decode.tag_lists(_plain(raw, name)),
}
