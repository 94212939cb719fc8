"""Reads and queries as SQL: each filter becomes conditions that an index can answer.

A query's filters run as separate statements over one range and are merged: an OR across filters
would take every one of them away from its index.
"""

from __future__ import annotations

import uuid
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from seriatim.core.canonical import canonical_text
from seriatim.core.ids import stream_key, tag_key
from seriatim.core.kinds import TRACE_KIND
from seriatim.core.query import Filter, Query
from seriatim.store.port import ReadSpec
from seriatim.store.postgres.statements import COLUMNS

Parameters = dict[str, Any]


def _range(parameters: Parameters, after: int, until: int | None) -> list[str]:
    parameters["after"] = after
    conditions = ["e.position > %(after)s"]
    if until is not None:
        parameters["until"] = until
        conditions.append("e.position <= %(until)s")
    return conditions


def read_statement(  # noqa: C901 - one condition per argument of a read
    spec: ReadSpec, schema: str
) -> tuple[LiteralString, Parameters]:
    """Return the statement of one page of a read."""
    parameters: Parameters = {"limit": spec.limit}
    conditions = _range(parameters, spec.after, spec.until)
    order = "e.position"

    def add(condition: str, **values: Any) -> None:
        conditions.append(condition)
        parameters.update(values)

    if spec.stream is not None and spec.tenant_id is not None:
        key = uuid.UUID(bytes=stream_key(spec.tenant_id, *spec.stream))
        add("e.stream_key = %(stream)s", stream=key)
        # Within a stream, numbers and positions rise together: each order has its own index.
        order = "e.stream_seq" if spec.types is None else "e.position"
    elif spec.tenant_id is not None:
        add("e.tenant_id = %(tenant)s", tenant=spec.tenant_id)
    if spec.after_seq is not None:
        add("e.stream_seq > %(after_seq)s", after_seq=spec.after_seq)
    if spec.types is not None:
        if len(spec.types) == 1:
            add("e.event_type = %(type)s", type=spec.types[0])
        else:
            add("e.event_type = any (%(types)s)", types=list(spec.types))
    if spec.scope == "traces":
        add("e.stream_type = %(trace)s", trace=TRACE_KIND)
    elif spec.scope == "aggregates":
        add("e.stream_type <> %(trace)s", trace=TRACE_KIND)
    for name in ("app_id", "env_id"):
        if (value := getattr(spec, name)) is not None:
            add(f"e.{name} = %({name})s", **{name: value})
    _add_windows(spec, add)
    return _select(schema, "", conditions, f"{order} limit %(limit)s"), parameters


def _add_windows(spec: ReadSpec, add: Any) -> None:
    occurred = "coalesce(e.occurred_us, e.recorded_us)"
    if spec.occurred_after_us is not None:
        add(f"{occurred} > %(occurred_after)s", occurred_after=spec.occurred_after_us)
    if spec.occurred_until_us is not None:
        add(f"{occurred} <= %(occurred_until)s", occurred_until=spec.occurred_until_us)
    if spec.recorded_after_us is not None:
        add("e.recorded_us > %(recorded_after)s", recorded_after=spec.recorded_after_us)
    if spec.recorded_until_us is not None:
        add("e.recorded_us <= %(recorded_until)s", recorded_until=spec.recorded_until_us)


def _select(schema: str, source: str, conditions: list[str], order: str) -> LiteralString:
    return (
        f'select {COLUMNS} from "{schema}".events e{source}'  # noqa: S608 - all parts are ours
        f" where {' and '.join(conditions)} order by {order}"
    )


def filters_of(query: Query) -> list[Filter]:
    """Return the filters that can match anything; a query without filters is one open filter."""
    if not query.filters:
        return [Filter()]
    return [
        one
        for one in query.filters
        if not any(
            side is not None and not side
            for side in (one.types, one.payload, one.tags, one.streams)
        )
    ]


def filter_statement(  # noqa: PLR0913 - one filter over one range
    schema: str, tenant_id: str, one: Filter, after: int, until: int, limit: int
) -> tuple[LiteralString, Parameters]:
    """Return the statement of one filter's records, in order."""
    parameters: Parameters = {"limit": limit}
    source, conditions, position = _filter(schema, tenant_id, one, after, until, parameters)
    return _select(schema, source, conditions, f"{position} limit %(limit)s"), parameters


def last_statement(  # noqa: PLR0913 - one filter over one range
    schema: str, tenant_id: str, one: Filter, after: int, until: int, *, by_payload: bool
) -> tuple[LiteralString, Parameters]:
    """Return the statement of one filter's highest position.

    It walks back from the end, or, `by_payload`, collects what the payload index finds: a planner
    that hopes to meet a match soon would walk the whole log for one that is not there.
    """
    parameters: Parameters = {}
    if _is_one_tag(one):
        return _last_of_tag(schema, tenant_id, one, after, until)
    source, conditions, position = _filter(schema, tenant_id, one, after, until, parameters)
    found = (
        f'select {position} as position from "{schema}".events e{source}'  # noqa: S608
        f" where {' and '.join(conditions)}"
    )
    if by_payload:
        text = f"with found as materialized ({found}) select max(position) from found"  # noqa: S608
    else:
        text = f"{found} order by {position} desc limit 1"
    return text, parameters


def _is_one_tag(one: Filter) -> bool:
    return (
        one.tags is not None
        and len(one.tags) == 1
        and one.types is None
        and one.payload is None
        and one.streams is None
    )


def _last_of_tag(
    schema: str, tenant_id: str, one: Filter, after: int, until: int
) -> tuple[LiteralString, Parameters]:
    text = (
        f'select position from "{schema}".event_tags where tag_key = %(tag)s'  # noqa: S608
        " and position > %(after)s and position <= %(until)s order by position desc limit 1"
    )
    key = uuid.UUID(bytes=tag_key(tenant_id, (one.tags or ("",))[0]))
    return text, {"tag": key, "after": after, "until": until}


def _filter(  # noqa: PLR0913 - one filter over one range
    schema: str, tenant_id: str, one: Filter, after: int, until: int, parameters: Parameters
) -> tuple[str, list[str], str]:
    """Return a filter's joins, its conditions, and the column that walks in position order."""
    parameters["tenant"] = tenant_id
    conditions = _range(parameters, after, until)
    conditions.append("e.tenant_id = %(tenant)s")
    source = _add_sides(schema, tenant_id, one, conditions, parameters)
    return source, conditions, "t0.position" if one.tags else "e.position"


def _add_sides(
    schema: str, tenant_id: str, one: Filter, conditions: list[str], parameters: Parameters
) -> str:
    source = ""
    if one.types is not None:
        _add_any(conditions, parameters, "e.event_type", "type", list(one.types))
    if one.streams is not None:
        keys = [uuid.UUID(bytes=stream_key(tenant_id, *stream)) for stream in one.streams]
        _add_any(conditions, parameters, "e.stream_key", "stream", keys)
    if one.tags is not None:
        for index, tag in enumerate(dict.fromkeys(one.tags)):
            alias = f"t{index}"
            source += f' join "{schema}".event_tags {alias} on {alias}.position = e.position'
            conditions.append(f"{alias}.tag_key = %({alias})s")
            parameters[alias] = uuid.UUID(bytes=tag_key(tenant_id, tag))
            # The tag's own index walks in the order that is asked for.
            for bound, sign in (("after", ">"), ("until", "<=")):
                if bound in parameters:
                    conditions.append(f"{alias}.position {sign} %({bound})s")
    if one.payload is not None:
        conditions.append(f"({' or '.join(_predicates(one.payload, parameters))})")
    return source


def _add_any(
    conditions: list[str], parameters: Parameters, column: str, name: str, values: list[Any]
) -> None:
    if len(values) == 1:
        conditions.append(f"{column} = %({name})s")
        parameters[name] = values[0]
    else:
        conditions.append(f"{column} = any (%({name}s)s)")
        parameters[f"{name}s"] = values


def _predicates(predicates: Any, parameters: Parameters) -> list[str]:
    """Containment, plus equal types at the top, where it would let a scalar match an array."""
    conditions = []
    for index, predicate in enumerate(predicates):
        name = f"p{index}"
        parameters[name] = Jsonb(predicate, dumps=canonical_text)
        kind = _kind_of(predicate)
        conditions.append(
            f"(e.payload::jsonb @> %({name})s and jsonb_typeof(e.payload::jsonb) = '{kind}')"
        )
    return conditions


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list | tuple) else "number"
