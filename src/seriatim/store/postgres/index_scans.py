"""Build the SQL of reads and queries: each filter becomes conditions that an index can serve.

The filters of a query run as separate statements and their results are merged: with an OR across
filters the planner could not use the index of any of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, LiteralString, NamedTuple

from psycopg.types.json import Jsonb

from seriatim.core.canonical import canonical_text
from seriatim.core.decision_graph import TRACE_STREAM_TYPE
from seriatim.core.event import StreamRef
from seriatim.core.ids import stream_key
from seriatim.core.patterns import NameFilter
from seriatim.core.query import ID_FIELDS
from seriatim.core.query_plan import AccessPath
from seriatim.store.port import ReadSpec
from seriatim.store.postgres.statements import RECORD_COLUMNS, load_postgres_statements

Parameters = dict[str, Any]
Condition = tuple[str, Parameters]
SeqBound = tuple[str, str]  # a comparison, and the look-up of the number on its right


class Source(NamedTuple):
    """What a statement reads from: the FROM clause with alias e, and the WITH clause before it."""

    from_clause: LiteralString
    with_clause: LiteralString = ""


EXPANDED_TYPES_MAX = 64  # branches of a statement; for more types the tenant's events are scanned
UNINDEXED_SEQ_MAX = 100  # first events of a stream that the index by type omits: see the schema
_RANGE = ("e.position > %(after)s", "e.position <= %(until)s")


def _build_range(parameters: Parameters, after: int, until: int | None) -> list[str]:
    parameters["after"] = after
    conditions = ["e.position > %(after)s"]
    if until is not None:
        parameters["until"] = until
        conditions.append("e.position <= %(until)s")
    return conditions


def build_read_statement(spec: ReadSpec, schema: str) -> tuple[LiteralString, Parameters]:
    """Return the statement and parameters of one page of a read."""
    parameters: Parameters = {"limit": spec.limit}
    conditions = _build_range(parameters, spec.after, spec.until)
    seq_range: list[SeqBound] = []
    related = spec.correlation_id is not None or spec.causation_id is not None
    for condition, values in (*_match_stream(spec, related=related), *_match_fields(spec)):
        conditions.append(condition)
        parameters.update(values)
    indexed = _find_indexed_id(spec)
    by_stream = spec.stream is not None and spec.tenant_id is not None and not related
    branches: list[str] = []
    if spec.type_names is not None:
        branches = _build_type_branches(spec.type_names, parameters)
        if indexed is not None or spec.tenant_id is None:
            branches = [_join_branches(branches)]
    order = "e.position"
    direction = "desc" if spec.newest_first else "asc"
    if by_stream:
        # Within a stream, sequence numbers and positions rise together; its indexes have numbers.
        order = "e.stream_seq"
        branches = _split_stream(branches, spec.type_names)
        upper = spec.until is not None and not spec.until_head
        seq_range = _build_seq_range(schema, lower=spec.after > 0, upper=upper)
    elif indexed is not None:
        order = f"e.{indexed} {direction}, e.position"
    limited = f"{order} {direction} limit %(limit)s"
    source = _build_source(schema, conditions, branches, limited, seq_range)
    text = (
        f"{source.with_clause}select {RECORD_COLUMNS} from {source.from_clause} order by {limited}"  # noqa: S608
    )
    return text, parameters


def _match_stream(spec: ReadSpec, *, related: bool) -> Iterator[Condition]:
    """Yield the conditions on stream, tenant and scope.

    Args:
        spec: The arguments of the read.
        related: Whether the read is by correlation or causation id.

    """
    if spec.stream is not None and related:
        # By name instead of key, so that the index on the id is used and not that on the stream.
        stream_type, stream_id = spec.stream
        yield "e.stream_type = %(stream_type)s", {"stream_type": stream_type}
        yield "e.stream_id = %(stream_id)s", {"stream_id": stream_id}
    elif spec.stream is not None and spec.tenant_id is not None:
        key = uuid.UUID(bytes=stream_key(spec.tenant_id, *spec.stream))
        yield "e.stream_key = %(stream)s", {"stream": key}
    if spec.tenant_id is not None and (related or spec.stream is None):
        yield "e.tenant_id = %(tenant)s", {"tenant": spec.tenant_id}
    if spec.after_seq is not None:
        yield "e.stream_seq > %(after_seq)s", {"after_seq": spec.after_seq}
    if spec.scope == "traces":
        yield "e.stream_type = %(trace)s", {"trace": TRACE_STREAM_TYPE}
    elif spec.scope == "aggregates":
        yield "e.stream_type <> %(trace)s", {"trace": TRACE_STREAM_TYPE}


def _match_fields(spec: ReadSpec) -> Iterator[Condition]:
    """Yield the conditions on ids and times of single events."""
    indexed = _find_indexed_id(spec)
    for name in ("app_id", "env_id", *ID_FIELDS):
        if (value := getattr(spec, name)) is not None:
            yield _match_id(name, indexed), {name: value}
    occurred = "coalesce(e.occurred_us, e.recorded_us)"
    if spec.occurred_after_us is not None:
        yield f"{occurred} > %(occurred_after)s", {"occurred_after": spec.occurred_after_us}
    if spec.occurred_until_us is not None:
        yield f"{occurred} <= %(occurred_until)s", {"occurred_until": spec.occurred_until_us}
    if spec.recorded_after_us is not None:
        yield "e.recorded_us > %(recorded_after)s", {"recorded_after": spec.recorded_after_us}
    if spec.recorded_until_us is not None:
        yield "e.recorded_us <= %(recorded_until)s", {"recorded_until": spec.recorded_until_us}


def _find_indexed_id(spec: ReadSpec) -> str | None:
    """Return the id whose index answers a read of a tenant, None if another index does."""
    if spec.tenant_id is None:
        return None
    names = ID_FIELDS if spec.stream is None else ID_FIELDS[:2]
    return next((name for name in names if getattr(spec, name) is not None), None)


def _match_id(name: str, indexed: str | None) -> str:
    """Return the condition on an id.

    Args:
        name: The id.
        indexed: The id whose index answers the read, if there is one.

    """
    if name == indexed:
        # As a range, the id is part of the requested order, which only the index on the id has.
        # With an equality a planner may walk along all events of the tenant, where it may be rare.
        return f"e.{name} >= %({name})s and e.{name} <= %({name})s"
    # An actor may have more events than other indexes find: an expression hides its index.
    column = f"e.{name} || ''" if name == "actor_id" else f"e.{name}"
    return f"{column} = %({name})s"


def _build_seq_range(schema: str, *, lower: bool, upper: bool) -> list[SeqBound]:
    """Return the bounds of a range of positions as sequence numbers of the stream `%(stream)s`.

    Without them a read in the middle of a stream would pass over all events before or after it.
    """
    find_seq = load_postgres_statements("index_scans.sql", schema)["find_seq"]
    after, until = (find_seq.replace("{position}", name) for name in ("%(after)s", "%(until)s"))
    bounds = [("e.stream_seq >", after)] if lower else []
    return [*bounds, ("e.stream_seq <=", until)] if upper else bounds


def _build_source(
    schema: str,
    conditions: list[str],
    branches: list[str],
    order: str,
    seq_range: Sequence[SeqBound] = (),
) -> Source:
    """Return the events to read: one branch per type, which the server merges in order.

    Each branch is in the order of its index. With one condition over all types the server would
    sort, or scan all events of the tenant.
    """
    table = f'"{schema}".events e where '
    if len(branches) <= 1:  # nothing to merge
        bounds = [f"{comparison} {find_seq}" for comparison, find_seq in seq_range]
        return Source(table + " and ".join([*conditions, *bounds, *branches]))
    # Materialized: all branches share one search for each bound.
    searches = ", ".join(
        f"bound_{number} as materialized (select {find_seq} as seq)"
        for number, (_, find_seq) in enumerate(seq_range)
    )
    bounds = [
        f"{comparison} (select seq from bound_{number})"  # noqa: S608 - all parts are ours
        for number, (comparison, _) in enumerate(seq_range)
    ]
    parts = (
        f"(select e.* from {table}{' and '.join([*conditions, *bounds, branch])}"  # noqa: S608
        f" order by {order})"
        for branch in branches
    )
    source = f"({' union all '.join(parts)}) e"
    return Source(source, f"with {searches} " if searches else "")


def _join_branches(branches: list[str]) -> str:
    """Return one branch for all types, where another index finds the events."""
    return f"({' or '.join(branches)})"


def _split_stream(branches: list[str], names: NameFilter | None) -> list[str]:
    """Return the branches of a read within one stream: its first events are not indexed by type."""
    if not _are_expanded(names):
        return branches
    first = f"e.stream_seq <= {UNINDEXED_SEQ_MAX} and {_join_branches(branches)}"
    return [first, *(f"{branch} and e.stream_seq > {UNINDEXED_SEQ_MAX}" for branch in branches)]


def _build_type_branches(names: NameFilter, parameters: Parameters) -> list[str]:
    """Return one condition per type, or a single condition for patterns and for many types."""
    if _are_expanded(names):
        for number, name in enumerate(names.values):
            parameters[f"type_{number}"] = name
        return [f"e.event_type = %(type_{number})s" for number in range(len(names.values))]
    parameters["types"] = list(names.values)
    alternatives = ["e.event_type = any (%(types)s)"] if names.values else []
    for number, (first, end) in enumerate(names.prefix_ranges()):
        parameters[f"first_{number}"], parameters[f"end_{number}"] = first, end
        alternatives.append(
            f"(e.event_type >= %(first_{number})s and e.event_type < %(end_{number})s)"
        )
    return [f"({' or '.join(alternatives)})"]


def build_route_statement(
    schema: str, tenant_id: str, route: AccessPath, limit: int, *, newest_first: bool = False
) -> tuple[LiteralString, Parameters]:
    """Return the statement and parameters that select the records of one route, in order."""
    conditions, branches, parameters = _build_conditions(schema, tenant_id, route)
    parameters["limit"] = limit
    if route.key_alternatives:
        seek, direction = ("seek_descending", "desc") if newest_first else ("seek_ascending", "asc")
        text = _build_key_scan(
            schema, "select_records", seek, route, [*conditions, *branches], parameters
        )
        return text.replace("{direction}", direction), parameters
    direction = "desc" if newest_first else "asc"
    between = newest_first or route.after > 0  # a first page ends at the head
    source = _build_route_source(schema, route, conditions, branches, direction, upper=between)
    return _build_range_scan(source, RECORD_COLUMNS, direction, route, parameters), parameters


def build_last_position_statement(
    schema: str, tenant_id: str, route: AccessPath
) -> tuple[LiteralString, Parameters]:
    """Return the statement and parameters that select the highest position of one route."""
    conditions, branches, parameters = _build_conditions(schema, tenant_id, route)
    parameters["limit"] = 1
    if route.key_alternatives:
        all_conditions = [*conditions, *branches]
        text = _build_key_scan(
            schema, "select_last_position", "seek_descending", route, all_conditions, parameters
        )
        return text, parameters
    source = _build_route_source(schema, route, conditions, branches, "desc", upper=False)
    return _build_range_scan(source, "e.position", "desc", route, parameters), parameters


def _build_route_source(
    schema: str,
    route: AccessPath,
    conditions: list[str],
    branches: list[str],
    direction: str,
    *,
    upper: bool,
) -> Source:
    """Return the events of a route without index keys; `upper` bounds the numbers of a stream."""
    by_stream = _is_one_stream(route)
    order = f"{'e.stream_seq' if by_stream else 'e.position'} {direction}"
    if route.filter.payload is None:  # predicates are tested after the scan
        order += " limit %(limit)s"
    lower = route.after > 0
    seq_range = _build_seq_range(schema, lower=lower, upper=upper) if by_stream else ()
    return _build_source(schema, [*_RANGE, *conditions], branches, order, seq_range)


def is_in_index_order(route: AccessPath) -> bool:
    """Return whether an index has the events of a route in the order of its statements.

    The events of several streams, and those of index keys, are sorted.
    """
    streams = route.filter.streams
    return not route.key_alternatives and (streams is None or len(streams) == 1)


def _is_one_stream(route: AccessPath) -> bool:
    """Return whether a route reads one stream along its sequence numbers."""
    return route.index == "stream" and len(route.filter.streams or ()) == 1


def _get_indexed_id(route: AccessPath) -> str | None:
    """Return the id whose index answers a route, None if another index does."""
    indexed = route.index in ("correlation", "causation", "actor")
    return f"{route.index}_id" if indexed else None


def _are_expanded(names: NameFilter | None) -> bool:
    """Return whether a read has a branch for each type."""
    return names is not None and not names.prefixes and len(names.values) <= EXPANDED_TYPES_MAX


def _build_range_scan(
    source: Source, columns: str, order: str, route: AccessPath, parameters: Parameters
) -> LiteralString:
    """Return the statement that scans a range of positions without index keys.

    Predicates are tested outside an optimization fence (`offset 0`). A planner that expects few
    matches would otherwise test and sort the whole range, even if the first few events match.
    """
    column = "e.stream_seq" if _is_one_stream(route) else "e.position"
    if (indexed := _get_indexed_id(route)) is not None:
        direction, *_ = order.split()
        column = f"e.{indexed} {direction}, {column}"
    inner = f"{source.from_clause} order by {column} {order}"
    select = f"{source.with_clause}select {columns} from"
    if route.filter.payload is None:
        return f"{select} {inner} limit %(limit)s"
    any_predicate = _build_predicates(route.filter.payload, parameters)
    return (
        f"{select} (select e.* from {inner} offset 0) e"  # noqa: S608
        f" where {any_predicate} limit %(limit)s"
    )


def _build_key_scan(
    schema: str,
    name: str,
    seek: str,
    route: AccessPath,
    conditions: list[str],
    parameters: Parameters,
) -> LiteralString:
    """Return the statement that scans index keys and tests the events by the rest of the filter."""
    size = max(map(len, route.key_alternatives))
    # All alternatives need the same number of keys; repeating the last one changes nothing.
    parameters["keys"] = [
        [uuid.UUID(bytes=keys[min(index, len(keys) - 1)]) for index in range(size)]
        for keys in route.key_alternatives
    ]
    parameters["size"] = size
    if route.filter.payload is not None and not route.exact:
        conditions = [*conditions, _build_predicates(route.filter.payload, parameters)]
    scans = load_postgres_statements("index_scans.sql", schema)
    if name == "select_last_position" and size == 1 and not conditions:
        return scans["select_last_position_of_keys"]
    condition = " and ".join(conditions)
    event_filter = scans["filter_events"].replace("{conditions}", condition) if conditions else ""
    positions = scans["find_positions"].replace("{seek}", scans[seek])
    return scans[name].replace("{positions}", positions.replace("{filter}", event_filter))


def _build_conditions(
    schema: str, tenant_id: str, route: AccessPath
) -> tuple[list[str], list[str], Parameters]:
    """Return the conditions of a route besides keys and predicates, its type branches, parameters.

    Keys and lists of streams are selective, so one condition over all types is enough with them.
    """
    query_filter = route.filter
    conditions: list[str] = []
    branches: list[str] = []
    parameters: Parameters = {"after": route.after, "until": route.until}
    if route.exact:
        return conditions, branches, parameters
    related = route.index in ("correlation", "causation")
    if not route.key_alternatives:  # index keys include the tenant
        parameters["tenant"] = tenant_id
        conditions.append("e.tenant_id = %(tenant)s")
    if route.types is not None:
        branches = _build_type_branches(route.types, parameters)
        if route.key_alternatives or query_filter.ids or len(query_filter.streams or ()) > 1:
            branches = [_join_branches(branches)]
        elif _is_one_stream(route):
            branches = _split_stream(branches, route.types)
    conditions += _build_id_conditions(schema, route, parameters)
    if query_filter.streams is not None and related:
        # By name instead of key, so that the index on the id is used and not that on the stream.
        names = [
            f"({', '.join(stream)})" for stream in _bind_streams(query_filter.streams, parameters)
        ]
        conditions.append(f"(e.stream_type, e.stream_id) in ({', '.join(names)})")
    elif query_filter.streams is not None:
        keys = [uuid.UUID(bytes=stream_key(tenant_id, *stream)) for stream in query_filter.streams]
        _add_any(conditions, parameters, "e.stream_key", "stream", keys)
    return conditions, branches, parameters


def _build_id_conditions(schema: str, route: AccessPath, parameters: Parameters) -> list[str]:
    """Return the conditions on ids, and on tags that are not followed by their keys."""
    parameters.update(route.filter.ids)
    indexed = _get_indexed_id(route)
    conditions = [_match_id(name, indexed) for name in route.filter.ids]
    for number, key in enumerate(route.tag_keys):
        parameters[f"tag_{number}"] = uuid.UUID(bytes=key)
        # A scalar subquery is a look-up for each event; a join might read all events of the tag.
        conditions.append(
            f'(select true from "{schema}".event_tags k'  # noqa: S608
            f" where k.tag_key = %(tag_{number})s and k.position = e.position)"
        )
    return conditions


def _bind_streams(streams: Sequence[StreamRef], parameters: Parameters) -> list[tuple[str, str]]:
    """Bind the type and id of each stream to parameters, and return their placeholders."""
    found = []
    for number, (stream_type, stream_id) in enumerate(dict.fromkeys(streams)):
        parameters[f"stream_type_{number}"] = stream_type
        parameters[f"stream_id_{number}"] = stream_id
        found.append((f"%(stream_type_{number})s", f"%(stream_id_{number})s"))
    return found


def _add_any(
    conditions: list[str], parameters: Parameters, column: str, name: str, values: list[Any]
) -> None:
    if len(values) == 1:
        conditions.append(f"{column} = %({name})s")
        parameters[name] = values[0]
    else:
        conditions.append(f"{column} = any (%({name}s)s)")
        parameters[f"{name}s"] = values


def _build_predicates(predicates: Sequence[Any], parameters: Parameters) -> str:
    """Return the condition that a payload matches one of the predicates.

    It is containment plus equal types at the top level, where containment alone lets a scalar match
    an array. The payload is parsed once, inside an optimization fence, for all predicates.
    """
    conditions = []
    for index, predicate in enumerate(predicates):
        name = f"p{index}"
        parameters[name] = Jsonb(predicate, dumps=canonical_text)
        kind = _get_json_type(predicate)
        conditions.append(f"(d.data @> %({name})s and jsonb_typeof(d.data) = '{kind}')")
    any_condition = " or ".join(conditions)
    return f"(select {any_condition} from (select e.payload::jsonb as data offset 0) d)"  # noqa: S608


def _get_json_type(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list | tuple) else "number"
