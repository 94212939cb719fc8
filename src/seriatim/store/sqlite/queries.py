"""Run queries: choose an index scan for each filter, and read or match the records."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.ids import stream_key
from seriatim.core.kinds import Rules
from seriatim.core.patterns import Names
from seriatim.core.predicate import Document
from seriatim.core.query import Filter, Matcher, Query
from seriatim.core.routes import Route, routes
from seriatim.store.reading import PageBounds, take
from seriatim.store.sqlite import payloads
from seriatim.store.sqlite.rows import record_of
from seriatim.store.sqlite.walks import (
    NO_END,
    WALKS_MAX,
    Walk,
    by_type,
    collect,
    highest,
    known_types,
    listed,
    type_condition,
)


def select(  # noqa: PLR0913 - a query and its range
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
    scans = walks_of(tenant_id, query, rules, after, until)
    if scans is None:
        rows = _scan_tenant(tenant_id).rows(
            connection, after, until, limit=NO_END, back=newest_first
        )
        return take(_match_records(query, map(record_of, rows)), limit, max_bytes)
    if not scans:
        return []
    page = PageBounds(after, until, limit, max_bytes, newest_first)
    return collect(connection, scans, page)


def context_version(  # noqa: PLR0913 - a query and its range
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
    scans = walks_of(tenant_id, query, rules, after, until)
    if scans is None:
        rows = _scan_tenant(tenant_id).rows(connection, after, until, limit=NO_END, back=True)
        found = next(_match_records(query, map(record_of, rows)), None)
        return None if found is None else found.position
    return highest(connection, scans, after, until)


def _match_records(query: Query, records: Iterable[EventRecord]) -> Iterator[EventRecord]:
    matcher = Matcher(query)
    check = payloads.current_check()
    for record in records:
        if check is not None:
            check()
        if matcher.matches(record, Document(record.payload, check)):
            yield record


def _expand_query(connection: sqlite3.Connection, tenant_id: str, query: Query) -> Query:
    """Return the query with its type patterns expanded to the existing types."""
    filters = list(query.filters or ())
    for index, one in enumerate(filters):
        names = Names.of(one.types or ())
        if names.prefixes and not names.everything:
            known = known_types(connection, tenant_id, names)
            filters[index] = msgspec.structs.replace(one, types=known.texts())
    return msgspec.structs.replace(query, filters=filters) if filters else query


def _scan_tenant(tenant_id: str) -> Walk:
    return Walk("tenant", {"tenant": tenant_id})


def walks_of(
    tenant_id: str, query: Query, rules: Rules, after: int, until: int
) -> list[Walk] | None:
    """Return index scans that cover all matching events; None if there would be too many."""
    found = routes(tenant_id, query, rules, after, until)
    scans = [scan for route in found for scan in _plan_route(tenant_id, route)]
    return scans if len(scans) <= WALKS_MAX else None


def _plan_route(tenant_id: str, route: Route) -> list[Walk]:
    one = route.one
    values: dict[str, Any] = {"tenant": tenant_id}
    conditions: list[str] = []
    if one.payload is not None and not route.proven:
        condition, more = payloads.condition(one.payload)
        values.update(more)
        conditions.append(condition)
    if route.alternatives:
        return _plan_key_scans(tenant_id, route, values, conditions)
    names = route.types
    if names is not None and names.prefixes:  # the patterns match too many types
        conditions.insert(0, type_condition(names, values))
        names = None
    steps = [
        {**values, "stream": stream, "type": type_}
        for stream in _get_stream_keys(tenant_id, one) or (None,)
        for type_ in ((None,) if names is None else names.values)
    ]
    all_conditions = tuple(conditions)
    if one.streams is not None and names is not None:
        return [scan for step in steps for scan in by_type(step, all_conditions)]
    name = "stream" if one.streams is not None else "type" if names is not None else "tenant"
    return [Walk(name, step, all_conditions, route.after, route.until) for step in steps]


def _plan_key_scans(
    tenant_id: str, route: Route, values: dict[str, Any], conditions: list[str]
) -> list[Walk]:
    """Return scans along tag and index keys, with conditions on types and streams."""
    one = route.one
    first: list[str] = []
    if route.types is not None and not route.proven:
        first.append(type_condition(route.types, values))
    if one.streams is not None:
        keys = _get_stream_keys(tenant_id, one)
        first.append(f"events.stream_key in ({listed('stream', keys, values)})")
    return [
        Walk(
            "tag" if len(keys) == 1 else "tags",
            {
                **values,
                "keys": len(keys),
                **{f"key_{turn}": key for turn, key in enumerate(keys)},
            },
            (*first, *conditions),
            route.after,
            route.until,
        )
        for keys in route.alternatives
    ]


def _get_stream_keys(tenant_id: str, one: Filter) -> list[bytes]:
    return [stream_key(tenant_id, *stream) for stream in dict.fromkeys(one.streams or ())]
