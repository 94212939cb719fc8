"""Reads and queries: pages, and the version of a context."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import msgspec

from seriatim.core.event import EventRecord
from seriatim.core.kinds import Rules
from seriatim.core.query import Query
from seriatim.core.routes import routes
from seriatim.store.port import ReadSpec
from seriatim.store.postgres.confining import Reader
from seriatim.store.postgres.rows import record_of
from seriatim.store.postgres.selecting import (
    filter_statement,
    last_statement,
    read_statement,
)


class Queries:
    """Runs reads and queries of one log."""

    def __init__(self, schema: str, reader: Reader, rules: Callable[[], Rules]) -> None:
        self._schema = schema
        self._reader = reader
        self._rules = rules

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        """Return one page of a read."""
        if spec.types is not None and not spec.types:
            return []
        rows = self._reader.rows(spec.tenant_id, *read_statement(spec, self._schema))
        return [record_of(row) for row in rows]

    def select(
        self, tenant_id: str, query: Query, after: int, until: int, limit: int
    ) -> list[EventRecord]:
        """Return the first matching records of a range, each once, whatever filters it matches."""
        pages: list[list[EventRecord]] = []
        for route in routes(tenant_id, query, self._rules(), after, until):
            statement = filter_statement(self._schema, tenant_id, route, limit)
            pages.append([record_of(row) for row in self._reader.rows(tenant_id, *statement)])
        if len(pages) == 1:
            return pages[0]
        found: list[EventRecord] = []
        for record in heapq.merge(*pages, key=lambda record: record.position):
            if not found or record.position != found[-1].position:
                found.append(record)
        return found[:limit]

    def context_version(self, tenant_id: str, query: Query, until: int) -> int | None:
        """Return the highest position up to `until` that matches any filter."""
        best = 0
        for route in routes(tenant_id, query, self._rules(), 0, until):
            if route.until > best:
                above = msgspec.structs.replace(route, after=max(route.after, best))
                statement = last_statement(self._schema, tenant_id, above)
                rows = self._reader.rows(tenant_id, *statement)
                best = max([best, *(row[0] or 0 for row in rows)])
        return best or None
