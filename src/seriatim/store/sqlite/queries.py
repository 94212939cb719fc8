"""From a query's filters to walks along the narrowest index, and what they find."""

from __future__ import annotations

import sqlite3
from typing import Any

from seriatim.core.event import EventRecord
from seriatim.core.ids import stream_key
from seriatim.core.kinds import Rules
from seriatim.core.query import Filter, Query, matches
from seriatim.core.routes import Route, routes
from seriatim.store.sqlite import payloads
from seriatim.store.sqlite.reads import listed
from seriatim.store.sqlite.rows import record_of
from seriatim.store.sqlite.walks import NO_END, WALKS_MAX, Walk, by_type, collect, highest


def select(  # noqa: PLR0913 - a query and its range
    connection: sqlite3.Connection,
    tenant_id: str,
    query: Query,
    rules: Rules,
    *,
    after: int,
    until: int,
    limit: int,
) -> list[EventRecord]:
    """Return the first records in (after, until] that match."""
    walks = walks_of(tenant_id, query, rules, after, until)
    if walks is None:
        rows = _whole(tenant_id).rows(connection, after, until, limit=NO_END, back=False)
        found: list[EventRecord] = []
        for record in map(record_of, rows):
            if matches(query, record):
                found.append(record)
                if len(found) == limit:
                    break
        return found
    return collect(connection, walks, after, until, limit) if walks else []


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
    walks = walks_of(tenant_id, query, rules, after, until)
    if walks is None:
        rows = _whole(tenant_id).rows(connection, after, until, limit=NO_END, back=True)
        found = (record.position for record in map(record_of, rows) if matches(query, record))
        return next(found, None)
    return highest(connection, walks, after, until)


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
    steps = [
        {**values, "stream": stream, "type": type_}
        for stream in _keys(tenant_id, one) or (None,)
        for type_ in dict.fromkeys(one.types or (None,))
    ]
    narrowing = tuple(conditions)
    if one.streams is not None and one.types is not None:
        return [walk for step in steps for walk in by_type(step, narrowing)]
    name = "stream" if one.streams is not None else "type" if one.types is not None else "tenant"
    return [Walk(name, step, narrowing, route.after, route.until) for step in steps]


def _along_keys(
    tenant_id: str, route: Route, values: dict[str, Any], conditions: list[str]
) -> list[Walk]:
    """Walk along tags and terms; the types and the streams are looked up on the way."""
    one = route.one
    first: list[str] = []
    if one.types is not None and not route.proven:
        first.append(f"events.event_type in ({listed('type', one.types, values)})")
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
