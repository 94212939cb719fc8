"""Run reads and queries: pages of records, and context versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import LiteralString

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.kinds import Rules
from seriatim.core.limits import MIB
from seriatim.core.patterns import NameFilter
from seriatim.core.predicate import PayloadDocument, count_elements, weaken_predicate
from seriatim.core.query import Filter, Matcher, Query
from seriatim.core.query_plan import AccessPath, plan_query
from seriatim.store.common import PageBounds, is_page_full, take_page
from seriatim.store.port import ReadSpec
from seriatim.store.postgres.index_scans import (
    EXPANDED_TYPES_MAX,
    Parameters,
    build_last_position_statement,
    build_read_statement,
    build_route_statement,
    is_in_index_order,
)
from seriatim.store.postgres.reader import CountingReader, TenantReader
from seriatim.store.postgres.statements import decode_record, load_store_statements

_ELEMENTS_MAX = (
    16  # array elements in predicates; more are compared in Python, see `_verify_matches`
)
_PAGE_MIN, _PAGE_MAX = 16, 256  # candidates per page that the matcher tests
CANDIDATE_PAGE_BYTES = 2 * MIB  # of candidate payloads per page


class PostgresQueries:
    """Runs reads and queries of one log."""

    def __init__(self, schema: str, reader: TenantReader, rules: Callable[[], Rules]) -> None:
        self._schema = schema
        self._sql = load_store_statements(schema)
        self._reader = reader
        self._rules = rules

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        """Return one page of a read."""
        names = spec.type_names
        if names is not None and names.prefixes and spec.tenant_id is not None:
            names = self._expand_patterns(spec.tenant_id, names)
            spec = msgspec.structs.replace(spec, types=names.to_patterns())
        if spec.types is not None and not spec.types:
            return []
        statement, parameters = build_read_statement(spec, self._schema)
        return self._fetch_records(
            spec.tenant_id, statement, parameters, spec.max_bytes, in_index_order=True
        )

    def select(self, tenant_id: str, query: Query, page: PageBounds) -> list[EventRecord]:
        """Return one page of matching records, without duplicates.

        Routes are read one after another and merged, so that at most two pages are in memory,
        however many filters a query has.
        """
        matches: list[EventRecord] = []
        verify = has_costly_predicates(query)
        for route in self._routes(tenant_id, query, page.after, page.until):
            narrowed = page.narrow_route(route)
            if narrowed.after >= narrowed.until:
                continue
            records = self._read_route(tenant_id, narrowed, page, verify=verify)
            matches = page.merge_records(matches, records) if matches else records
            if is_page_full(matches, page.limit, page.max_bytes):
                page = page.end_at(matches[-1].position)  # later routes need not read further
        return matches

    def count_events_read(self, tenant_id: str, query: Query, page: PageBounds) -> int:
        """Run the statements of a page of `select`, and return how many events they read."""
        counting = CountingReader(self._reader)
        PostgresQueries(self._schema, counting, self._rules).select(tenant_id, query, page)
        return counting.events_read

    def _read_route(
        self, tenant_id: str, route: AccessPath, page: PageBounds, *, verify: bool
    ) -> list[EventRecord]:
        """Return one page of the records of a route."""
        if verify and _is_unproven(route):
            matching = self._verify_matches(tenant_id, route, newest_first=page.newest_first)
            return take_page(matching, page.limit, page.max_bytes)
        statement, parameters = build_route_statement(
            self._schema, tenant_id, route, page.limit, newest_first=page.newest_first
        )
        return self._fetch_records(
            tenant_id,
            statement,
            parameters,
            page.max_bytes,
            in_index_order=is_in_index_order(route),
        )

    def _fetch_records(
        self,
        tenant_id: str | None,
        statement: LiteralString,
        parameters: Parameters,
        max_bytes: int | None,
        *,
        in_index_order: bool,
    ) -> list[EventRecord]:
        if max_bytes is not None:
            statement = self._sql["limit_page_bytes"].replace("{page}", statement)
            parameters["max_bytes"] = max_bytes
        rows = self._reader.fetch_rows(
            tenant_id, statement, parameters, in_index_order=in_index_order
        )
        return [decode_record(row) for row in rows]

    def context_version(self, tenant_id: str, query: Query, until: int) -> int | None:
        """Return the highest position up to `until` that matches any filter."""
        highest = 0
        verify = has_costly_predicates(query)
        for route in self._routes(tenant_id, query, 0, until):
            if route.until <= highest:
                continue
            remaining = msgspec.structs.replace(route, after=max(route.after, highest))
            if verify and _is_unproven(route):
                newest = next(self._verify_matches(tenant_id, remaining, newest_first=True), None)
                highest = highest if newest is None else max(highest, newest.position)
                continue
            statement = build_last_position_statement(self._schema, tenant_id, remaining)
            rows = self._reader.fetch_rows(
                tenant_id, *statement, in_index_order=is_in_index_order(remaining)
            )
            highest = max([highest, *(row[0] or 0 for row in rows)])
        return highest or None

    def _verify_matches(
        self, tenant_id: str, route: AccessPath, *, newest_first: bool
    ) -> Iterator[EventRecord]:
        """Yield the matching records of a route whose predicates the server tests only in part.

        For arrays, the server compares each element of the predicate with each element of the
        payload. It therefore gets a weaker predicate with few elements, and the matcher, which is
        linear, verifies the candidates.
        """
        budget = self._reader.make_budget()
        matcher = Matcher(Query([route.filter]))
        weaker = _weaken_filter(route.filter)
        size = _PAGE_MIN
        while route.after < route.until:
            candidates = msgspec.structs.replace(route, filter=weaker)
            statement, parameters = build_route_statement(
                self._schema, tenant_id, candidates, size, newest_first=newest_first
            )
            records = self._fetch_records(
                tenant_id,
                statement,
                parameters,
                CANDIDATE_PAGE_BYTES,
                in_index_order=is_in_index_order(route),
            )
            for record in records:
                budget.check()
                if matcher.matches(record, PayloadDocument(record.payload_json, budget.check)):
                    yield record
            if not is_page_full(records, size, CANDIDATE_PAGE_BYTES):
                return
            last = records[-1].position
            bound = {"until": last - 1} if newest_first else {"after": last}
            route = msgspec.structs.replace(route, **bound)
            size = min(size * 2, _PAGE_MAX)

    def _routes(self, tenant_id: str, query: Query, after: int, until: int) -> Iterator[AccessPath]:
        """Yield the routes of a query, with patterns expanded to existing types.

        The range ends at a head that was read before, so every type in it is stored by now.
        """
        for route in plan_query(tenant_id, query, self._rules(), after, until):
            names = route.types
            if names is None or not names.prefixes or route.key_alternatives:
                yield route
                continue
            names = self._expand_patterns(tenant_id, names)
            if names != NameFilter():
                expanded = msgspec.structs.replace(route.filter, types=names.to_patterns())
                yield msgspec.structs.replace(route, filter=expanded)

    def _expand_patterns(self, tenant_id: str, names: NameFilter) -> NameFilter:
        """Return the types that match patterns; the patterns themselves if these are too many."""
        types = dict.fromkeys(names.values)
        for first, end in names.prefix_ranges():
            limit = EXPANDED_TYPES_MAX + 1 - len(types)
            if limit > 0:
                values = {"tenant": tenant_id, "first": first, "end": end, "limit": limit}
                rows = self._reader.fetch_rows(tenant_id, self._sql["list_event_types"], values)
                types.update(dict.fromkeys(row[0] for row in rows))
        return names if len(types) > EXPANDED_TYPES_MAX else NameFilter(tuple(types))


def has_costly_predicates(query: Query) -> bool:
    """Return True if the server would compare too many array elements with each payload."""
    predicates = (
        predicate
        for query_filter in query.filters or ()
        for predicate in query_filter.payload or ()
    )
    return sum(map(count_elements, predicates)) > _ELEMENTS_MAX


def _is_unproven(route: AccessPath) -> bool:
    """Return True if index keys do not prove that an event matches the predicates of a route."""
    return route.filter.payload is not None and not route.exact


def _weaken_filter(query_filter: Filter) -> Filter:
    """Return a filter that matches at least as much, with few array elements to compare."""
    predicates = query_filter.payload or ()
    limit = _ELEMENTS_MAX // max(1, len(predicates))
    weaker = [weaken_predicate(predicate, limit) for predicate in predicates]
    return msgspec.structs.replace(query_filter, payload=weaker)
