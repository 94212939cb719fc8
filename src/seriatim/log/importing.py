"""Appending the events of an export, in order, many appends to a commit, and none of them twice."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING

import msgspec

from seriatim.core.decide import StaleRules
from seriatim.core.doors import LOG, Door
from seriatim.core.errors import (
    BackendFailure,
    IdempotencyConflict,
    InvalidEvent,
    LimitExceeded,
    SeriatimError,
)
from seriatim.core.event import AppendResult
from seriatim.core.kinds import Declaration, EventType
from seriatim.core.request import Condition, ExpectedSeq, Request
from seriatim.core.tenants import check_tenant
from seriatim.log.appending import Draft
from seriatim.log.histories import Histories
from seriatim.log.imported import Append, new_event, of_a_command, shares_keys
from seriatim.log.pages import PAGE_BYTES
from seriatim.log.transfer import PAGE, Header, OversizedAppend, Source
from seriatim.store.committer import unforeseen
from seriatim.store.port import Outcome, unanswered

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog

GROUP_EVENTS = 2000
GROUP_BYTES = 4 * 1024 * 1024
IN_FLIGHT_MAX = 3  # groups: one is stored, the next one waits, and one is made ready
SHOWN_MAX = 20

Found = Append | OversizedAppend

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
    """What became of the events of a file; `refusals` shows the first few, `reasons` counts all.

    `undeclared` counts the file's declarations that the log does not have and was not given.
    """

    appended: int = 0
    reused: int = 0
    refused: int = 0
    skipped: int = 0
    whole: bool = True
    undeclared: int = 0
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
    declarations: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Append what an export holds, of one tenant or of all; a second time it stores nothing.

    With `declarations` the file's kinds, types and indexes are declared first: they apply to the
    whole log, whatever tenant is imported. An append that the log refuses is reported and passed
    over; a failing store ends the import, which can then be repeated.
    """
    if tenant_id is not None:
        check_tenant(tenant_id)
    source = Source(lines)
    undeclared = _undeclared(log, source.header)
    if declarations:
        log.declare(*undeclared)
        undeclared = []
    with ThreadPoolExecutor(1, "seriatim-import") as writer:
        flight = _Flight(log, writer)
        try:
            for page in _pages(source.appends(log.settings.limits)):
                flight.look_ahead(page)
                for append in page:
                    whose, events = _tenant_and_size(append)
                    if tenant_id not in (None, whose or log.tenant_id):
                        flight.report.skipped += events
                        continue
                    flight.send(append)
                    if progress is not None:
                        progress(events)
            flight.land()
        except InvalidEvent:  # a line that is none: what came before it goes in
            flight.land()
            raise
        except BaseException:
            writer.shutdown(wait=False, cancel_futures=True)
            raise
    flight.report.whole = source.whole
    flight.report.undeclared = len(undeclared)
    return flight.report


def _undeclared(log: BaseLog, header: Header | None) -> list[Declaration]:
    """Return the declarations of a file that the log does not have; another rule is a conflict."""
    if header is None:
        return []
    rules = log.store.rules()
    return [
        *(one for one in header.kinds if rules.kinds.get(one.name) != one),
        *(one for one in header.types if rules.types.get(_entry(one)) != one),
        *(one for one in header.indexes if one not in [kept.declared for kept in rules.indexes]),
    ]


def _entry(declared: EventType) -> tuple[str, int]:
    return declared.event_type, declared.event_version


def _tenant_and_size(append: Found) -> tuple[str | None, int]:
    if isinstance(append, OversizedAppend):
        return append.tenant_id, append.events
    return append[0][1].tenant_id, len(append)


def _pages(appends: Iterator[Found]) -> Iterator[list[Found]]:
    """Yield some appends at a time; a bad line is told of after those that stand before it."""
    page: list[Found] = []
    lines = size = 0
    try:
        for append in appends:
            page.append(append)
            lines += _tenant_and_size(append)[1]
            if not isinstance(append, OversizedAppend):
                size += sum(len(line.payload) for _, line in append)
            if lines >= PAGE or size >= PAGE_BYTES:
                yield page
                page, lines, size = [], 0, 0
    except InvalidEvent as error:
        yield page
        raise error from None
    yield page


class _Group(msgspec.Struct):
    """Appends that are stored together, all with conditions or all without."""

    appends: list[Append] = []
    requests: list[Request] = []
    conditional: bool = False
    events: int = 0
    bytes: int = 0


_Sent = tuple[list[Append], "Future[list[Outcome]]"]


class _Flight:
    """Appends on their way, bounded; one writer keeps them in the order of the file."""

    def __init__(self, log: BaseLog, writer: Executor) -> None:
        self.report = ImportReport()
        self._log = log
        self._writer = writer
        self._histories = Histories(log.store, log.tenant_id)
        self._open = _Group()
        self._sent: deque[_Sent] = deque()

    def look_ahead(self, page: list[Found]) -> None:
        """Look at what the log holds of the streams of some appends before they are sent."""
        self._histories.look_up(
            line for append in page if isinstance(append, list) for _, line in append
        )

    def send(self, append: Found) -> None:
        """Check an append and let it go with those before it."""
        if isinstance(append, OversizedAppend):
            refusal = Refusal(append.line, append.events, LimitExceeded.code, append.message)
            self._report_refusal(refusal)
            return
        try:
            for number, line in append:
                self._histories.check(line, number)
            request = self._request(append, _DOOR)
        except BackendFailure:
            raise
        except SeriatimError as error:
            self._refuse(append, error)
            return
        # A store may commit the appends of a group in any order: only like ones travel together.
        conditional = bool(request.conditions)
        group = self._open
        if group.appends and (
            group.conditional != conditional
            or group.events + len(append) > GROUP_EVENTS
            or group.bytes + request.size > GROUP_BYTES
        ):
            self._dispatch()
        group = self._open
        group.conditional = conditional
        group.appends.append(append)
        group.requests.append(request)
        group.events += len(append)
        group.bytes += request.size

    def _dispatch(self) -> None:
        """Hand the open group to the writer, when there is room for it."""
        while len(self._sent) >= IN_FLIGHT_MAX:
            self._settle_oldest()
        group, self._open = self._open, _Group()
        if group.appends:
            self._sent.append((group.appends, self._writer.submit(self._commit, group.requests)))

    def _commit(self, requests: list[Request]) -> list[Outcome]:
        try:
            return self._log.store.append(requests)
        except SeriatimError as error:
            return [error] * len(requests)
        except Exception as error:  # noqa: BLE001 - told like any failure of a store
            return [unforeseen(error)] * len(requests)

    def land(self) -> None:
        """Wait for everything that is on its way."""
        self._dispatch()
        while self._sent:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        answered = deque(self._answers(self._sent.popleft()))
        while answered:
            append, outcome = answered.popleft()
            refusal = self._refusal(outcome)
            if refusal is None:
                continue
            # Declarations may have changed; and a command's key may stand on other events too (C7).
            if isinstance(refusal, StaleRules) or self._key_is_shared(append, refusal):
                again = [append, *self._failed_behind(answered)]
                self._log.appender.reload_rules()
                for one in again:
                    self._send_alone(one)
                return
            self._refuse(append, refusal)

    def _answers(self, sent: _Sent) -> Iterator[tuple[Append, Outcome]]:
        """Wait for the answers of a group."""
        appends, outcomes = sent
        try:
            return zip(appends, outcomes.result(self._log.settings.timeout_s), strict=True)
        except FutureTimeout:
            raise unanswered() from None

    def _refusal(self, outcome: Outcome) -> SeriatimError | StaleRules | None:
        """Count a receipt or return a refusal; a failing store ends the import."""
        if isinstance(outcome, BackendFailure):
            raise outcome
        if not isinstance(outcome, AppendResult):
            return outcome
        if outcome.replayed:
            self.report.reused += outcome.count
        else:
            self.report.appended += outcome.count
        return None

    def _key_is_shared(self, append: Append, refusal: Exception) -> bool:
        return isinstance(refusal, IdempotencyConflict) and of_a_command(append)

    def _failed_behind(self, answered: Iterable[tuple[Append, Outcome]]) -> list[Append]:
        """Let the rest land; return what failed, perhaps only for want of what comes before it."""
        failed = [append for append, outcome in answered if self._refusal(outcome) is not None]
        while self._sent:
            answers = self._answers(self._sent.popleft())
            failed += [one for one, outcome in answers if self._refusal(outcome) is not None]
        return failed

    def _send_alone(self, append: Append) -> None:
        refusal: Exception | None = None
        for door in (_DOOR, _DOOR_SHARED_KEYS):
            try:
                request = self._request(append, door)
            except SeriatimError as error:
                refusal = error
                break
            sent = self._writer.submit(self._commit, [request])
            [(_, outcome)] = self._answers(([append], sent))
            refusal = self._refusal(outcome)
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
        if not self._log.appender.rules.demands_expected_seq:
            return ()
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
        self._report_refusal(Refusal(append[0][0], len(append), code, str(error)))

    def _report_refusal(self, refusal: Refusal) -> None:
        self.report.refused += refusal.events
        self.report.reasons[refusal.code] += refusal.events
        if len(self.report.refusals) < SHOWN_MAX:
            self.report.refusals.append(refusal)
