"""Run queries: choose an index scan for each filter, and read or match the records."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from seriatim.core.decision_graph import TRACE_STREAM_TYPE
from seriatim.core.event import EventRecord
from seriatim.core.ids import stream_key
from seriatim.core.kinds import Rules
from seriatim.core.patterns import NameFilter
from seriatim.core.predicate import PayloadDocument
from seriatim.core.query import Filter, Matcher, Query
from seriatim.core.query_plan import AccessPath, plan_query
from seriatim.store.common import PageBounds, take_page
from seriatim.store.port import ReadSpec
from seriatim.store.sqlite import payload_predicates
from seriatim.store.sqlite.index_scans import (
    INDEX_SCANS_MAX,
    NO_UPPER_BOUND,
    IndexScan,
    bind_list,
    build_type_condition,
    expand_patterns,
    find_highest_position,
    plan_stream_type_scans,
    read_page,
)
from seriatim.store.sqlite.statements import decode_record

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
    "actor_id": "events.actor_id = :actor_id",
    "after_seq": "coalesce(events.stream_seq, 0) > :since_seq",
}
TAG_CONDITION = (
    "exists (select 1 from event_tags where tag_key = {key} and position = events.position)"
)
_COUNT = "count_read(events.position)"
_SCOPES: dict[str, tuple[str, ...]] = {
    "log": (),
    "traces": ("events.stream_type = :trace_kind",),
    "aggregates": ("events.stream_type <> :trace_kind",),
}


def read(connection: sqlite3.Connection, spec: ReadSpec) -> list[EventRecord]:
    """Return one page of a read."""
    names = spec.type_names
    if names is not None and names.prefixes and spec.tenant_id is not None:
        names = expand_patterns(connection, spec.tenant_id, names)
        spec = msgspec.structs.replace(spec, types=names.to_patterns())
    scans = plan_read_scans(spec)
    if not scans:
        return []
    until = NO_UPPER_BOUND if spec.until is None else spec.until
    page = PageBounds(spec.after, until, spec.limit, spec.max_bytes, spec.newest_first)
    return read_page(connection, scans, page)


def plan_read_scans(spec: ReadSpec) -> list[IndexScan]:
    """Return the index scans of a read: one per event type where types have an index."""
    values, conditions = _build_conditions(spec)
    names = spec.type_names
    name, related = _choose_scan(spec)
    unsplittable = names is not None and (names.prefixes or len(names.values) > INDEX_SCANS_MAX)
    # The index by type needs a tenant; an index of an id is narrower; merging has a bound.
    if names is not None and (spec.tenant_id is None or related or unsplittable):
        conditions += (build_type_condition(names, values),)
        names = None
    if spec.tenant_id is None:
        return [IndexScan("scan_log", values, conditions + _match_stream_name(spec, values))]
    values["tenant"] = spec.tenant_id
    if spec.stream is not None:
        values["stream"] = stream_key(spec.tenant_id, *spec.stream)
        if related:
            conditions += ("events.stream_key = :stream",)
    if names is None:
        return [IndexScan(name, values, conditions)]
    bindings = [{**values, "type": event_type} for event_type in names.values]
    if spec.stream is None:
        return [IndexScan("scan_type", binding, conditions) for binding in bindings]
    return [scan for binding in bindings for scan in plan_stream_type_scans(binding, conditions)]


def _choose_scan(spec: ReadSpec) -> tuple[str, bool]:
    """Return the scan of a read without types, and whether it uses the index of an id.

    An actor may have more events than a stream, so a read of a stream uses the stream's index.
    """
    if spec.correlation_id is not None:
        return "scan_correlation", True
    if spec.causation_id is not None:
        return "scan_causation", True
    if spec.actor_id is not None and spec.stream is None:
        return "scan_actor", True
    return "scan_tenant" if spec.stream is None else "scan_stream", False


def _build_conditions(spec: ReadSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    values: dict[str, Any] = {"trace_kind": TRACE_STREAM_TYPE, "since_seq": spec.after_seq}
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


def select(
    connection: sqlite3.Connection,
    tenant_id: str,
    query: Query,
    rules: Rules,
    *,
    after: int,
    until: int,
    limit: int,
    newest_first: bool = False,
    max_bytes: int | None = None,
) -> list[EventRecord]:
    """Return the first matching records in (after, until]."""
    query = _expand_query(connection, tenant_id, query)
    scans = plan_query_scans(tenant_id, query, rules, after, until)
    if scans is None:
        rows = _make_tenant_scan(tenant_id).fetch_rows(
            connection, after, until, limit=NO_UPPER_BOUND, newest_first=newest_first
        )
        return take_page(_match_records(query, map(decode_record, rows)), limit, max_bytes)
    if not scans:
        return []
    page = PageBounds(after, until, limit, max_bytes, newest_first)
    return read_page(connection, scans, page)


def count_events_read(
    connection: sqlite3.Connection, tenant_id: str, query: Query, rules: Rules, page: PageBounds
) -> int:
    """Run the scans of a page of `select`, and return how many events they read.

    A function in their first condition counts: it is called for each event that a scan reads.
    """
    query = _expand_query(connection, tenant_id, query)
    scans = plan_query_scans(tenant_id, query, rules, page.after, page.until)
    count = 0

    def count_read(_: int) -> int:
        nonlocal count
        count += 1
        return 1

    # It is not removed afterwards, because a page may end before its statements do.
    connection.create_function("count_read", 1, count_read)
    counted = [
        msgspec.structs.replace(scan, conditions=(_COUNT, *scan.conditions))
        for scan in ([_make_tenant_scan(tenant_id)] if scans is None else scans)
    ]
    if scans is None:
        rows = counted[0].fetch_rows(
            connection,
            page.after,
            page.until,
            limit=NO_UPPER_BOUND,
            newest_first=page.newest_first,
        )
        take_page(_match_records(query, map(decode_record, rows)), page.limit)
    elif counted:
        read_page(connection, counted, page)
    return count


def context_version(
    connection: sqlite3.Connection,
    tenant_id: str,
    query: Query,
    rules: Rules,
    *,
    after: int,
    until: int,
) -> int | None:
    """Return the highest matching position in (after, until], searching from the end."""
    query = _expand_query(connection, tenant_id, query)
    scans = plan_query_scans(tenant_id, query, rules, after, until)
    if scans is None:
        rows = _make_tenant_scan(tenant_id).fetch_rows(
            connection, after, until, limit=NO_UPPER_BOUND, newest_first=True
        )
        match = next(_match_records(query, map(decode_record, rows)), None)
        return None if match is None else match.position
    return find_highest_position(connection, scans, after, until)


def _match_records(query: Query, records: Iterable[EventRecord]) -> Iterator[EventRecord]:
    matcher = Matcher(query)
    check = payload_predicates.get_current_check()
    for record in records:
        if check is not None:
            check()
        if matcher.matches(record, PayloadDocument(record.payload_json, check)):
            yield record


def _expand_query(connection: sqlite3.Connection, tenant_id: str, query: Query) -> Query:
    """Return the query with its type patterns expanded to the existing types."""
    filters = list(query.filters or ())
    for index, query_filter in enumerate(filters):
        names = NameFilter.parse(query_filter.types or ())
        # The index by type has the order of positions only within one type.
        if names.prefixes and not names.matches_all:
            expanded = expand_patterns(connection, tenant_id, names)
            filters[index] = msgspec.structs.replace(query_filter, types=expanded.to_patterns())
    return msgspec.structs.replace(query, filters=filters) if filters else query


def _make_tenant_scan(tenant_id: str) -> IndexScan:
    return IndexScan("scan_tenant", {"tenant": tenant_id})


def plan_query_scans(
    tenant_id: str, query: Query, rules: Rules, after: int, until: int
) -> list[IndexScan] | None:
    """Return index scans that cover all matching events; None if there would be too many."""
    routes = plan_query(tenant_id, query, rules, after, until)
    scans = [scan for route in routes for scan in _plan_route(tenant_id, route)]
    return scans if len(scans) <= INDEX_SCANS_MAX else None


def _plan_route(tenant_id: str, route: AccessPath) -> list[IndexScan]:
    query_filter = route.filter
    values: dict[str, Any] = {"tenant": tenant_id}
    conditions: list[str] = []
    if query_filter.payload is not None and not route.exact:
        condition, parameters = payload_predicates.build_condition(query_filter.payload)
        values.update(parameters)
        conditions.append(condition)
    values.update(query_filter.ids)
    conditions[:0] = [_CONDITIONS[name] for name in query_filter.ids]
    if route.key_alternatives:
        return _plan_key_scans(tenant_id, route, values, conditions)
    names = route.types
    if route.index in ("correlation", "causation", "actor"):
        return [_plan_id_scan(tenant_id, route, values, conditions)]
    if names is not None and names.prefixes:  # the patterns match too many types
        conditions.insert(0, build_type_condition(names, values))
        names = None
    bindings = [
        {**values, "stream": stream, "type": event_type}
        for stream in _get_stream_keys(tenant_id, query_filter) or (None,)
        for event_type in ((None,) if names is None else names.values)
    ]
    all_conditions = tuple(conditions)
    if query_filter.streams is not None and names is not None:
        return [
            scan for binding in bindings for scan in plan_stream_type_scans(binding, all_conditions)
        ]
    if query_filter.streams is not None:
        name = "scan_stream"
    else:
        name = "scan_tenant" if names is None else "scan_type"
    return [
        IndexScan(name, binding, all_conditions, route.after, route.until) for binding in bindings
    ]


def _plan_id_scan(
    tenant_id: str, route: AccessPath, values: dict[str, Any], conditions: list[str]
) -> IndexScan:
    """Return the scan along the index of an id, with conditions on types, streams and tags."""
    first: list[str] = []
    if route.types is not None:
        first.append(build_type_condition(route.types, values))
    if route.filter.streams is not None:
        keys = _get_stream_keys(tenant_id, route.filter)
        first.append(f"events.stream_key in ({bind_list('stream', keys, values)})")
    for number, key in enumerate(route.tag_keys):
        values[f"tag_{number}"] = key
        first.append(TAG_CONDITION.replace("{key}", f":tag_{number}"))
    return IndexScan(f"scan_{route.index}", values, (*first, *conditions), route.after, route.until)


def _plan_key_scans(
    tenant_id: str, route: AccessPath, values: dict[str, Any], conditions: list[str]
) -> list[IndexScan]:
    """Return scans along tag and index keys, with conditions on types and streams."""
    query_filter = route.filter
    key_conditions: list[str] = []
    if route.types is not None and not route.exact:
        key_conditions.append(build_type_condition(route.types, values))
    if query_filter.streams is not None:
        keys = _get_stream_keys(tenant_id, query_filter)
        key_conditions.append(f"events.stream_key in ({bind_list('stream', keys, values)})")
    return [
        IndexScan(
            "scan_tag" if len(keys) == 1 else "scan_tags",
            {
                **values,
                "keys": len(keys),
                **{f"key_{turn}": key for turn, key in enumerate(keys)},
            },
            (*key_conditions, *conditions),
            route.after,
            route.until,
        )
        for keys in route.key_alternatives
    ]


def _get_stream_keys(tenant_id: str, query_filter: Filter) -> list[bytes]:
    return [stream_key(tenant_id, *stream) for stream in dict.fromkeys(query_filter.streams or ())]
