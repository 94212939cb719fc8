"""From a query's filters to walks along the narrowest index, and what they find."""

from __future__ import annotations

import sqlite3
from typing import Any

from seriatim.core.event import EventRecord
from seriatim.core.ids import stream_key, tag_key
from seriatim.core.query import Filter, Query, matches
from seriatim.store.sqlite import payloads
from seriatim.store.sqlite.reads import listed
from seriatim.store.sqlite.rows import record_of
from seriatim.store.sqlite.statements import WALKS
from seriatim.store.sqlite.walks import NO_END, WALKS_MAX, Walk, by_type, collect, highest


def select(  # noqa: PLR0913 - a query and its range
    connection: sqlite3.Connection,
    tenant_id: str,
    query: Query,
    *,
    after: int,
    until: int,
    limit: int,
) -> list[EventRecord]:
    """Return the first records in (after, until] that match."""
    walks = walks_of(tenant_id, query)
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


def context_version(
    connection: sqlite3.Connection, tenant_id: str, query: Query, *, after: int, until: int
) -> int | None:
    """Return the highest position in (after, until] that matches, looking from the end."""
    walks = walks_of(tenant_id, query)
    if walks is None:
        rows = _whole(tenant_id).rows(connection, after, until, limit=NO_END, back=True)
        found = (record.position for record in map(record_of, rows) if matches(query, record))
        return next(found, None)
    return highest(connection, walks, after, until)


def _whole(tenant_id: str) -> Walk:
    return Walk("tenant", {"tenant": tenant_id})


def walks_of(tenant_id: str, query: Query) -> list[Walk] | None:
    """Return the walks that together meet all that matches; None: too many, read everything."""
    if not query.filters:
        return [_whole(tenant_id)]
    walks = [walk for one in query.filters for walk in _walks_of_filter(tenant_id, one)]
    return walks if len(walks) <= WALKS_MAX else None


def _walks_of_filter(tenant_id: str, one: Filter) -> list[Walk]:
    if any(
        side is not None and not side for side in (one.types, one.payload, one.tags, one.streams)
    ):
        return []
    values: dict[str, Any] = {"tenant": tenant_id}
    conditions: list[str] = []
    if one.payload is not None:
        condition, more = payloads.condition(one.payload)
        values.update(more)
        conditions.append(condition)
    if one.tags is not None:
        return [_tagged(tenant_id, one, values, conditions)]
    steps = [
        {**values, "stream": stream, "type": type_}
        for stream in _keys(tenant_id, one) or (None,)
        for type_ in dict.fromkeys(one.types or (None,))
    ]
    narrowing = tuple(conditions)
    if one.streams is not None and one.types is not None:
        return [walk for step in steps for walk in by_type(step, narrowing)]
    name = "stream" if one.streams is not None else "type" if one.types is not None else "tenant"
    return [Walk(name, step, narrowing) for step in steps]


def _tagged(tenant_id: str, one: Filter, values: dict[str, Any], conditions: list[str]) -> Walk:
    """Walk along the first tag; the others, the types and the streams are looked up on the way."""
    tags = [tag_key(tenant_id, tag) for tag in dict.fromkeys(one.tags or ())]
    values["tag"] = tags[0]
    first: list[str] = []
    for number, other in enumerate(tags[1:]):
        values[f"tag_{number}"] = other
        first.append(WALKS["other_tag"].replace("{number}", str(number)))
    if one.types is not None:
        first.append(f"events.event_type in ({listed('type', one.types, values)})")
    if one.streams is not None:
        keys = _keys(tenant_id, one)
        first.append(f"events.stream_key in ({listed('stream', keys, values)})")
    return Walk("tag", values, (*first, *conditions))


def _keys(tenant_id: str, one: Filter) -> list[bytes]:
    return [stream_key(tenant_id, *stream) for stream in dict.fromkeys(one.streams or ())]
