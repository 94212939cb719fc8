"""Tails of a service's log: new appends arrive over one streamed response."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote_plus

import msgspec

from seriatim.client.http_client import HttpClient, retry_delays
from seriatim.core.canonical import canonical_text
from seriatim.core.errors import BackendFailure, SeriatimError
from seriatim.core.query import Query
from seriatim.log.batches import Batch
from seriatim.log.subscription import Tail
from seriatim.wire.problems import Problem, error_from_problem
from seriatim.wire.records import WireRecord, from_wire_records

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
        for line in self._lines():
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

    def _lines(self) -> Iterator[TailLine]:
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
        options: Any = {"tenant_id": self._tenant_id, "idle_s": keep_alive_s + _DEAD_S}
        if len(quote_plus(self._text)) <= _QUERY_STRING_MAX:
            return self._http.stream_lines("/v1/tail", params, **options)
        body = {**params, "query": msgspec.Raw(self._text.encode())}
        return self._http.stream_lines("/v1/tail", {}, body, **options)


def _parse_line(raw: bytes) -> TailLine:
    try:
        return _decode(raw)
    except msgspec.MsgspecError as error:
        msg = (
            "the service sent a line in a format that this version does not know: use the same "
            "version of client and service"
        )
        raise BackendFailure(msg, retryable=False) from error
