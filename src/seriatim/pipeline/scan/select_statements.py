"""SELECT statements of a scan, for Postgres and SQLite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from seriatim.core.ids import stream_key
from seriatim.core.patterns import NameFilter
from seriatim.pipeline.columns import EVENT_SCHEMA
from seriatim.pipeline.scan.database import DatabaseAddress
from seriatim.pipeline.scan.options import MAX_POSITION, NAME_COLUMNS, KeyPartition, ScanSpec

# Event columns that the databases store under other names, and the columns they are made from.
_RAW = {
    "occurred_at": ("occurred_us", "recorded_us"),
    "occurred_text": ("occurred_at",),
    "recorded_at": ("recorded_us",),
}
_RAW_POSTGRES = _RAW | {"event_id": ("event_id", "event_key")}
NULLABLE_COLUMNS = {
    *(field.name for field in EVENT_SCHEMA if field.nullable and field.name != "occurred_text"),
    *("event_id", "occurred_at", "occurred_us", "metadata", "tags"),
}
_INTEGERS = {"position", "append_position", "stream_seq", "event_version"}


def build_select(
    address: DatabaseAddress,
    spec: ScanSpec,
    after: int,
    until: int,
    raw: Sequence[str],
    extra: Sequence[str] = (),
) -> str:
    """Build the SELECT statement of a scan.

    The statement has no parameters. Numbers are formatted as integers and texts as hexadecimal
    literals, so no value can change its structure.

    Args:
        address: The database, which decides on the SQL dialect.
        spec: The filters of the scan.
        after: The position before the range.
        until: The last position of the range.
        raw: Database columns to select.
        extra: Further SQL expressions to select.
    """
    selected = (
        address.statements["select_events"]
        .replace("{kinds}", ", ".join(f"{get_type_literal(name)} as {name}" for name in raw))
        .replace("{wanted}", ", ".join([*(f"e.{name}" for name in raw), *extra]))
    )
    return _fill_conditions(selected, address, spec, after, until)


def build_count(address: DatabaseAddress, spec: ScanSpec, after: int, until: int) -> str:
    """Build the SELECT that counts a scan; an index answers filters by tenant and type."""
    return _fill_conditions(address.statements["count_events"], address, spec, after, until)


def _fill_conditions(
    text: str, address: DatabaseAddress, spec: ScanSpec, after: int, until: int
) -> str:
    conditions = "".join(f" and {condition}" for condition in _build_conditions(address, spec))
    return (
        text.replace("{after}", str(int(after)))
        .replace("{until}", str(int(until)))
        .replace("{conditions}", conditions)
    )


def find_raw_columns(address: DatabaseAddress, columns: Sequence[str]) -> list[str]:
    """Return the database columns that event columns are made from; `position` comes first."""
    sources = _RAW_POSTGRES if address.backend == "postgres" else _RAW
    names = ["position", *(raw for name in columns for raw in sources.get(name, (name,)))]
    return list(dict.fromkeys(names))


def get_type_literal(raw: str) -> str:
    """Return a SQLite literal of a column's type: an integer, a blob or a text."""
    if raw in _INTEGERS or raw.endswith("_us"):
        return "0"
    return "x''" if raw == "payload_hash" else "''"


def get_arrow_type(raw: str) -> pa.DataType:
    """Return the Arrow type of a nullable database column."""
    return pa.int64() if get_type_literal(raw) == "0" else pa.string()


def _build_conditions(address: DatabaseAddress, spec: ScanSpec) -> Iterator[str]:
    for field, column in NAME_COLUMNS.items():
        names: NameFilter | None = getattr(spec, field)
        if names is not None:
            yield _match_names(address, column, names)
    for interval, column in (
        # `occurred_us` is null where the producer stated no time of its own.
        (spec.occurred, "coalesce(e.occurred_us, e.recorded_us)"),
        (spec.recorded, "e.recorded_us"),
    ):
        if interval.after is not None:
            yield f"{column} > {int(interval.after)}"
        if interval.until is not None:
            yield f"{column} <= {int(interval.until)}"
    # SQLite has no hash function for texts: there, the scanner filters partitions itself.
    if spec.key_partition is not None and address.backend == "postgres":
        yield _match_partition(spec.key_partition)
    if (key := _find_stream_key(spec)) is not None:
        literal = f"'{key.hex()}'::uuid" if address.backend == "postgres" else f"x'{key.hex()}'"
        yield f"e.stream_key = {literal}"


def _match_partition(partition: KeyPartition) -> str:
    # Each column's hash seeds that of the next; the mask drops the sign before the modulo.
    hashed = "0"
    for column in partition.columns:
        hashed = f"hashtextextended(coalesce(e.{column}, ''), {hashed})"
    return f"({hashed} & {MAX_POSITION}) % {int(partition.count)} = {int(partition.index)}"


def _match_names(address: DatabaseAddress, column: str, names: NameFilter) -> str:
    expression = f"e.{column}"
    if column == "event_id" and address.backend == "postgres":
        # Postgres stores an id that is a UUID only in its binary form.
        expression = "coalesce(e.event_id, e.event_key::text)"
    alternatives = []
    if names.values:
        values = ", ".join(_quote(address, value) for value in names.values)
        alternatives.append(f"{expression} in ({values})")
    for prefix in names.prefixes:
        # Not LIKE: it has wildcards of its own, and ignores case in SQLite.
        literal = _quote(address, prefix)
        if address.backend == "postgres":
            alternatives.append(f"starts_with({expression}, {literal})")
        else:
            alternatives.append(f"substr({expression}, 1, {len(prefix)}) = {literal}")
    return f"({' or '.join(alternatives) or '1 = 0'})"


def _quote(address: DatabaseAddress, value: str) -> str:
    """Write a text as a hexadecimal literal, which needs no escaping."""
    digits = value.encode().hex()
    if address.backend == "postgres":
        return f"convert_from(decode('{digits}', 'hex'), 'UTF8')"
    return f"cast(x'{digits}' as text)"


def _find_stream_key(spec: ScanSpec) -> bytes | None:
    """Return the indexed key of the stream, if the filters select exactly one stream."""
    parts = [spec.tenants, spec.stream_types, spec.stream_ids]
    exact = [names.values[0] for names in parts if names and _is_single(names)]
    return stream_key(*exact) if len(exact) == len(parts) else None


def _is_single(names: NameFilter) -> bool:
    return len(names.values) == 1 and not names.prefixes
