"""Queries over the log, and the one matcher that defines what they mean on every backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from seriatim.core.canonical import check_json
from seriatim.core.errors import Flaw, InvalidArgument, InvalidQuery
from seriatim.core.event import EventRecord, StreamRef
from seriatim.core.ids import id_problem, text_problem
from seriatim.core.limits import DEFAULT_LIMITS, Limits
from seriatim.core.patterns import Names, pattern_problem
from seriatim.core.predicate import Document, compile_predicate, count_values, matches_json

__all__ = [
    "EVERYTHING",
    "Filter",
    "Matcher",
    "Query",
    "check_query",
    "check_version",
    "matches",
    "matches_json",
]

_POSITION_END = 1 << 63


class Filter(msgspec.Struct, frozen=True):
    """All that one filter demands at once; None leaves a side open, an empty list matches nothing.

    `types` (exact ones, or patterns such as `seat.*`), `payload` predicates and `streams` are each
    OR-ed, `tags` must all be there.
    """

    types: Sequence[str] | None = None
    payload: Sequence[Any] | None = None
    tags: Sequence[str] | None = None
    streams: Sequence[StreamRef] | None = None


class Query(msgspec.Struct, frozen=True):
    """Filters that are OR-ed (none: everything), and an exclusive cursor on returned records."""

    filters: Sequence[Filter] | None = None
    min_position: int | None = None

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Query:
        """Take a query in dictionary form, in our names or in those of the facts vocabulary."""
        if not isinstance(given, Mapping):
            raise _invalid("$", "a query is an object")
        fields = _renamed(given, _QUERY_NAMES, "$")
        filters = fields.get("filters")
        if filters is not None:
            if not isinstance(filters, list | tuple):
                raise _invalid("filters", "must be a list")
            fields["filters"] = [_filter_from(item, index) for index, item in enumerate(filters)]
        return cls(**fields)

    def as_dict(self) -> dict[str, Any]:
        """Return the query's JSON form: what durable subscriptions store and compare."""
        shown: dict[str, Any] = {
            "filters": [
                {
                    name: [list(item) if name == "streams" else item for item in side]
                    for name in Filter.__struct_fields__
                    if (side := getattr(one, name)) is not None
                }
                for one in self.filters or ()
            ]
        }
        if self.min_position is not None:
            shown["min_position"] = self.min_position
        return shown


EVERYTHING = Query()

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
}


def _renamed(given: Mapping[str, Any], names: Mapping[str, str], where: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in given.items():
        known = names.get(name)
        if known is None or known in fields:
            raise _invalid(where, f"has no field {str(name)[:80]!r}, or has it twice")
        fields[known] = value
    return fields


def _filter_from(item: Any, index: int) -> Filter:
    if not isinstance(item, Mapping):
        raise _invalid(f"filters[{index}]", "must be an object")
    fields = _renamed(item, _FILTER_NAMES, f"filters[{index}]")
    if isinstance(fields.get("streams"), list):
        fields["streams"] = [
            tuple(one) if isinstance(one, list) else one for one in fields["streams"]
        ]
    return Filter(**fields)


def check_query(query: Query, limits: Limits = DEFAULT_LIMITS) -> None:
    """Refuse a query of invalid shape before anything is run."""
    if not isinstance(query, Query):
        raise _invalid("query", "must be a Query")
    cursor = query.min_position
    if cursor is not None and (type(cursor) is not int or not 0 <= cursor < _POSITION_END):
        raise _invalid("min_position", "must be a position from 0")
    filters = query.filters
    if filters is None:
        return
    if not isinstance(filters, list | tuple):
        raise _invalid("filters", "must be a list")
    limits.check("filters", len(filters))
    values = 0
    for index, one in enumerate(filters):
        values += _check_sizes(one, f"filters[{index}]", limits)
        limits.check("predicate_values", values)  # before they are walked through
        _check_filter(one, f"filters[{index}]", limits)


def _check_sizes(one: object, where: str, limits: Limits) -> int:
    """Check the lengths of a filter's sides; return how many values its predicates have."""
    if not isinstance(one, Filter):
        raise _invalid(where, "must be a Filter")
    for name in Filter.__struct_fields__:
        side = getattr(one, name)
        if side is not None and not isinstance(side, list | tuple):
            raise _invalid(f"{where}.{name}", "must be a list")
        limits.check("predicates", len(side or ()))
    return sum(count_values(want, limits.predicate_values) for want in one.payload or ())


def _check_filter(one: Filter, where: str, limits: Limits) -> None:
    for name, problem_of in (("types", types_problem), ("tags", text_problem)):
        for index, value in enumerate(getattr(one, name) or ()):
            if problem := problem_of(value):
                raise _invalid(f"{where}.{name}[{index}]", problem)
    _check_streams(one.streams or (), where)
    for index, predicate in enumerate(one.payload or ()):
        try:
            check_json(predicate, limits=limits)
        except Flaw as flaw:
            raise _invalid(f"{where}.payload[{index}]", str(flaw)) from None


def types_problem(value: object) -> str | None:
    """Say why a value names no event types, neither one nor those of a pattern."""
    return id_problem(value) or pattern_problem(str(value))


def _check_streams(streams: Sequence[object], where: str) -> None:
    for index, stream in enumerate(streams):
        if not isinstance(stream, tuple) or len(stream) != 2 or any(map(id_problem, stream)):  # noqa: PLR2004
            raise _invalid(f"{where}.streams[{index}]", "must be a (stream type, stream id) pair")


def _invalid(where: str, problem: str) -> InvalidQuery:
    return InvalidQuery(f"{where}: {problem}", details={"where": where})


def check_version(version: object) -> None:
    """Refuse an expected context version that is neither absent nor a position."""
    if version is not None and (type(version) is not int or not 1 <= version < _POSITION_END):
        msg = "an expected context version is a position from 1, or absent"
        raise InvalidArgument(msg, details={"argument": "expected_version"})


class Matcher:
    """A query compiled once, to be matched with many records; the cursor plays no part.

    Several matchers may share the `Document` of a record: its payload is parsed once, and all of
    them together stay within its bound on comparisons.
    """

    def __init__(self, query: Query) -> None:
        self._filters = [_FilterMatcher(one) for one in query.filters or ()]

    def matches(self, record: EventRecord, document: Document | None = None) -> bool:
        """Tell whether a record belongs to the query's context."""
        if not self._filters:
            return True
        if document is None:
            document = Document(record.payload)
        return any(one.matches(record, document) for one in self._filters)


class _FilterMatcher:
    """One filter, its sides in the form in which they are looked up."""

    def __init__(self, one: Filter) -> None:
        self._types = None if one.types is None else Names.of(one.types)
        self._streams = None if one.streams is None else frozenset(one.streams)
        self._tags = None if one.tags is None else frozenset(one.tags)
        self._payload = None if one.payload is None else list(map(compile_predicate, one.payload))

    def matches(self, record: EventRecord, document: Document) -> bool:
        return (
            (self._types is None or self._types.allows(record.event_type))
            and (self._streams is None or record.stream in self._streams)
            and (self._tags is None or (bool(self._tags) and self._tags.issubset(record.tags)))
            and (
                self._payload is None
                or any(want.holds(document.data, document) for want in self._payload)
            )
        )


def matches(query: Query, record: EventRecord) -> bool:
    """Tell whether a record belongs to the query's context; for many records use a `Matcher`."""
    return Matcher(query).matches(record)
