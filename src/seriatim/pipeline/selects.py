"""The SELECT of a scan, in the words of either database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from seriatim.core.ids import stream_key
from seriatim.core.patterns import Names
from seriatim.pipeline.columns import EVENTS
from seriatim.pipeline.database import Place
from seriatim.pipeline.wanted import END, NAMED, Scan, Share

# What the two databases keep under other names than events have.
_RAW = {
    "occurred_at": ("occurred_us", "recorded_us"),
    "occurred_text": ("occurred_at",),
    "recorded_at": ("recorded_us",),
}
_RAW_POSTGRES = _RAW | {"event_id": ("event_id", "event_key")}
NULLABLE = {
    *(field.name for field in EVENTS if field.nullable and field.name != "occurred_text"),
    *("event_id", "occurred_at", "occurred_us", "metadata", "tags"),
}
_INTEGERS = {"position", "append_position", "stream_seq", "event_version"}


def statement_for(  # noqa: PLR0913 - a SELECT, and its range
    place: Place,
    wanted: Scan,
    after: int,
    until: int,
    raw: Sequence[str],
    extra: Sequence[str] = (),
) -> str:
    """Write the SELECT of a scan; every text in it is a hexadecimal literal."""
    selected = (
        place.sql["scan"]
        .replace("{kinds}", ", ".join(f"{kind_of(name)} as {name}" for name in raw))
        .replace("{wanted}", ", ".join([*(f"e.{name}" for name in raw), *extra]))
    )
    return _bounded(selected, place, wanted, after, until)


def count_statement(place: Place, wanted: Scan, after: int, until: int) -> str:
    """Write the SELECT that counts the events of a scan; an index answers tenant and type."""
    return _bounded(place.sql["count"], place, wanted, after, until)


def _bounded(text: str, place: Place, wanted: Scan, after: int, until: int) -> str:
    conditions = "".join(f" and {one}" for one in _conditions(place, wanted))
    return (
        text.replace("{after}", str(int(after)))
        .replace("{until}", str(int(until)))
        .replace("{conditions}", conditions)
    )


def raw_columns(place: Place, columns: Sequence[str]) -> list[str]:
    """Return the database's columns from which these are made; the position comes first."""
    kept = _RAW_POSTGRES if place.backend == "postgres" else _RAW
    names = ["position", *(raw for name in columns for raw in kept.get(name, (name,)))]
    return list(dict.fromkeys(names))


def kind_of(raw: str) -> str:
    """Return a literal of a column's type, as SQLite has types."""
    if raw in _INTEGERS or raw.endswith("_us"):
        return "0"
    return "x''" if raw == "payload_hash" else "''"


def type_of(raw: str) -> pa.DataType:
    """Return the Arrow type of a column that may be null."""
    return pa.int64() if kind_of(raw) == "0" else pa.string()


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
    if wanted.share is not None and place.backend == "postgres":
        yield _in_share(wanted.share)
    if (key := _stream_key(wanted)) is not None:
        literal = f"'{key.hex()}'::uuid" if place.backend == "postgres" else f"x'{key.hex()}'"
        yield f"e.stream_key = {literal}"


def _in_share(share: Share) -> str:
    hashed = "0"
    for column in share.columns:
        hashed = f"hashtextextended(coalesce(e.{column}, ''), {hashed})"
    return f"({hashed} & {END}) % {int(share.of)} = {int(share.nth)}"


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
