"""Queries over the log, and the matcher that defines their meaning on every backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from seriatim.core.canonical import check_json
from seriatim.core.errors import InvalidArgument, InvalidQuery, ValidationError
from seriatim.core.event import STREAM_REF_LENGTH, EventRecord, StreamRef
from seriatim.core.ids import id_problem, text_problem
from seriatim.core.limits import DEFAULT_LIMITS, Limits
from seriatim.core.patterns import NameFilter, pattern_problem
from seriatim.core.predicate import PayloadDocument, compile_predicate, count_values, matches_json

__all__ = [
    "MATCH_ALL",
    "Filter",
    "Matcher",
    "Query",
    "check_context_version",
    "check_query",
    "matches",
    "matches_json",
]

_POSITION_END = 1 << 63


class Filter(msgspec.Struct, frozen=True):
    """The conditions of one filter, which an event must all satisfy.

    A condition that is None does not filter; an empty list matches nothing.

    Attributes:
        types: Event types or patterns such as `seat.*`; one of them must match.
        payload: Payload predicates; one of them must match.
        tags: Tags; the event must have all of them.
        streams: Streams as `(type, id)`; the event must be in one of them.
        correlation_id: The correlation id of the event.
        causation_id: The causation id of the event.
        actor_id: The actor of the event.

    Example:
        paid_by_4 = Filter(types=["order.*"], payload=[{"paid": True}], tags=["customer:4"])
        result = log.query(Query([paid_by_4]))
    """

    types: Sequence[str] | None = None
    payload: Sequence[Any] | None = None
    tags: Sequence[str] | None = None
    streams: Sequence[StreamRef] | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    actor_id: str | None = None

    @property
    def ids(self) -> dict[str, str]:
        """The ids that the event must have, by the name of their field."""
        return {name: value for name in ID_FIELDS if (value := getattr(self, name)) is not None}


ID_FIELDS = ("correlation_id", "causation_id", "actor_id")
LIST_FIELDS = tuple(name for name in Filter.__struct_fields__ if name not in ID_FIELDS)


class Query(msgspec.Struct, frozen=True):
    """A query: an event matches if it matches any of the filters.

    Attributes:
        filters: The filters; None matches everything.
        min_position: Return only records after this position. It does not affect the version of
            the context.

    Example:
        Query([Filter(types=["seat.*"], tags=["show:7"])])
    """

    filters: Sequence[Filter] | None = None
    min_position: int | None = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Query:
        """Build a query from its JSON form, with the field names of the log or of facts.

        Raises:
            InvalidQuery: The mapping has an unknown field or an invalid type.
        """
        if not isinstance(mapping, Mapping):
            raise _query_error("$", "a query must be an object")
        fields = _rename_fields(mapping, _QUERY_NAMES, "$")
        filters = fields.get("filters")
        if filters is not None:
            if not isinstance(filters, list | tuple):
                raise _query_error("filters", "must be a list")
            fields["filters"] = [_parse_filter(item, index) for index, item in enumerate(filters)]
        return cls(**fields)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form of the query, which durable subscriptions store and compare."""
        form: dict[str, Any] = {
            "filters": [
                {
                    name: [list(item) if name == "streams" else item for item in values]
                    for name in LIST_FIELDS
                    if (values := getattr(query_filter, name)) is not None
                }
                | query_filter.ids
                for query_filter in self.filters or ()
            ]
        }
        if self.min_position is not None:
            form["min_position"] = self.min_position
        return form


MATCH_ALL = Query()

_QUERY_NAMES = {
    "filters": "filters",
    "min_position": "min_position",
    "min_sequence_number": "min_position",
}
_FILTER_NAMES = {
    "types": "types",
    "event_types": "types",
    "payload": "payload",
    "payload_predicates": "payload",
    "tags": "tags",
    "streams": "streams",
    **{name: name for name in ID_FIELDS},
}


def _rename_fields(
    mapping: Mapping[str, Any], names: Mapping[str, str], where: str
) -> dict[str, Any]:
    """Map the field names of a JSON form to those of the struct."""
    fields: dict[str, Any] = {}
    for name, value in mapping.items():
        field = names.get(name)
        if field is None or field in fields:
            problem = f"unknown or duplicate field {str(name)[:80]!r}: use {', '.join(names)}"
            raise _query_error(where, problem)
        fields[field] = value
    return fields


def _parse_filter(item: Any, index: int) -> Filter:
    if not isinstance(item, Mapping):
        raise _query_error(f"filters[{index}]", "must be an object")
    fields = _rename_fields(item, _FILTER_NAMES, f"filters[{index}]")
    if isinstance(fields.get("streams"), list):
        fields["streams"] = [
            tuple(stream) if isinstance(stream, list) else stream for stream in fields["streams"]
        ]
    return Filter(**fields)


def check_query(query: Query, limits: Limits = DEFAULT_LIMITS) -> None:
    """Raise if a query is malformed or too large, before anything is run.

    Raises:
        InvalidQuery: A part of the query has an invalid type or value.
        LimitExceeded: The query has too many filters, predicates or values.
    """
    if not isinstance(query, Query):
        raise _query_error("query", "must be a Query")
    min_position = query.min_position
    if min_position is not None and (
        type(min_position) is not int or not 0 <= min_position < _POSITION_END
    ):
        raise _query_error("min_position", "must be a position from 0")
    filters = query.filters
    if filters is None:
        return
    if not isinstance(filters, list | tuple):
        raise _query_error("filters", "must be a list")
    limits.check("filters", len(filters))
    values = 0
    for index, query_filter in enumerate(filters):
        values += _check_sizes(query_filter, f"filters[{index}]", limits)
        limits.check("predicate_values", values)  # before they are traversed
        _check_filter(query_filter, f"filters[{index}]", limits)


def _check_sizes(query_filter: object, where: str, limits: Limits) -> int:
    """Check the lengths of a filter's lists; return the number of values in its predicates."""
    if not isinstance(query_filter, Filter):
        raise _query_error(where, "must be a Filter")
    for name in LIST_FIELDS:
        values = getattr(query_filter, name)
        if values is not None and not isinstance(values, list | tuple):
            raise _query_error(f"{where}.{name}", "must be a list")
        limits.check("predicates", len(values or ()))
    return sum(
        count_values(predicate, limits.predicate_values) for predicate in query_filter.payload or ()
    )


def _check_filter(query_filter: Filter, where: str, limits: Limits) -> None:
    for name, find_problem in (("types", types_problem), ("tags", text_problem)):
        for index, value in enumerate(getattr(query_filter, name) or ()):
            if problem := find_problem(value):
                raise _query_error(f"{where}.{name}[{index}]", problem)
    for name, value in query_filter.ids.items():
        if problem := text_problem(value):
            raise _query_error(f"{where}.{name}", problem)
    _check_streams(query_filter.streams or (), where)
    for index, predicate in enumerate(query_filter.payload or ()):
        try:
            check_json(predicate, limits=limits)
        except ValidationError as problem:
            raise _query_error(f"{where}.payload[{index}]", str(problem)) from None


def types_problem(value: object) -> str | None:
    """Return why a value is neither an event type nor a pattern, or None if it is."""
    return id_problem(value) or pattern_problem(str(value))


def _check_streams(streams: Sequence[object], where: str) -> None:
    for index, stream in enumerate(streams):
        if (
            not isinstance(stream, tuple)
            or len(stream) != STREAM_REF_LENGTH
            or any(map(id_problem, stream))
        ):
            raise _query_error(
                f"{where}.streams[{index}]", "must be a (stream type, stream id) pair"
            )


def _query_error(where: str, problem: str) -> InvalidQuery:
    return InvalidQuery(f"{where}: {problem}", details={"where": where})


def check_context_version(version: object) -> None:
    """Raise `InvalidArgument` unless an expected context version is a position or None."""
    if version is not None and (type(version) is not int or not 1 <= version < _POSITION_END):
        msg = "an expected context version must be a position from 1, or None"
        raise InvalidArgument(msg, details={"argument": "expected_version"})


class Matcher:
    """A compiled query that is matched against many records; `min_position` is ignored.

    Several matchers may share the `PayloadDocument` of a record: its payload is parsed once, and
    their comparisons count towards one limit.
    """

    def __init__(self, query: Query) -> None:
        self._filters = [_FilterMatcher(query_filter) for query_filter in query.filters or ()]

    def matches(self, record: EventRecord, document: PayloadDocument | None = None) -> bool:
        """Return whether a record matches the query."""
        if not self._filters:
            return True
        if document is None:
            document = PayloadDocument(record.payload_json)
        return any(matcher.matches(record, document) for matcher in self._filters)


class _FilterMatcher:
    """One filter, compiled for fast lookups."""

    def __init__(self, query_filter: Filter) -> None:
        self._types = None if query_filter.types is None else NameFilter.parse(query_filter.types)
        self._streams = None if query_filter.streams is None else frozenset(query_filter.streams)
        self._tags = None if query_filter.tags is None else frozenset(query_filter.tags)
        self._ids = query_filter.ids
        self._payload = (
            None
            if query_filter.payload is None
            else list(map(compile_predicate, query_filter.payload))
        )

    def matches(self, record: EventRecord, document: PayloadDocument) -> bool:
        # Cheapest first. `issubset` holds for no tags at all, but an empty list matches nothing.
        return (
            (self._types is None or self._types.allows(record.event_type))
            and (self._streams is None or record.stream in self._streams)
            and all(getattr(record, name) == value for name, value in self._ids.items())
            and (self._tags is None or (bool(self._tags) and self._tags.issubset(record.tags)))
            and (
                self._payload is None
                or any(predicate.matches(document.data, document) for predicate in self._payload)
            )
        )


def matches(query: Query, record: EventRecord) -> bool:
    """Return whether a record matches a query; use a `Matcher` for many records."""
    return Matcher(query).matches(record)
