"""Run all reads, each in a transaction that row-level security restricts to one tenant.

The setting of the tenant and the statement are sent together and run in one transaction, so the
restriction costs no round trip. They are sent through libpq, because the driver's own pipeline
makes a small read a quarter slower.
"""

from __future__ import annotations

import re
import select
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from psycopg import pq
from psycopg.adapt import PyFormat, Transformer

from seriatim.core.errors import BackendFailure
from seriatim.store.cancellation import ReadBudget
from seriatim.store.postgres.connection import Connection
from seriatim.store.postgres.failures import CANCELLED, ROLLED_BACK
from seriatim.store.postgres.fast_path import make_driver_error
from seriatim.store.postgres.statements import load_store_statements

Rows = list[tuple[Any, ...]]
Settings = list[tuple[bytes, list[bytes]]]  # statements for the same transaction, with their values

_PLACEHOLDER = re.compile(r"%(?:%|s|\((\w+)\)s)")
_ATTEMPTS_MAX = 10
_CANCEL_POLL_MS = 50  # between two checks for a cancellation
_OK = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class TenantReader:
    """Runs read statements of one log, each in its own transaction."""

    def __init__(
        self,
        schema: str,
        borrow: Callable[[], AbstractContextManager[Connection]],
        timeout_s: float | None = None,
    ) -> None:
        statements = load_store_statements(schema)
        self._set_tenant = statements[
            "set_tenant" if timeout_s is None else "set_tenant_and_timeout"
        ].encode()
        self._use_index_order = statements["use_index_order"].encode()
        self._timeout_ms = [] if timeout_s is None else [b"%d" % max(1, round(timeout_s * 1000))]
        self._timeout_s = timeout_s
        self._borrow = borrow

    def make_budget(self) -> ReadBudget:
        """Return the time limit for a read that takes several statements."""
        return ReadBudget(self._timeout_s)

    def fetch_rows(
        self,
        tenant_id: str | None,
        text: str,
        parameters: Any = (),
        *,
        in_index_order: bool = False,
        only_index_scans: bool = False,
    ) -> Rows:
        """Run a statement and return its rows.

        Args:
            tenant_id: The tenant whose rows are visible; None for operator tools, which see all.
            text: The statement, with `%s` or `%(name)s` placeholders.
            parameters: A sequence or a mapping of values.
            in_index_order: Whether an index has the rows of a tenant in the order of the statement,
                so that they must not be sorted.
            only_index_scans: Whether the planner must neither sort nor scan without an index.

        Raises:
            TimedOut: The request of this read was cancelled.

        """
        budget = ReadBudget()
        settings: Settings = []
        if tenant_id is not None:
            sort = b"off" if in_index_order else b"on"
            settings.append((self._set_tenant, [tenant_id.encode(), sort, *self._timeout_ms]))
        if only_index_scans:
            settings.append((self._use_index_order, []))
        for attempt in range(_ATTEMPTS_MAX):
            budget.check()
            try:
                return self._fetch_once(settings, text, parameters, budget)
            except BackendFailure as error:
                # The server's default isolation level may cause serialization failures.
                if error.details.get("sqlstate") not in ROLLED_BACK or attempt == _ATTEMPTS_MAX - 1:
                    raise
        raise AssertionError

    def _fetch_once(
        self, settings: Settings, text: str, parameters: Any, budget: ReadBudget
    ) -> Rows:
        with self._borrow() as connection:
            try:
                return self._run(connection, settings, text, parameters, budget)
            except BaseException:
                if connection.pgconn.pipeline_status != pq.PipelineStatus.OFF:
                    connection.close()  # late results must not be taken for those of the next read
                raise

    def _run(
        self,
        connection: Connection,
        settings: Settings,
        text: str,
        parameters: Any,
        budget: ReadBudget,
    ) -> Rows:
        transformer = Transformer(connection)
        query, names = _number_placeholders(text)
        values = transformer.dump_sequence(
            [parameters[name] for name in names], [PyFormat.AUTO] * len(names)
        )
        pgconn = connection.pgconn
        # One implicit transaction, which ends at the sync: the setting of the tenant is local to
        # it, so a pooler cannot pass it on to another session.
        pgconn.enter_pipeline_mode()
        for setting, values_of_setting in settings:
            pgconn.send_query_params(setting, values_of_setting)
        pgconn.send_query_params(
            query, values, transformer.types, transformer.formats, pq.Format.BINARY
        )
        pgconn.pipeline_sync()
        results = collect_results(pgconn, budget)
        pgconn.exit_pipeline_mode()
        for result in results:
            if result.status not in _OK:
                error = make_driver_error(pgconn, result)
                if budget.cancelled and error.sqlstate == CANCELLED:
                    raise budget.make_error() from error
                raise error
        transformer.set_pgresult(results[-1])
        return transformer.load_rows(0, results[-1].ntuples, tuple)


class CountingReader(TenantReader):
    """A reader that also runs each statement under EXPLAIN ANALYZE, and counts the events it reads.

    Attributes:
        events_read: The events that all statements have read so far; index-only scans read none.
    """

    def __init__(self, reader: TenantReader) -> None:
        self.__dict__.update(reader.__dict__)
        self.events_read = 0

    def fetch_rows(
        self,
        tenant_id: str | None,
        text: str,
        parameters: Any = (),
        *,
        in_index_order: bool = False,
        only_index_scans: bool = False,
    ) -> Rows:
        """Run a statement, count the events that it reads, and return its rows."""
        options = {"in_index_order": in_index_order, "only_index_scans": only_index_scans}
        explained = "explain (analyze, costs off, timing off, format json) " + text
        [[plans]] = super().fetch_rows(tenant_id, explained, parameters, **options)
        self.events_read += sum(_count_events_read(plan["Plan"]) for plan in plans)
        return super().fetch_rows(tenant_id, text, parameters, **options)


def _count_events_read(node: dict[str, Any]) -> int:
    """Return how many rows of the table of events a plan has read."""
    count = sum(map(_count_events_read, node.get("Plans", ())))
    if node.get("Relation Name") == "events" and node["Node Type"] != "Index Only Scan":
        removed = node.get("Rows Removed by Filter", 0)
        removed += node.get("Rows Removed by Index Recheck", 0)
        count += round((node["Actual Rows"] + removed) * node["Actual Loops"])
    return count


@lru_cache(maxsize=256)
def _number_placeholders(text: str) -> tuple[bytes, list[Any]]:
    """Replace placeholders by $1, $2, …; return the statement and the parameters in that order."""
    names: list[Any] = []

    def number(placeholder: re.Match[str]) -> str:
        if placeholder[0] == "%%":
            return "%"
        name = len(names) if placeholder[1] is None else placeholder[1]
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _PLACEHOLDER.sub(number, text).encode(), names


def collect_results(
    pgconn: pq.abc.PGconn, budget: ReadBudget | None = None
) -> list[pq.abc.PGresult]:
    """Block until all results of a pipeline have arrived.

    It polls the socket itself, because libpq would block while it holds the GIL. If the request is
    cancelled meanwhile, the server is asked to cancel the statement.
    """
    socket = select.poll()
    # Read while sending: a server whose own send buffer is full reads nothing until we do.
    socket.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    while pgconn.flush():
        socket.poll()
        pgconn.consume_input()
    socket.modify(pgconn.socket, select.POLLIN)
    results: list[pq.abc.PGresult] = []
    poll_ms = _CANCEL_POLL_MS if budget is not None and budget.cancellable else None
    while True:
        while pgconn.is_busy():
            if not socket.poll(poll_ms) and budget is not None and budget.cancelled:
                pgconn.get_cancel().cancel()
                poll_ms = None  # the result follows: an error, or rows that were just ready
            pgconn.consume_input()
        result = pgconn.get_result()  # None separates the results of two statements
        if result is None and pgconn.status != pq.ConnStatus.OK:
            raise make_driver_error(pgconn, results[-1] if results else None)
        if result is None:
            continue
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)
