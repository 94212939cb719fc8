"""Appending the events of an export, in order, many appends to a commit, and none of them twice."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from seriatim.core.decide import StaleRules
from seriatim.core.doors import LOG, Door
from seriatim.core.errors import (
    BackendFailure,
    IdempotencyConflict,
    InvalidEvent,
    SeriatimError,
)
from seriatim.core.request import Condition, ExpectedSeq, Request
from seriatim.log.appending import Draft
from seriatim.log.histories import Histories
from seriatim.log.imported import Append, new_event, of_a_command, shares_keys
from seriatim.log.transfer import Source
from seriatim.store.committer import Committer, Ticket, give_up

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog

IN_FLIGHT_EVENTS = 20_000
IN_FLIGHT_BYTES = 32 * 1024 * 1024
SMALL_EVENTS_MAX = 16  # appends up to this size count as alike
SHOWN_MAX = 20

# Whatever door an event once came through, it goes in as it was kept.
_DOOR = Door(name="import", codes=LOG.codes, any_payload=True)
_DOOR_SHARED_KEYS = Door(name="import", codes=LOG.codes, any_payload=True, keys_are_unique=False)


class Refusal(msgspec.Struct, frozen=True):
    """One append that the log did not take, and why."""

    line: int
    events: int
    code: str
    message: str


class ImportReport(msgspec.Struct, kw_only=True):
    """What became of the events of a file; `refusals` shows the first few, `reasons` counts all."""

    appended: int = 0
    reused: int = 0
    refused: int = 0
    skipped: int = 0
    whole: bool = True
    reasons: Counter[str] = msgspec.field(default_factory=Counter)
    refusals: list[Refusal] = []

    @property
    def ok(self) -> bool:
        """Whether every event of a whole file is in the log now."""
        return self.whole and not self.refused


def import_events(
    log: BaseLog,
    lines: Iterable[bytes],
    *,
    tenant_id: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Append what an export holds, of one tenant or of all; a second time it stores nothing.

    The file's declarations come first. An append that the log refuses is reported and passed over;
    a failing store ends the import, which can then be repeated.
    """
    source = Source(lines)
    if source.header is not None:
        header = source.header
        log.declare(*header.kinds, *header.types, *header.indexes)
    committer = Committer(log.store.append, limits=log.settings.limits, writers=1)
    flight = _Flight(log, committer)
    try:
        for append in source.appends():
            if tenant_id not in (None, append[0][1].tenant_id or log.tenant_id):
                flight.report.skipped += len(append)
                continue
            flight.send(append)
            if progress is not None:
                progress(len(append))
        flight.land()
    finally:
        committer.close()
    flight.report.whole = source.whole
    return flight.report


class _Sent(msgspec.Struct):
    append: Append
    size: int
    future: Ticket


class _Flight:
    """Appends on their way, bounded; one writer keeps them in the order of the file."""

    def __init__(self, log: BaseLog, committer: Committer) -> None:
        self.report = ImportReport()
        self._log = log
        self._committer = committer
        self._histories = Histories(log.store)
        self._sent: deque[_Sent] = deque()
        self._events = 0
        self._bytes = 0
        self._likeness = (0, False)

    def send(self, append: Append) -> None:
        """Submit an append, after making room for it."""
        try:
            for number, line in append:
                self._histories.check(line.tenant_id or self._log.tenant_id, line, number)
            request = self._request(append, _DOOR)
        except BackendFailure:
            raise
        except SeriatimError as error:
            self._refuse(append, error)
            return
        self._make_room(request)
        future = self._committer.submit(request)
        self._sent.append(_Sent(append, request.size, future))
        self._events += len(append)
        self._bytes += request.size

    def _make_room(self, request: Request) -> None:
        # A store may commit the appends of a group in any order: only like ones travel together.
        events = len(request.events)
        likeness = (max(events, SMALL_EVENTS_MAX), bool(request.conditions))
        if likeness != self._likeness:
            self.land()
            self._likeness = likeness
        while self._sent and (
            self._events + events > IN_FLIGHT_EVENTS or self._bytes + request.size > IN_FLIGHT_BYTES
        ):
            self._settle_oldest()

    def land(self) -> None:
        """Wait for everything that is on its way."""
        while self._sent:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        sent = self._take()
        refusal = self._refusal(sent.future)
        if refusal is None:
            return
        # Declarations may have changed; and a command's key may stand on other events too (C7).
        if isinstance(refusal, StaleRules) or self._key_is_shared(sent.append, refusal):
            again = [sent.append, *self._failed_behind()]
            self._log.appender.reload_rules()
            for append in again:
                self._send_alone(append)
        else:
            self._refuse(sent.append, refusal)

    def _take(self) -> _Sent:
        sent = self._sent.popleft()
        self._events -= len(sent.append)
        self._bytes -= sent.size
        return sent

    def _refusal(self, future: Ticket) -> SeriatimError | StaleRules | None:
        """Wait for an answer and count a receipt; a failing store ends the import."""
        try:
            result = future.result(self._log.settings.timeout_s)
        except TimeoutError:
            raise give_up(future) from None
        except BackendFailure:
            raise
        except (SeriatimError, StaleRules) as refusal:
            return refusal
        if result.replayed:
            self.report.reused += result.count
        else:
            self.report.appended += result.count
        return None

    def _key_is_shared(self, append: Append, refusal: Exception) -> bool:
        return isinstance(refusal, IdempotencyConflict) and of_a_command(append)

    def _failed_behind(self) -> list[Append]:
        """Let the rest land; return what failed, perhaps only for want of what comes before it."""
        failed: list[Append] = []
        while self._sent:
            sent = self._take()
            if self._refusal(sent.future) is not None:
                failed.append(sent.append)
        return failed

    def _send_alone(self, append: Append) -> None:
        refusal: Exception | None = None
        for door in (_DOOR, _DOOR_SHARED_KEYS):
            try:
                request = self._request(append, door)
            except SeriatimError as error:
                refusal = error
                break
            refusal = self._refusal(self._committer.submit(request))
            if refusal is None or not self._key_is_shared(append, refusal):
                break
        if refusal is not None:
            self._refuse(append, refusal)

    def _request(self, append: Append, door: Door) -> Request:
        if door is _DOOR and shares_keys(append):
            door = _DOOR_SHARED_KEYS
        draft = Draft(
            tenant_id=append[0][1].tenant_id or self._log.tenant_id,
            door=door,
            events=[new_event(number, line) for number, line in append],
            condition=self._conditions(append),
        )
        request = self._log.appender.request(draft)
        for (number, line), event in zip(append, request.events, strict=True):
            if line.payload_hash not in (None, event.payload_hash):
                msg = f"line {number}: the payload does not have its hash; the file was altered"
                raise InvalidEvent(msg, details={"line": number})
        return request

    def _conditions(self, append: Append) -> tuple[Condition, ...]:
        """Expect what the file says, where a kind demands an expectation (B11)."""
        expected: dict[tuple[str, str], int | None] = {}
        for _, line in append:
            if line.stream_type is None or line.stream_id is None or line.stream_seq is None:
                continue
            kind = self._log.appender.rules.kind_of(line.stream_type)
            if kind.expected_seq_required:
                before = None if line.stream_seq == kind.first_seq else line.stream_seq - 1
                expected.setdefault((line.stream_type, line.stream_id), before)
        return tuple(ExpectedSeq(stream, seq) for stream, seq in expected.items())

    def _refuse(self, append: Append, error: Exception) -> None:
        code = error.code if isinstance(error, SeriatimError) else "conflict"
        self.report.refused += len(append)
        self.report.reasons[code] += len(append)
        if len(self.report.refusals) < SHOWN_MAX:
            refusal = Refusal(append[0][0], len(append), code, str(error))
            self.report.refusals.append(refusal)
