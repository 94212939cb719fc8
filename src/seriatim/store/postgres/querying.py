"""Reads and queries on a lent connection: pages, and the version of a context."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from seriatim.core.event import EventRecord
from seriatim.core.query import Filter, Query
from seriatim.store.port import ReadSpec
from seriatim.store.postgres.connecting import Connection
from seriatim.store.postgres.rows import record_of
from seriatim.store.postgres.selecting import (
    filter_statement,
    filters_of,
    last_statement,
    read_statement,
)

# The newest events are asked first: a dense context answers there, however large the log is.
_TAIL = 200


class Queries:
    """Runs reads and queries of one log."""

    def __init__(
        self,
        schema: str,
        reading: Callable[[], AbstractContextManager[Connection]],
        payload_index: Callable[[], bool],
    ) -> None:
        self._schema = schema
        self._reading = reading
        self._payload_index = payload_index

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        """Return one page of a read."""
        if spec.types is not None and not spec.types:
            return []
        with self._reading() as connection:
            return _records(connection, *read_statement(spec, self._schema))

    def select(
        self, tenant_id: str, query: Query, after: int, until: int, limit: int
    ) -> list[EventRecord]:
        """Return the first matching records of a range, each once, whatever filters it matches."""
        pages: list[list[EventRecord]] = []
        with self._reading() as connection:
            for one in filters_of(query):
                statement = filter_statement(self._schema, tenant_id, one, after, until, limit)
                pages.append(_records(connection, *statement))
        if len(pages) == 1:
            return pages[0]
        found: list[EventRecord] = []
        for record in heapq.merge(*pages, key=lambda record: record.position):
            if not found or record.position != found[-1].position:
                found.append(record)
        return found[:limit]

    def context_version(self, tenant_id: str, query: Query, until: int) -> int | None:
        """Return the highest position up to `until` that matches any filter."""
        with self._reading() as connection:
            found = [self._last(connection, tenant_id, one, until) for one in filters_of(query)]
        return max((position for position in found if position is not None), default=None)

    def _last(self, connection: Connection, tenant_id: str, one: Filter, until: int) -> int | None:
        if one.payload is None or until <= _TAIL or not self._payload_index():
            return self._last_in(connection, tenant_id, one, 0, until, by_payload=False)
        start = until - _TAIL
        recent = self._last_in(connection, tenant_id, one, start, until, by_payload=False)
        if recent is not None:
            return recent
        return self._last_in(connection, tenant_id, one, 0, start, by_payload=True)

    def _last_in(  # noqa: PLR0913 - one filter over one range
        self,
        connection: Connection,
        tenant_id: str,
        one: Filter,
        after: int,
        until: int,
        *,
        by_payload: bool,
    ) -> int | None:
        text, parameters = last_statement(
            self._schema, tenant_id, one, after, until, by_payload=by_payload
        )
        row = connection.execute(text, parameters).fetchone()
        return None if row is None else row[0]


def _records(connection: Connection, text: Any, parameters: Any) -> list[EventRecord]:
    with connection.cursor(binary=True) as cursor:
        return [record_of(row) for row in cursor.execute(text, parameters)]
