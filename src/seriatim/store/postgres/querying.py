"""Reads and queries: pages, and the version of a context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import LiteralString

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.kinds import Rules
from seriatim.core.limits import MIB
from seriatim.core.patterns import Names
from seriatim.core.predicate import Document, count_elements, weaken
from seriatim.core.query import Filter, Matcher, Query
from seriatim.core.routes import Route, routes
from seriatim.store.port import ReadSpec
from seriatim.store.postgres.confining import Reader
from seriatim.store.postgres.rows import record_of
from seriatim.store.postgres.selecting import (
    TYPES_MAX,
    Parameters,
    filter_statement,
    last_statement,
    read_statement,
)
from seriatim.store.postgres.statements import statements
from seriatim.store.reading import PageBounds, is_full, take

_ELEMENTS_MAX = 16  # of arrays in a query's predicates, which the server compares by itself
_PAGE_FIRST, _PAGE_MOST = 16, 256
PAGE_BYTES = 2 * MIB  # of candidates that the matcher tests here


class Queries:
    """Runs reads and queries of one log."""

    def __init__(self, schema: str, reader: Reader, rules: Callable[[], Rules]) -> None:
        self._schema = schema
        self._sql = statements(schema)
        self._reader = reader
        self._rules = rules

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        """Return one page of a read."""
        names = spec.names
        if names is not None and names.prefixes and spec.tenant_id is not None:
            names = self._known(spec.tenant_id, names)
            spec = msgspec.structs.replace(spec, types=names.texts())
        if spec.types is not None and not spec.types:
            return []
        statement, parameters = read_statement(spec, self._schema)
        return self._records(spec.tenant_id, statement, parameters, spec.max_bytes)

    def select(self, tenant_id: str, query: Query, page: PageBounds) -> list[EventRecord]:
        """Return the first matching records of a range, each once, whatever filters it matches.

        Routes are read one after the other, each merged with what the others found, so that no
        more than two pages are held however many filters a query has.
        """
        found: list[EventRecord] = []
        verified = is_costly(query)
        for route in self._routes(tenant_id, query, page.after, page.until):
            narrowed = page.within(route)
            if narrowed.after >= narrowed.until:
                continue
            records = self._along(tenant_id, narrowed, page, verified=verified)
            found = page.merge(found, records) if found else records
            if is_full(found, page.limit, page.max_bytes):  # beyond its end nothing is needed
                page = page.ending_at(found[-1].position)
        return found

    def _along(
        self, tenant_id: str, route: Route, page: PageBounds, *, verified: bool
    ) -> list[EventRecord]:
        """Return a page of the records along one route."""
        if verified and _is_unproven(route):
            matching = self._verified(tenant_id, route, newest_first=page.newest_first)
            return take(matching, page.limit, page.max_bytes)
        statement, parameters = filter_statement(
            self._schema, tenant_id, route, page.limit, newest_first=page.newest_first
        )
        return self._records(tenant_id, statement, parameters, page.max_bytes)

    def _records(
        self,
        tenant_id: str | None,
        statement: LiteralString,
        parameters: Parameters,
        max_bytes: int | None,
    ) -> list[EventRecord]:
        if max_bytes is not None:
            statement = self._sql["page_of_bytes"].replace("{page}", statement)
            parameters["max_bytes"] = max_bytes
        return [record_of(row) for row in self._reader.rows(tenant_id, statement, parameters)]

    def context_version(self, tenant_id: str, query: Query, until: int) -> int | None:
        """Return the highest position up to `until` that matches any filter."""
        best = 0
        verified = is_costly(query)
        for route in self._routes(tenant_id, query, 0, until):
            if route.until <= best:
                continue
            above = msgspec.structs.replace(route, after=max(route.after, best))
            if verified and _is_unproven(route):
                newest = next(self._verified(tenant_id, above, newest_first=True), None)
                best = best if newest is None else max(best, newest.position)
                continue
            statement = last_statement(self._schema, tenant_id, above)
            rows = self._reader.rows(tenant_id, *statement)
            best = max([best, *(row[0] or 0 for row in rows)])
        return best or None

    def _verified(
        self, tenant_id: str, route: Route, *, newest_first: bool
    ) -> Iterator[EventRecord]:
        """Yield matching records along a route whose predicates the server tests only in part.

        The server compares each wanted element of an array with each element of a payload's, so it
        is given a weaker predicate with few of them; the matcher, which is linear, has the last
        word.
        """
        budget = self._reader.budget()
        matcher = Matcher(Query([route.one]))
        weaker = _weaker(route.one)
        size = _PAGE_FIRST
        while route.after < route.until:
            asked = msgspec.structs.replace(route, one=weaker)
            statement, parameters = filter_statement(
                self._schema, tenant_id, asked, size, newest_first=newest_first
            )
            records = self._records(tenant_id, statement, parameters, PAGE_BYTES)
            for record in records:
                budget.check()
                if matcher.matches(record, Document(record.payload, budget.check)):
                    yield record
            if not is_full(records, size, PAGE_BYTES):
                return
            last = records[-1].position
            edge = {"until": last - 1} if newest_first else {"after": last}
            route = msgspec.structs.replace(route, **edge)
            size = min(size * 2, _PAGE_MOST)

    def _routes(self, tenant_id: str, query: Query, after: int, until: int) -> Iterator[Route]:
        """Yield the routes of a query, patterns replaced by the types that there are.

        The range ends at a head that was read before, so every type in it is known by now.
        """
        for route in routes(tenant_id, query, self._rules(), after, until):
            names = route.types
            if names is None or not names.prefixes or route.alternatives:
                yield route
                continue
            names = self._known(tenant_id, names)
            if names != Names():
                one = msgspec.structs.replace(route.one, types=names.texts())
                yield msgspec.structs.replace(route, one=one)

    def _known(self, tenant_id: str, names: Names) -> Names:
        """Return the types that patterns stand for; the patterns if these are too many."""
        known = dict.fromkeys(names.values)
        for first, end in names.ranges():
            room = TYPES_MAX + 1 - len(known)
            if room > 0:
                values = {"tenant": tenant_id, "first": first, "end": end, "limit": room}
                rows = self._reader.rows(tenant_id, self._sql["known_types"], values)
                known.update(dict.fromkeys(row[0] for row in rows))
        return names if len(known) > TYPES_MAX else Names(tuple(known))


def is_costly(query: Query) -> bool:
    """Tell whether the server would compare too many array elements with each payload."""
    wanted = (want for one in query.filters or () for want in one.payload or ())
    return sum(map(count_elements, wanted)) > _ELEMENTS_MAX


def _is_unproven(route: Route) -> bool:
    return route.one.payload is not None and not route.proven


def _weaker(one: Filter) -> Filter:
    """Return a filter that holds wherever this one does, with few elements of arrays to compare."""
    predicates = one.payload or ()
    kept = _ELEMENTS_MAX // max(1, len(predicates))
    return msgspec.structs.replace(one, payload=[weaken(want, kept) for want in predicates])
