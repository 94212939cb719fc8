"""Many appends in flight, in order: a window of rows over the log's group commit."""

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
    """How many rows were stored, known already, and refused."""

    appended: int = 0
    reused: int = 0
    refused: int = 0


class _Flight(msgspec.Struct):
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
    """Append rows, each by itself and in their order, and count what became of them."""
    # One writer: what waits is committed in the order in which it came.
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
    """The appends under way of one task."""

    def __init__(self, log: Log, refused: RefusedRows) -> None:
        self._log = log
        self._refused = refused
        self._flights: deque[_Flight] = deque()
        self._bytes = 0
        self._stale = False
        self.counts = Counts()

    def append(self, row: Row, event: NewEvent, tenant_id: str) -> None:
        """Send a row on its way, waiting for older ones when too many are under way."""
        while self._flights and (
            self._stale or len(self._flights) >= IN_FLIGHT or self._bytes > BYTES_IN_FLIGHT
        ):
            self._settle()
        self._stale = False
        draft = Draft(tenant_id=tenant_id, door=LOG, events=(event,))
        try:
            self._send(row, draft)
        except SeriatimError as error:
            self.refuse(error, row)

    def finish(self) -> None:
        """Wait for all that is under way."""
        while self._flights:
            self._settle()

    def refuse(self, error: SeriatimError, row: Row) -> None:
        """Keep a row that the log did not take; a failed database is not the row's fault."""
        if error.retryable or isinstance(error, BackendFailure):
            raise error
        self.counts.refused += 1
        self._refused.add(error, row)

    def _send(self, row: Row, draft: Draft) -> None:
        request = self._log.appender.request(draft)
        ticket = self._log.appender.committer.submit(request)
        self._flights.append(_Flight(row, draft, ticket))
        self._bytes += request.size

    def _settle(self) -> None:
        """Wait for the oldest append."""
        flight = self._flights.popleft()
        self._bytes -= flight.ticket.request.size
        try:
            self._count(self._answer(flight))
        except SeriatimError as error:
            self.refuse(error, flight.row)

    def _answer(self, flight: _Flight) -> AppendResult:
        try:
            return flight.ticket.result(self._log.settings.timeout_s)
        except StaleRules:
            # So are all that follow it: they go again, one by one, before anything new is sent.
            self._stale = True
            return self._log.append_draft(flight.draft)
        except TimeoutError:
            msg = "an append was not answered in time: the task is to be tried again"
            raise BackendFailure(msg, details={"ambiguous": True}) from None

    def _count(self, result: AppendResult) -> None:
        if result.replayed:
            self.counts.reused += 1
        else:
            self.counts.appended += 1
