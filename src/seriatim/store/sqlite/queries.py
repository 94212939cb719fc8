"""From a query's filters to walks along the narrowest index, and what they find."""

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
    """Return the first records in (after, until] that match."""
    query = _with_known_types(connection, tenant_id, query)
    walks = walks_of(tenant_id, query, rules, after, until)
    if walks is None:
        rows = _whole(tenant_id).rows(connection, after, until, limit=NO_END, back=newest_first)
        return take(_matching(query, map(record_of, rows)), limit, max_bytes)
    if not walks:
        return []
    page = PageBounds(after, until, limit, max_bytes, newest_first)
    return collect(connection, walks, page)


def context_version(  # noqa: PLR0913 - a query and its range
    connection: sqlite3.Connection,
    tenant_id: str,
    query: Query,
    rules: Rules,
    *,
    after: int,
    until: int,
) -> int | None:
    """Return the highest position in (after, until] that matches, looking from the end."""
    query = _with_known_types(connection, tenant_id, query)
    walks = walks_of(tenant_id, query, rules, after, until)
    if walks is None:
        rows = _whole(tenant_id).rows(connection, after, until, limit=NO_END, back=True)
        found = next(_matching(query, map(record_of, rows)), None)
        return None if found is None else found.position
    return highest(connection, walks, after, until)


def _matching(query: Query, records: Iterable[EventRecord]) -> Iterator[EventRecord]:
    matcher = Matcher(query)
    check = payloads.current_check()
    for record in records:
        if check is not None:
            check()
        if matcher.matches(record, Document(record.payload, check)):
            yield record


def _with_known_types(connection: sqlite3.Connection, tenant_id: str, query: Query) -> Query:
    """Return the query with its patterns replaced by the types that they stand for now."""
    filters = list(query.filters or ())
    for index, one in enumerate(filters):
        names = Names.of(one.types or ())
        if names.prefixes and not names.everything:
            known = known_types(connection, tenant_id, names)
            filters[index] = msgspec.structs.replace(one, types=known.texts())
    return msgspec.structs.replace(query, filters=filters) if filters else query


def _whole(tenant_id: str) -> Walk:
    return Walk("tenant", {"tenant": tenant_id})


def walks_of(
    tenant_id: str, query: Query, rules: Rules, after: int, until: int
) -> list[Walk] | None:
    """Return the walks that together meet all that matches; None: too many, read everything."""
    found = routes(tenant_id, query, rules, after, until)
    walks = [walk for route in found for walk in _walks_of_route(tenant_id, route)]
    return walks if len(walks) <= WALKS_MAX else None


def _walks_of_route(tenant_id: str, route: Route) -> list[Walk]:
    one = route.one
    values: dict[str, Any] = {"tenant": tenant_id}
    conditions: list[str] = []
    if one.payload is not None and not route.proven:
        condition, more = payloads.condition(one.payload)
        values.update(more)
        conditions.append(condition)
    if route.alternatives:
        return _along_keys(tenant_id, route, values, conditions)
    names = route.types
    if names is not None and names.prefixes:  # they stand for too many types
        conditions.insert(0, type_condition(names, values))
        names = None
    steps = [
        {**values, "stream": stream, "type": type_}
        for stream in _keys(tenant_id, one) or (None,)
        for type_ in ((None,) if names is None else names.values)
    ]
    narrowing = tuple(conditions)
    if one.streams is not None and names is not None:
        return [walk for step in steps for walk in by_type(step, narrowing)]
    name = "stream" if one.streams is not None else "type" if names is not None else "tenant"
    return [Walk(name, step, narrowing, route.after, route.until) for step in steps]


def _along_keys(
    tenant_id: str, route: Route, values: dict[str, Any], conditions: list[str]
) -> list[Walk]:
    """Walk along tags and terms; the types and the streams are looked up on the way."""
    one = route.one
    first: list[str] = []
    if route.types is not None and not route.proven:
        first.append(type_condition(route.types, values))
    if one.streams is not None:
        keys = _keys(tenant_id, one)
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


def _keys(tenant_id: str, one: Filter) -> list[bytes]:
    return [stream_key(tenant_id, *stream) for stream in dict.fromkeys(one.streams or ())]
