"""Reads of a range of the log as record batches: which events, and which of their columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.core.errors import BackendFailure
from seriatim.core.event import LogIdentity
from seriatim.core.ids import stream_key
from seriatim.pipeline import decode
from seriatim.pipeline.columns import EVENTS, NAMES
from seriatim.pipeline.database import (
    BATCH_BYTES,
    Connection,
    Place,
    batches,
    connected,
    find_place,
)

BATCH_ROWS = 20_000
END = (1 << 63) - 1
_WILD = ".*"


class Names(msgspec.Struct, frozen=True):
    """The names that a column may have: any of the values, or any that begins like this."""

    values: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """Take exact names, and patterns such as `order.*`."""
        given = tuple(names)
        return cls(
            tuple(one for one in given if not one.endswith(_WILD)),
            tuple(one[:-1] for one in given if one.endswith(_WILD)),
        )

    def both(self, other: Names | None) -> Names:
        """Return the names that these and the others allow."""
        if other is None:
            return self
        values = [one for one in self.values if other.allows(one)]
        values += [one for one in other.values if self.allows(one)]
        prefixes = [one for one in self.prefixes if one.startswith(other.prefixes)]
        prefixes += [one for one in other.prefixes if one.startswith(self.prefixes)]
        return Names(tuple(dict.fromkeys(values)), tuple(dict.fromkeys(prefixes)))

    def allows(self, name: str) -> bool:
        """Tell whether a name is one of these."""
        return name in self.values or name.startswith(self.prefixes)


class Window(msgspec.Struct, frozen=True):
    """An interval of microseconds: after the first, up to and with the last."""

    after: int | None = None
    until: int | None = None

    def both(self, other: Window) -> Window:
        """Return the time in which both are."""
        afters = [one for one in (self.after, other.after) if one is not None]
        untils = [one for one in (self.until, other.until) if one is not None]
        return Window(max(afters, default=None), min(untils, default=None))


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are read, and which of their columns; None asks for nothing in particular."""

    columns: tuple[str, ...] = NAMES
    tenants: Names | None = None
    types: Names | None = None
    stream_types: Names | None = None
    stream_ids: Names | None = None
    event_ids: Names | None = None
    occurred: Window = Window()
    recorded: Window = Window()

    @property
    def filtered(self) -> bool:
        """Whether some events of a range may be passed over."""
        return msgspec.structs.replace(self, columns=NAMES) != EVERYTHING


EVERYTHING = Scan()
# The parts of a scan that hold names, and the columns that they speak of.
NAMED = {
    "tenants": "tenant_id",
    "types": "event_type",
    "stream_types": "stream_type",
    "stream_ids": "stream_id",
    "event_ids": "event_id",
}


class Look(msgspec.Struct, frozen=True):
    """What a glance at a log showed: who it is, its end, and the events at two positions."""

    identity: LogIdentity
    head: int
    until: int
    tip_at: str | None
    tip_until: str | None


def look(url: str, at: int = 0, until: int = END) -> Look:
    """Look at a log; `until` is lowered to the head."""
    place = find_place(url)
    with connected(place, "looking at the log") as connection:
        return look_through(connection, place, at, until)


def look_through(connection: Connection, place: Place, at: int, until: int) -> Look:
    """Look at a log over a connection that is kept."""
    text = place.sql["look"].replace("{at}", str(int(at))).replace("{until}", str(int(until)))
    rows = [row for batch in batches(connection, place, text) for row in batch.to_pylist()]
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


def scan(url: str, wanted: Scan, after: int, until: int) -> Iterator[pa.RecordBatch]:
    """Stream what is wanted of the positions after one and up to another, in their order.

    The batches have the wanted columns of `EVENTS`; memory holds a few of them at a time.
    """
    place = find_place(url)
    seen = 0
    with connected(place, "reading events") as connection:
        unused = _unused(connection, place, wanted, after, until)
        statement = statement_for(place, wanted, after, until, unused)
        for batch in _grouped(place, batches(connection, place, statement)):
            seen += batch.num_rows
            yield _events(batch, wanted.columns)
    if not wanted.filtered and seen != until - after:
        msg = (
            f"the log holds {seen} events after position {after} and up to {until}, where "
            f"{until - after} were seen before: it was restored or replaced while it was read"
        )
        raise BackendFailure(msg, retryable=False)


# -- statements

# What the two databases keep under other names than events have.
_RAW = {
    "occurred_at": ("occurred_us", "recorded_us"),
    "occurred_text": ("occurred_at",),
    "recorded_at": ("recorded_us",),
}
_RAW_POSTGRES = _RAW | {"event_id": ("event_id", "event_key")}
_NULLABLE = {
    *(field.name for field in EVENTS if field.nullable and field.name != "occurred_text"),
    *("event_id", "occurred_at", "occurred_us", "metadata", "tags"),
}
_WORTH_ASKING = 5000  # events: below this, the question costs what it saves
_INTEGERS = {"position", "append_position", "stream_seq", "event_version"}


def statement_for(
    place: Place, wanted: Scan, after: int, until: int, unused: Collection[str] = ()
) -> str:
    """Write the SELECT of a scan; every text in it is a hexadecimal literal."""
    raw = [name for name in _raw_columns(place, wanted.columns) if name not in unused]
    conditions = "".join(f" and {one}" for one in _conditions(place, wanted))
    return (
        place.sql["scan"]
        .replace("{kinds}", ", ".join(f"{_kind(name)} as {name}" for name in raw))
        .replace("{wanted}", ", ".join(f"e.{name}" for name in raw))
        .replace("{after}", str(int(after)))
        .replace("{until}", str(int(until)))
        .replace("{conditions}", conditions)
    )


def _unused(
    connection: Connection, place: Place, wanted: Scan, after: int, until: int
) -> frozenset[str]:
    """Find the columns that are null in a whole range; a driver reads a null slower than a text."""
    asked = [name for name in _raw_columns(place, wanted.columns) if name in _NULLABLE]
    if place.backend != "postgres" or wanted.filtered or len(asked) < 2:  # noqa: PLR2004
        return frozenset()
    if until - after < _WORTH_ASKING:
        return frozenset()
    text = (
        place.sql["used"]
        .replace("{counts}", ", ".join(f"count(e.{name}) > 0 as {name}" for name in asked))
        .replace("{after}", str(int(after)))
        .replace("{until}", str(int(until)))
    )
    [row] = [row for batch in batches(connection, place, text) for row in batch.to_pylist()]
    return frozenset(name for name in asked if not row[name])


def _raw_columns(place: Place, columns: Sequence[str]) -> list[str]:
    kept = _RAW_POSTGRES if place.backend == "postgres" else _RAW
    names = ["position", *(raw for name in columns for raw in kept.get(name, (name,)))]
    return list(dict.fromkeys(names))


def _kind(raw: str) -> str:
    if raw in _INTEGERS or raw.endswith("_us"):
        return "0"
    return "x''" if raw == "payload_hash" else "''"


def _conditions(place: Place, wanted: Scan) -> Iterator[str]:
    for part, column in NAMED.items():
        names: Names | None = getattr(wanted, part)
        if names is not None:
            yield _named(place, column, names)
    for window, column in (
        (wanted.occurred, "coalesce(e.occurred_us, e.recorded_us)"),
        (wanted.recorded, "e.recorded_us"),
    ):
        if window.after is not None:
            yield f"{column} > {int(window.after)}"
        if window.until is not None:
            yield f"{column} <= {int(window.until)}"
    if (key := _stream_key(wanted)) is not None:
        literal = f"'{key.hex()}'::uuid" if place.backend == "postgres" else f"x'{key.hex()}'"
        yield f"e.stream_key = {literal}"


def _named(place: Place, column: str, names: Names) -> str:
    here = f"e.{column}"
    if column == "event_id" and place.backend == "postgres":
        here = "coalesce(e.event_id, e.event_key::text)"
    ways = []
    if names.values:
        ways.append(f"{here} in ({', '.join(_text(place, one) for one in names.values)})")
    for prefix in names.prefixes:
        if place.backend == "postgres":
            ways.append(f"starts_with({here}, {_text(place, prefix)})")
        else:
            ways.append(f"substr({here}, 1, {len(prefix)}) = {_text(place, prefix)}")
    return f"({' or '.join(ways) or '1 = 0'})"


def _text(place: Place, value: str) -> str:
    """Write a text so that nothing in it can be anything but text."""
    digits = value.encode().hex()
    if place.backend == "postgres":
        return f"convert_from(decode('{digits}', 'hex'), 'UTF8')"
    return f"cast(x'{digits}' as text)"


def _stream_key(wanted: Scan) -> bytes | None:
    """Return the key of the one stream that is wanted, which an index finds."""
    parts = [wanted.tenants, wanted.stream_types, wanted.stream_ids]
    exact = [one.values[0] for one in parts if one and len(one.values) == 1 and not one.prefixes]
    return stream_key(*exact) if len(exact) == len(parts) else None


# -- batches


def _grouped(place: Place, raw: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make batches that are worth their overhead: none too small, none over the bounds."""
    if place.backend == "postgres":
        yield from (batch for batch in raw if batch.num_rows)
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
    """Return a column; one that was not asked for holds nothing but nulls."""
    at = raw.schema.get_field_index(name)
    if at >= 0:
        return raw.column(at)
    return pa.nulls(raw.num_rows, pa.int64() if _kind(name) == "0" else pa.string())


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
    return decode.instants(given if given.null_count == 0 else pc.coalesce(given, recorded))


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
