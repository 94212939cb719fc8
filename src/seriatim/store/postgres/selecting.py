"""Reads and queries as SQL: each filter becomes conditions that an index can answer.

A query's filters run as separate statements and are merged: an OR across filters would take every
one of them away from its index.
"""

from __future__ import annotations

import uuid
from typing import Any, LiteralString

from psycopg.types.json import Jsonb

from seriatim.core.canonical import canonical_text
from seriatim.core.ids import stream_key
from seriatim.core.kinds import TRACE_KIND
from seriatim.core.routes import Route
from seriatim.store.port import ReadSpec
from seriatim.store.postgres.statements import COLUMNS, named_statements

Parameters = dict[str, Any]

_RANGE = ("e.position > %(after)s", "e.position <= %(until)s")


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
    return _select(schema, conditions, f"{order} limit %(limit)s"), parameters


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


def _select(schema: str, conditions: list[str], order: str) -> LiteralString:
    return (
        f'select {COLUMNS} from "{schema}".events e'  # noqa: S608 - all parts are ours
        f" where {' and '.join(conditions)} order by {order}"
    )


def filter_statement(
    schema: str, tenant_id: str, route: Route, limit: int
) -> tuple[LiteralString, Parameters]:
    """Return the statement of the records along one route, in order."""
    conditions, parameters = _conditions(tenant_id, route)
    parameters["limit"] = limit
    if route.alternatives:
        return _along(schema, "records", "ascending", route, conditions, parameters), parameters
    return _in_order(schema, COLUMNS, "asc", route, conditions, parameters), parameters


def last_statement(schema: str, tenant_id: str, route: Route) -> tuple[LiteralString, Parameters]:
    """Return the statement of the highest position along one route."""
    conditions, parameters = _conditions(tenant_id, route)
    parameters["limit"] = 1
    if route.alternatives:
        return _along(schema, "last", "descending", route, conditions, parameters), parameters
    return _in_order(schema, "e.position", "desc", route, conditions, parameters), parameters


def _in_order(  # noqa: PLR0913 - the parts of one statement
    schema: str,
    columns: str,
    order: str,
    route: Route,
    conditions: list[str],
    parameters: Parameters,
) -> LiteralString:
    """Go through a range without keys.

    Predicates are judged behind a fence: a planner that takes them for rare would test and sort
    the whole range, where a dense one is met within the first few events.
    """
    ranged = [*_RANGE, *conditions]
    inner = f'"{schema}".events e where {" and ".join(ranged)} order by e.position {order}'
    if route.one.payload is None:
        return f"select {columns} from {inner} limit %(limit)s"  # noqa: S608 - all parts are ours
    either = " or ".join(_predicates(route.one.payload, parameters))
    return (
        f"select {columns} from (select * from {inner} offset 0) e"  # noqa: S608
        f" where {either} limit %(limit)s"
    )


def _along(  # noqa: PLR0913 - the parts of one statement
    schema: str,
    name: str,
    order: str,
    route: Route,
    conditions: list[str],
    parameters: Parameters,
) -> LiteralString:
    """Follow a route's keys, and judge what they lead to by the rest of the filter."""
    size = max(map(len, route.alternatives))
    # An alternative with fewer keys names its last one again, which changes nothing.
    parameters["keys"] = [
        [uuid.UUID(bytes=keys[min(index, len(keys) - 1)]) for index in range(size)]
        for keys in route.alternatives
    ]
    parameters["size"] = size
    if route.one.payload is not None and not route.proven:
        either = " or ".join(_predicates(route.one.payload, parameters))
        conditions = [*conditions, f"({either})"]
    walks = named_statements("walks.sql", schema)
    if name == "last" and size == 1 and not conditions:
        return walks["last_of_keys"]
    kept = walks["kept"].replace("{conditions}", " and ".join(conditions)) if conditions else ""
    found = walks["found"].replace("{step}", walks[order]).replace("{kept}", kept)
    return walks[name].replace("{found}", found)


def _conditions(tenant_id: str, route: Route) -> tuple[list[str], Parameters]:
    """Return what a route asks of events beside keys and predicates."""
    one = route.one
    conditions: list[str] = []
    parameters: Parameters = {"after": route.after, "until": route.until}
    if route.proven:
        return conditions, parameters
    if not route.alternatives:  # keys are of one tenant
        parameters["tenant"] = tenant_id
        conditions.append("e.tenant_id = %(tenant)s")
    if one.types is not None:
        _add_any(conditions, parameters, "e.event_type", "type", list(one.types))
    if one.streams is not None:
        keys = [uuid.UUID(bytes=stream_key(tenant_id, *stream)) for stream in one.streams]
        _add_any(conditions, parameters, "e.stream_key", "stream", keys)
    return conditions, parameters


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
