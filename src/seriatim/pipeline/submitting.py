"""Append of many rows in order: several appends in flight, which share group commits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from seriatim.config import Settings
from seriatim.core.decide import StaleRules
from seriatim.core.doors import LOG
from seriatim.core.errors import BackendFailure, SeriatimError
from seriatim.core.event import AppendResult, NewEvent
from seriatim.log.appending import Draft
from seriatim.opening import Log, open_log
from seriatim.pipeline.refused import RefusedRows
from seriatim.pipeline.rows import Maker, Row
from seriatim.store.committer import Ticket

IN_FLIGHT = 1000
BYTES_IN_FLIGHT = 32 * 1024 * 1024


class Counts(msgspec.Struct):
    """Numbers of rows that were appended, were stored already, or were refused."""

    appended: int = 0
    reused: int = 0
    refused: int = 0


class _InFlightAppend(msgspec.Struct):
    """An append that was submitted and has no result yet."""

    row: Row
    draft: Draft
    ticket: Ticket


def append_rows(  # noqa: PLR0913 - what an append needs
    url: str,
    maker: Maker,
    rows: Iterable[Row],
    refused: RefusedRows,
    *,
    tenant_id: str,
    guard: str,
) -> Counts:
    """Append each row as an event of its own, in order, and count the results.

    Args:
        url: The URL of an existing log.
        maker: Builds the event of a row.
        rows: The rows.
        refused: Collects the rows that the log refuses.
        tenant_id: The tenant of rows that name none.
        guard: The name of the guard policy.

    Raises:
        SeriatimError: The database failed; the same rows can be appended again, because their
            event ids are the same.
    """
    # With one writer, queued appends are committed in the order in which they were submitted.
    settings = Settings(writers=1)
    with open_log(url, tenant_id=tenant_id, guard=guard, settings=settings, create=False) as log:
        window = Window(log, refused)
        for row in rows:
            try:
                event = maker.event(row)
            except SeriatimError as error:
                window.refuse(error, row)
                continue
            window.append(row, event, event.tenant_id or tenant_id)
        window.finish()
        return window.counts


class Window:
    """The appends in flight of one task, bounded in number and bytes.

    Attributes:
        counts: The results so far.
    """

    def __init__(self, log: Log, refused: RefusedRows) -> None:
        self._log = log
        self._refused = refused
        self._in_flight: deque[_InFlightAppend] = deque()
        self._bytes = 0
        self._stale = False
        self.counts = Counts()

    def append(self, row: Row, event: NewEvent, tenant_id: str) -> None:
        """Submit the event of a row; wait for older ones while the window is full.

        Raises:
            SeriatimError: An older append, or this one, failed in the database.
        """
        while self._in_flight and (
            self._stale or len(self._in_flight) >= IN_FLIGHT or self._bytes > BYTES_IN_FLIGHT
        ):
            self._complete_oldest()
        self._stale = False
        draft = Draft(tenant_id=tenant_id, door=LOG, events=(event,))
        try:
            self._submit(row, draft)
        except SeriatimError as error:
            self.refuse(error, row)

    def finish(self) -> None:
        """Wait for all appends in flight."""
        while self._in_flight:
            self._complete_oldest()

    def refuse(self, error: SeriatimError, row: Row) -> None:
        """Record a row that the log refused.

        Raises:
            SeriatimError: The error is a failure of the database, and not of the row.
        """
        if error.retryable or isinstance(error, BackendFailure):
            raise error
        self.counts.refused += 1
        self._refused.add(error, row)

    def _submit(self, row: Row, draft: Draft) -> None:
        request = self._log.appender.request(draft)
        ticket = self._log.appender.committer.submit(request)
        self._in_flight.append(_InFlightAppend(row, draft, ticket))
        self._bytes += request.size

    def _complete_oldest(self) -> None:
        """Wait for the oldest append and count its result."""
        oldest = self._in_flight.popleft()
        self._bytes -= oldest.ticket.request.size
        try:
            self._count(self._wait(oldest))
        except SeriatimError as error:
            self.refuse(error, oldest.row)

    def _wait(self, oldest: _InFlightAppend) -> AppendResult:
        try:
            return oldest.ticket.result(self._log.settings.timeout_s)
        except StaleRules:
            # Declarations changed after this append was validated, so the appends submitted after
            # it are stale too. All of them are repeated one by one before a new one is submitted,
            # which keeps the order of the rows.
            self._stale = True
            return self._log.append_draft(oldest.draft)
        except TimeoutError:
            msg = "an append timed out and its outcome is unknown: run the task again"
            raise BackendFailure(msg, details={"ambiguous": True}) from None

    def _count(self, result: AppendResult) -> None:
        if result.replayed:
            self.counts.reused += 1
        else:
            self.counts.appended += 1
