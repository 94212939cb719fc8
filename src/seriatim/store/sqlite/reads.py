"""Run reads: choose the index scans that serve the arguments of a read."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.ids import stream_key
from seriatim.core.kinds import TRACE_KIND
from seriatim.store.port import ReadSpec
from seriatim.store.reading import PageBounds
from seriatim.store.sqlite.walks import (
    NO_END,
    WALKS_MAX,
    Walk,
    by_type,
    collect,
    known_types,
    type_condition,
)

_OCCURRED = "coalesce(events.occurred_us, events.recorded_us)"
_CONDITIONS = {
    "app_id": "events.app_id = :app_id",
    "env_id": "events.env_id = :env_id",
    "occurred_after_us": f"{_OCCURRED} > :occurred_after_us",
    "occurred_until_us": f"{_OCCURRED} <= :occurred_until_us",
    "recorded_after_us": "events.recorded_us > :recorded_after_us",
    "recorded_until_us": "events.recorded_us <= :recorded_until_us",
    "correlation_id": "events.correlation_id = :correlation_id",
    "causation_id": "events.causation_id = :causation_id",
    "after_seq": "coalesce(events.stream_seq, 0) > :since_seq",
}
_SCOPES: dict[str, tuple[str, ...]] = {
    "log": (),
    "traces": ("events.stream_type = :trace_kind",),
    "aggregates": ("events.stream_type <> :trace_kind",),
}


def read(connection: sqlite3.Connection, spec: ReadSpec) -> list[EventRecord]:
    """Return one page of a read."""
    names = spec.names
    if names is not None and names.prefixes and spec.tenant_id is not None:
        names = known_types(connection, spec.tenant_id, names)
        spec = msgspec.structs.replace(spec, types=names.texts())
    scans = walks_of(spec)
    if not scans:
        return []
    until = NO_END if spec.until is None else spec.until
    page = PageBounds(spec.after, until, spec.limit, spec.max_bytes, spec.newest_first)
    return collect(connection, scans, page)


def walks_of(spec: ReadSpec) -> list[Walk]:
    """Return the index scans of a read: one per event type where types have an index."""
    values, conditions = _build_conditions(spec)
    names = spec.names
    name, related = _choose_scan(spec)
    too_many = names is not None and (names.prefixes or len(names.values) > WALKS_MAX)
    if names is not None and (spec.tenant_id is None or related or too_many):
        conditions += (type_condition(names, values),)
        names = None
    if spec.tenant_id is None:
        return [Walk("everything", values, conditions + _match_stream_name(spec, values))]
    values["tenant"] = spec.tenant_id
    if spec.stream is not None:
        values["stream"] = stream_key(spec.tenant_id, *spec.stream)
        if related:
            conditions += ("events.stream_key = :stream",)
    if names is None:
        return [Walk(name, values, conditions)]
    per_type = [{**values, "type": one} for one in names.values]
    if spec.stream is None:
        return [Walk("type", one, conditions) for one in per_type]
    return [scan for one in per_type for scan in by_type(one, conditions)]


def _choose_scan(spec: ReadSpec) -> tuple[str, bool]:
    """Return the scan of a read without types, and whether it uses a related id."""
    if spec.correlation_id is not None:
        return "correlation", True
    if spec.causation_id is not None:
        return "causation", True
    return "tenant" if spec.stream is None else "stream", False


def _build_conditions(spec: ReadSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    values: dict[str, Any] = {"trace_kind": TRACE_KIND, "since_seq": spec.after_seq}
    conditions = list(_SCOPES[spec.scope])
    for field, condition in _CONDITIONS.items():
        value = getattr(spec, field)
        if value is not None:
            values.setdefault(field, value)
            conditions.append(condition)
    return values, tuple(conditions)


def _match_stream_name(spec: ReadSpec, values: dict[str, Any]) -> tuple[str, ...]:
    """Return conditions on the stream name, for reads of all tenants (keys differ by tenant)."""
    if spec.stream is None:
        return ()
    values["stream_type"], values["stream_id"] = spec.stream
    return ("events.stream_type = :stream_type", "events.stream_id = :stream_id")
