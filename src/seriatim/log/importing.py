"""Import an export file: append its events in order, in groups, each at most once."""

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
IN_FLIGHT_MAX = 3  # groups: one being stored, one queued, one being prepared
SHOWN_MAX = 20

Found = Append | OversizedAppend

# Events are imported as they were stored, whatever profile they were appended through.
_IMPORT_RULES = Door(name="import", codes=LOG.codes, any_payload=True)
_SHARED_KEY_RULES = Door(name="import", codes=LOG.codes, any_payload=True, keys_are_unique=False)


class Refusal(msgspec.Struct, frozen=True):
    """An append that was refused, and why."""

    line: int
    events: int
    code: str
    message: str


class ImportReport(msgspec.Struct, kw_only=True):
    """The result of an import, in numbers of events.

    `refusals` lists the first refused appends; `reasons` counts all refused events by error code.
    `undeclared` counts declarations of the file that the log does not have. `whole` is false if
    the file is truncated.
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
        """Whether the file is complete and the log has all its events."""
        return self.whole and not self.refused


def import_events(
    log: BaseLog,
    lines: Iterable[bytes],
    *,
    tenant_id: str | None = None,
    declarations: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Import the events of an export; importing it again stores nothing.

    Appends that the log refuses are reported and skipped. If the store fails, the import ends with
    its error and can be repeated.

    Args:
        log: The log to append to.
        lines: The lines of the file, as bytes.
        tenant_id: Import only this tenant's events; None imports all.
        declarations: Whether to declare the file's stream kinds, event types and payload indexes
            first. They apply to the whole log, whatever tenant is imported.
        progress: Called with the number of events of each append that is sent.

    Returns:
        The numbers of appended, reused, refused and skipped events.

    Raises:
        InvalidEvent: A line is not an event; the events before it are imported.
        BackendFailure: The store failed.

    Example:
        with open("export.ndjson", "rb") as lines:
            report = import_events(log, lines)
    """
    if tenant_id is not None:
        check_tenant(tenant_id)
    source = Source(lines)
    undeclared = _find_undeclared(log, source.header)
    if declarations:
        log.declare(*undeclared)
        undeclared = []
    with ThreadPoolExecutor(1, "seriatim-import") as writer:
        groups = _GroupWriter(log, writer)
        try:
            for page in _iterate_pages(source.appends(log.settings.limits)):
                groups.load_stream_ends(page)
                for append in page:
                    append_tenant, events = _tenant_and_size(append)
                    if tenant_id not in (None, append_tenant or log.tenant_id):
                        groups.report.skipped += events
                        continue
                    groups.send(append)
                    if progress is not None:
                        progress(events)
            groups.finish()
        except InvalidEvent:  # a malformed line: import the appends before it
            groups.finish()
            raise
        except BaseException:
            writer.shutdown(wait=False, cancel_futures=True)
            raise
    groups.report.whole = source.whole
    groups.report.undeclared = len(undeclared)
    return groups.report


def _find_undeclared(log: BaseLog, header: Header | None) -> list[Declaration]:
    """Return the declarations of a file that the log does not have in the same form."""
    if header is None:
        return []
    rules = log.store.rules()
    return [
        *(one for one in header.kinds if rules.kinds.get(one.name) != one),
        *(one for one in header.types if rules.types.get(_type_key(one)) != one),
        *(one for one in header.indexes if one not in [index.declared for index in rules.indexes]),
    ]


def _type_key(declared: EventType) -> tuple[str, int]:
    return declared.event_type, declared.event_version


def _tenant_and_size(append: Found) -> tuple[str | None, int]:
    if isinstance(append, OversizedAppend):
        return append.tenant_id, append.events
    return append[0][1].tenant_id, len(append)


def _iterate_pages(appends: Iterator[Found]) -> Iterator[list[Found]]:
    """Yield pages of appends; raise the error of a malformed line after the appends before it."""
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
    """Appends that are committed together, all with conditions or all without."""

    appends: list[Append] = []
    requests: list[Request] = []
    conditional: bool = False
    events: int = 0
    bytes: int = 0


_Sent = tuple[list[Append], "Future[list[Outcome]]"]


class _GroupWriter:
    """Commit appends in groups, a bounded number in flight; one thread keeps the file's order."""

    def __init__(self, log: BaseLog, writer: Executor) -> None:
        self.report = ImportReport()
        self._log = log
        self._writer = writer
        self._divergence = Histories(log.store, log.tenant_id)
        self._open = _Group()
        self._sent: deque[_Sent] = deque()

    def load_stream_ends(self, page: list[Found]) -> None:
        """Load the last events of the streams of a page, before any of its appends is sent."""
        self._divergence.look_up(
            line for append in page if isinstance(append, list) for _, line in append
        )

    def send(self, append: Found) -> None:
        """Validate an append and add it to the open group."""
        if isinstance(append, OversizedAppend):
            refusal = Refusal(append.line, append.events, LimitExceeded.code, append.message)
            self._report_refusal(refusal)
            return
        try:
            for number, line in append:
                self._divergence.check(line, number)
            request = self._make_request(append, _IMPORT_RULES)
        except BackendFailure:
            raise
        except SeriatimError as error:
            self._refuse(append, error)
            return
        # A store may commit the appends of a group in any order, so appends with and without
        # conditions never share one.
        conditional = bool(request.conditions)
        group = self._open
        if group.appends and (
            group.conditional != conditional
            or group.events + len(append) > GROUP_EVENTS
            or group.bytes + request.size > GROUP_BYTES
        ):
            self._submit_group()
        group = self._open
        group.conditional = conditional
        group.appends.append(append)
        group.requests.append(request)
        group.events += len(append)
        group.bytes += request.size

    def _submit_group(self) -> None:
        """Pass the open group to the writer thread, waiting if too many groups are in flight."""
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
        except Exception as error:  # noqa: BLE001 - reported like any failure of a store
            return [unforeseen(error)] * len(requests)

    def finish(self) -> None:
        """Commit the open group and wait for all groups in flight."""
        self._submit_group()
        while self._sent:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        outcomes = deque(self._wait_for(self._sent.popleft()))
        while outcomes:
            append, outcome = outcomes.popleft()
            refusal = self._count(outcome)
            if refusal is None:
                continue
            # Declarations may have changed, or events of a command may share a key (contract C7).
            if isinstance(refusal, StaleRules) or self._may_share_key(append, refusal):
                retried = [append, *self._collect_failed(outcomes)]
                self._log.appender.reload_rules()
                for one in retried:
                    self._send_alone(one)
                return
            self._refuse(append, refusal)

    def _wait_for(self, sent: _Sent) -> Iterator[tuple[Append, Outcome]]:
        """Wait until a group is committed, and return its outcomes."""
        appends, outcomes = sent
        try:
            return zip(appends, outcomes.result(self._log.settings.timeout_s), strict=True)
        except FutureTimeout:
            raise unanswered() from None

    def _count(self, outcome: Outcome) -> SeriatimError | StaleRules | None:
        """Count a receipt, or return the refusal; raises `BackendFailure` if the store failed."""
        if isinstance(outcome, BackendFailure):
            raise outcome
        if not isinstance(outcome, AppendResult):
            return outcome
        if outcome.replayed:
            self.report.reused += outcome.count
        else:
            self.report.appended += outcome.count
        return None

    def _may_share_key(self, append: Append, refusal: Exception) -> bool:
        return isinstance(refusal, IdempotencyConflict) and of_a_command(append)

    def _collect_failed(self, outcomes: Iterable[tuple[Append, Outcome]]) -> list[Append]:
        """Wait for all groups and return the refused appends.

        They may have failed only because an earlier append of their stream was missing.
        """
        failed = [append for append, outcome in outcomes if self._count(outcome) is not None]
        while self._sent:
            later = self._wait_for(self._sent.popleft())
            failed += [append for append, outcome in later if self._count(outcome) is not None]
        return failed

    def _send_alone(self, append: Append) -> None:
        refusal: Exception | None = None
        for rules in (_IMPORT_RULES, _SHARED_KEY_RULES):
            try:
                request = self._make_request(append, rules)
            except SeriatimError as error:
                refusal = error
                break
            sent = self._writer.submit(self._commit, [request])
            [(_, outcome)] = self._wait_for(([append], sent))
            refusal = self._count(outcome)
            if refusal is None or not self._may_share_key(append, refusal):
                break
        if refusal is not None:
            self._refuse(append, refusal)

    def _make_request(self, append: Append, rules: Door) -> Request:
        if rules is _IMPORT_RULES and shares_keys(append):
            rules = _SHARED_KEY_RULES
        draft = Draft(
            tenant_id=append[0][1].tenant_id or self._log.tenant_id,
            door=rules,
            events=[new_event(number, line) for number, line in append],
            condition=self._conditions(append),
        )
        request = self._log.appender.request(draft)
        for (number, line), event in zip(append, request.events, strict=True):
            if line.payload_hash not in (None, event.payload_hash):
                msg = (
                    f"line {number}: the payload does not match its payload_hash; the file was "
                    "altered"
                )
                raise InvalidEvent(msg, details={"line": number})
        return request

    def _conditions(self, append: Append) -> tuple[Condition, ...]:
        """Return the expected sequence numbers for kinds that require them (contract B11)."""
        if not self._log.appender.rules.demands_expected_seq:
            return ()
        expected: dict[tuple[str, str], int | None] = {}
        for _, line in append:
            if line.stream_type is None or line.stream_id is None or line.stream_seq is None:
                continue
            kind = self._log.appender.rules.kind_of(line.stream_type)
            if kind.expected_seq_required:
                previous = None if line.stream_seq == kind.first_seq else line.stream_seq - 1
                expected.setdefault((line.stream_type, line.stream_id), previous)
        return tuple(ExpectedSeq(stream, seq) for stream, seq in expected.items())

    def _refuse(self, append: Append, error: Exception) -> None:
        code = error.code if isinstance(error, SeriatimError) else "conflict"
        self._report_refusal(Refusal(append[0][0], len(append), code, str(error)))

    def _report_refusal(self, refusal: Refusal) -> None:
        self.report.refused += refusal.events
        self.report.reasons[refusal.code] += refusal.events
        if len(self.report.refusals) < SHOWN_MAX:
            self.report.refusals.append(refusal)
