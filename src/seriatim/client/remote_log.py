"""The log of a service: operations that take one round trip instead of several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote_plus

import msgspec

from seriatim.client.http_client import HttpClient, retry_delays
from seriatim.client.store import HttpStore
from seriatim.core.canonical import canonical_text
from seriatim.core.errors import BackendFailure, ProjectionTimeout, SeriatimError
from seriatim.core.operation import Operator
from seriatim.core.query import Query, check_query
from seriatim.log.arguments import check_name, check_position, check_timeout, invalid_argument
from seriatim.log.base import BaseLog
from seriatim.log.batches import Batch, Page
from seriatim.log.projections import Projections
from seriatim.log.query_execution import QueryRange, QueryResult
from seriatim.log.subscription import Tail
from seriatim.log.subscriptions import Subscriptions
from seriatim.store.readmodel.port import FailureRecord, Progress, ProjectionStanding
from seriatim.wire import messages
from seriatim.wire.problems import Problem, error_from_problem
from seriatim.wire.records import WireRecord, from_wire_records

if TYPE_CHECKING:
    from seriatim.core.event import EventRecord
    from seriatim.store.port import ReadSpec, SkippedBatch, SubscriptionStatus

_DEAD_S = 20.0  # a keep-alive line overdue for so long means that the connection is broken
_LONGEST_KEEP_ALIVE_S = 15.0
_QUERY_STRING_MAX = 4096  # bytes; a longer query is sent in a body, since proxies limit URLs


class TailLine(msgspec.Struct, frozen=True):
    """One line of a tail: an append, a position reached without a match, or a problem."""

    position: int = 0
    records: list[WireRecord] = []
    problem: Problem | None = None


_decode = msgspec.json.Decoder(TailLine).decode


class RemoteTail(Tail):
    """A tail over HTTP; it reconnects at its position after a broken connection."""

    def __init__(
        self,
        store: Any,
        tenant_id: str,
        query: Query,
        position: int,
        *,
        idle_timeout: float | None = None,
        poll_s: float = 1.0,
        on_scanned: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(
            store,
            tenant_id,
            query,
            position,
            idle_timeout=idle_timeout,
            poll_s=poll_s,
            on_scanned=on_scanned,
        )
        self._http: HttpClient = store.http
        self._text = canonical_text(query.as_dict())

    def __iter__(self) -> Iterator[Batch]:
        """Yield each committed append once, in order."""
        idle_since = time.monotonic()
        for line in self._iterate_lines():
            if line.records:
                batch = from_wire_records(line.records)
                yield batch
                # Only after the yield: a consumer that stops here has not processed the batch.
                self.position, self._last_event_id = batch[-1].position, batch[-1].event_id
                idle_since = time.monotonic()
            else:
                if line.position > self.position:
                    self.position, self._last_event_id = line.position, ""
                if self._on_scanned is not None:
                    self._on_scanned(self.position)
                idle = time.monotonic() - idle_since
                if self._idle_timeout is not None and idle >= self._idle_timeout:
                    return
            if self._stopped.is_set():
                return

    def _iterate_lines(self) -> Iterator[TailLine]:
        """Yield the lines of the service, reconnecting for at most `timeout_s` without a line."""
        deadline = time.monotonic() + self._http.timeout_s
        delays = retry_delays()
        while not self._stopped.is_set():
            try:
                for raw in self._open_stream():
                    line = _parse_line(raw)
                    if line.problem is not None:
                        raise error_from_problem(line.problem)
                    yield line
                    deadline, delays = time.monotonic() + self._http.timeout_s, retry_delays()
                wait = next(delays)  # the response ended normally: the service stops or restarts
            except SeriatimError as error:
                wait = max(next(delays), error.retry_after_s)
                if not error.retryable or time.monotonic() + wait >= deadline:
                    raise
            if self._stopped.wait(wait):
                return

    def _open_stream(self) -> Iterator[bytes]:
        keep_alive_s = min(self._poll_s, _LONGEST_KEEP_ALIVE_S)
        if self._idle_timeout is not None:
            keep_alive_s = min(keep_alive_s, max(self._idle_timeout, 0.01))
        params = {
            "after": self.position,
            "query": self._text,
            "log_id": self._identity.log_id,
            "epoch": self._identity.epoch,
            "last_event_id": self._last_event_id or None,
            "keep_alive_s": keep_alive_s,
        }
        stream_lines = partial(
            self._http.stream_lines, tenant_id=self._tenant_id, idle_s=keep_alive_s + _DEAD_S
        )
        if len(quote_plus(self._text)) <= _QUERY_STRING_MAX:
            return stream_lines("/v1/tail", params)
        body = {**params, "query": msgspec.Raw(self._text.encode())}
        return stream_lines("/v1/tail", {}, body)


def _parse_line(raw: bytes) -> TailLine:
    try:
        return _decode(raw)
    except msgspec.MsgspecError as error:
        msg = (
            "the service sent a line in a format that this version does not know: use the same "
            "version of client and service"
        )
        raise BackendFailure(msg, retryable=False) from error


_NO_WAIT_S = 0.0
_WAIT_MIN_S = 0.05  # a shorter wait is not worth another request
_WAIT_MAX_S = 60.0  # of one request


class RemoteProjections(Projections):
    """The projections of a service's log."""

    def __init__(self, log: BaseLog, store: HttpStore) -> None:
        super().__init__(log, "")
        self._store = store

    def wait_for(self, name: str, position: int, timeout_s: float = 10.0) -> Progress:
        """Wait until a projection has reached a position; see `Projections.wait_for`."""
        remaining = check_timeout(timeout_s, "timeout_s")
        deadline = time.monotonic() + remaining
        while True:
            try:
                return self._progress(name, position, min(remaining, _WAIT_MAX_S))
            except ProjectionTimeout:
                remaining = deadline - time.monotonic()
                if remaining < _WAIT_MIN_S:
                    raise

    def demand(self, name: str, position: int) -> Progress:
        """Require that a projection has reached a position; see `Projections.demand`."""
        return self._progress(name, position, _NO_WAIT_S)

    def get_progress(self, name: str) -> Progress:
        """Return the progress of a projection."""
        return self._progress(name, 0, _NO_WAIT_S)

    def find(self, name: str) -> Progress:
        """Return the progress of a projection."""
        return self.get_progress(name)

    def _progress(self, name: str, position: int, timeout_s: float) -> Progress:
        params = {
            "name": check_name("name", name),
            "position": check_position("position", position),
            "timeout_s": timeout_s,
        }
        progress: Progress = self._get("/v1/projections/wait", params, Progress, timeout_s)
        return progress

    def status(self) -> list[ProjectionStanding]:
        """Return the position, lag and status of every projection."""
        standings: list[ProjectionStanding] = self._get(
            "/v1/projections", {}, messages.ProjectionsResponse
        ).projections
        return standings

    def failures(self, name: str) -> list[FailureRecord]:
        """Return the events that a projection could not process, and how each was resolved."""
        params: dict[str, Any] = {"name": check_name("name", name)}
        records: list[FailureRecord] = []
        while True:
            page: messages.FailuresResponse = self._get(
                "/v1/projections/failures", params, messages.FailuresResponse
            )
            records += page.failures
            if not page.failures or len(records) >= page.count:
                return records
            params["after"] = records[-1].failure.position

    def pause(self, name: str, *, reason: str = "", operator: Operator | None = None) -> bool:
        """Stop a projection at its current position; see `Projections.pause`."""
        return self._operate("pause", {"name": name, "reason": reason}, operator).recorded

    def resume(self, name: str, *, reason: str = "", operator: Operator | None = None) -> bool:
        """Resume a paused projection; see `Projections.resume`."""
        return self._operate("resume", {"name": name, "reason": reason}, operator).recorded

    def retry(
        self,
        name: str,
        position: int | None = None,
        *,
        expected_count: int | None = None,
        reason: str = "",
        operator: Operator | None = None,
    ) -> tuple[int, bool]:
        """Retry failures; without a position, the service requires the count and a reason."""
        body = {
            "name": name,
            "position": position,
            "expected_count": expected_count,
            "reason": reason,
        }
        result = self._operate("retry", body, operator)
        return result.count, result.recorded

    def skip(
        self, name: str, position: int, *, reason: str = "", operator: Operator | None = None
    ) -> bool:
        """Skip a failed event; see `Projections.skip`."""
        body = {"name": name, "position": position, "reason": reason}
        return self._operate("skip", body, operator).recorded

    def _operate(
        self, action: str, body: dict[str, Any], operator: Operator | None
    ) -> messages.CountResponse:
        """Act on a projection; the service records the subject of the token as the operator."""
        if operator is not None:
            raise invalid_argument("operator", "cannot be given to a service: it is the token's")
        raw = self._store.http.post(
            f"/v1/projections/{action}", body, tenant_id=self._log.tenant_id
        )
        result: messages.CountResponse = self._store.decode(raw, messages.CountResponse)
        return result

    def _get(self, path: str, params: dict[str, Any], kind: type[Any], wait_s: float = 0.0) -> Any:
        tenant_id = self._log.tenant_id
        raw = self._store.http.get(path, params, tenant_id=tenant_id, wait_s=wait_s)
        return self._store.decode(raw, kind)


class RemoteSubscriptions(Subscriptions):
    """The durable subscriptions of a service's log."""

    def __init__(self, log: BaseLog, store: HttpStore) -> None:
        super().__init__(log)
        self._service = store

    def __call__(self) -> list[SubscriptionStatus]:
        """List the tenant's durable subscriptions, with the lag that the service reports."""
        return list(self._service.subscription_statuses(self._log.tenant_id))

    def get(self, name: str) -> SubscriptionStatus:
        """Return the status of one subscription; see `Subscriptions.get`."""
        return self._service.subscription_status(self._log.tenant_id, check_name("name", name))

    def skipped(self, name: str) -> list[SkippedBatch]:
        """Return the batches that a subscription has skipped; see `Subscriptions.skipped`."""
        return list(self._service.skipped_batches(self._log.tenant_id, check_name("name", name)))

    def retry(self, name: str, *, reason: str = "", operator: Operator | None = None) -> bool:
        """Let a parked subscription attempt its batch again; see `Subscriptions.retry`."""
        return self._operate("retry", {"name": name, "reason": reason}, operator)

    def skip(
        self, name: str, position: int, *, reason: str, operator: Operator | None = None
    ) -> bool:
        """Move the cursor past the failing batch; see `Subscriptions.skip`."""
        body = {"name": name, "position": position, "reason": reason}
        return self._operate("skip", body, operator)

    def reset(
        self,
        name: str,
        position: int,
        query: Query | None = None,
        *,
        reason: str = "",
        operator: Operator | None = None,
    ) -> bool:
        """Set the cursor of a subscription to any position; see `Subscriptions.reset`."""
        check_name("name", name)
        check_position("position", position)
        if query is not None:
            check_query(query, self._log.settings.limits)
        body = {
            "name": name,
            "position": position,
            "query": None if query is None else query.as_dict(),
            "reason": reason,
        }
        return self._operate("reset", body, operator)

    def _operate(self, action: str, body: dict[str, Any], operator: Operator | None) -> bool:
        """Act on a subscription; the service records the subject of the token as the operator."""
        if operator is not None:
            raise invalid_argument("operator", "cannot be given to a service: it is the token's")
        path, tenant_id = f"/v1/subscriptions/{action}", self._log.tenant_id
        raw = self._service.http.post(path, body, tenant_id=tenant_id)
        result: messages.CountResponse = self._service.decode(raw, messages.CountResponse)
        return result.recorded


class RemoteBaseLog(BaseLog):
    """Run reads, queries and status calls as one request to the service each."""

    @property
    def _service(self) -> HttpStore:
        return cast("HttpStore", self.store)

    @property
    def _tail_class(self) -> type[Tail]:
        # A store that wraps the HTTP store is read through its own methods.
        return RemoteTail if isinstance(self.store, HttpStore) else Tail

    @property
    def projections(self) -> Projections:
        """The projections of the service's log."""
        return RemoteProjections(self, self._service)

    @property
    def subscriptions(self) -> Subscriptions:
        """The durable subscriptions of the service's log: call it to list them."""
        return RemoteSubscriptions(self, self._service)

    def _scan_page(self, spec: ReadSpec) -> Page:
        return Page(*self._service.read_page(spec))

    def _run_query(self, query: Query, window: QueryRange) -> QueryResult:
        check_query(query, self.settings.limits)
        size, limit = window.check(self.settings.limits), window.limit
        records: list[EventRecord] = []
        while True:
            page = msgspec.structs.replace(window, limit=size)
            response = self._service.query(self.tenant_id, query, page)
            records += from_wire_records(response.records)
            if not response.more or len(records) == limit:
                break
            start = {"after": records[-1].position}
            if window.newest_first:
                start = {"until": records[-1].position - 1}
            # The head of the first page keeps all pages in one snapshot.
            window = msgspec.structs.replace(window, head=response.head, **start)
            size = size if limit is None else limit - len(records)
        last = records[-1].position if records else None
        return QueryResult(records, last, response.context_version, response.head, response.more)
