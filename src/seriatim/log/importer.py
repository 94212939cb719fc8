"""Import an export file: append its events in order, in groups, each at most once."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ThreadPoolExecutor,
)
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING

import msgspec

from seriatim.core.decide import StaleRules
from seriatim.core.errors import (
    BackendFailure,
    Conflict,
    IdempotencyConflict,
    InvalidArgument,
    InvalidEvent,
    LimitExceeded,
    SeriatimError,
)
from seriatim.core.event import AppendResult, StreamRef
from seriatim.core.kinds import Declaration, EventType
from seriatim.core.profile_rules import ProfileRules
from seriatim.core.request import AppendRequest, Condition, ExpectedSeq
from seriatim.core.tenants import check_tenant
from seriatim.log.appender import Draft
from seriatim.log.batches import PAGE_BYTES
from seriatim.log.export_format import (
    EXPORT_PAGE_EVENTS,
    ExportHeader,
    ExportLine,
    ExportReader,
    OversizedAppend,
)
from seriatim.log.import_lines import (
    IMPORT_RULES,
    SHARED_KEY_RULES,
    NumberedLines,
    make_draft,
    may_be_command,
)
from seriatim.store.committer import make_unexpected_error
from seriatim.store.port import Outcome, Store, make_unanswered_error

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog
    from seriatim.log.import_pool import ImportPool, PreparedBatch

TRACKED_STREAMS_MAX = 100_000

_Stream = tuple[str, str, str]  # tenant, type, id


class DivergenceDetector:
    """Compare the last events of the log's streams with the events of an import file.

    An import preserves sequence numbers, so a gap in a stream keeps all later events out; only
    events of another history could fill it. If the file has another event than the log at the
    sequence number where the log's stream ended, the rest of that stream is refused.

    Memory is bounded except for the set of diverged streams.
    """

    def __init__(self, store: Store, tenant_id: str) -> None:
        self._store = store
        self._tenant_id = tenant_id
        self._empty = store.head() == 0
        self._ends: dict[_Stream, tuple[int | None, str] | None] = {}
        self._diverged: set[_Stream] = set()

    def load_stream_ends(self, lines: Iterable[ExportLine]) -> None:
        """Load the last events of the streams of these lines, in one query per tenant.

        Must be called before any of the lines is committed.
        """
        if self._empty:
            return
        missing: dict[str, list[StreamRef]] = defaultdict(list)
        for stream in {key for line in lines if (key := self._stream_key(line)) is not None}:
            if stream not in self._ends:
                missing[stream[0]].append(stream[1:])
        for tenant_id, streams in missing.items():
            last_records = self._store.last_of_streams(tenant_id, streams)
            for ref, last in zip(streams, last_records, strict=True):
                if len(self._ends) >= TRACKED_STREAMS_MAX:
                    del self._ends[next(iter(self._ends))]
                end = None if last is None else (last.stream_seq, last.event_id)
                self._ends[tenant_id, *ref] = end

    def check(self, line: ExportLine, number: int) -> None:
        """Raise `Conflict` for an event of a stream that has diverged."""
        if self._empty or (stream := self._stream_key(line)) is None:
            return
        if stream not in self._ends:  # evicted: the page had more streams than are tracked
            self.load_stream_ends([line])
        end = self._ends[stream]
        if end is not None and line.stream_seq == end[0] and line.event_id != end[1]:
            self._diverged.add(stream)
        if stream in self._diverged:
            msg = f"line {number}: the log has a stream of that name with other events"
            raise Conflict(msg, details={"line": number})

    def _stream_key(self, line: ExportLine) -> _Stream | None:
        if line.stream_type is None or line.stream_id is None:
            return None
        return line.tenant_id or self._tenant_id, line.stream_type, line.stream_id


PREPARED_EVENTS = 100  # validated together
POOL_EVENTS = 500  # the same in another process, which costs a message
GROUP_EVENTS = 2000
GROUP_BYTES = 4 * 1024 * 1024
IN_FLIGHT_MAX = 3  # groups: one being stored, one queued, one being prepared
REPORTED_REFUSALS_MAX = 20

AppendFromFile = NumberedLines | OversizedAppend


class ImportRefusal(msgspec.Struct, frozen=True):
    """An append that was refused, and why."""

    line: int
    events: int
    code: str
    message: str


class ImportReport(msgspec.Struct, kw_only=True):
    """The result of an import, in numbers of events.

    Attributes:
        appended: Stored by this import.
        reused: Stored already.
        refused: Refused by the log.
        skipped: Of other tenants.
        complete: Whether the file has its end; false if it is truncated.
        undeclared: The number of declarations of the file that the log does not have.
        reasons: The number of refused events by error code.
        refusals: The first refused appends.
    """

    appended: int = 0
    reused: int = 0
    refused: int = 0
    skipped: int = 0
    complete: bool = True
    undeclared: int = 0
    reasons: Counter[str] = msgspec.field(default_factory=Counter)
    refusals: list[ImportRefusal] = []

    @property
    def ok(self) -> bool:
        """Whether the file is complete and the log has all its events."""
        return self.complete and not self.refused


def import_events(
    log: BaseLog,
    lines: Iterable[bytes],
    *,
    tenant_id: str | None = None,
    declarations: bool = False,
    progress: Callable[[int], None] | None = None,
    processes: int = 1,
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
        progress: Called with the number of events of each append that is read.
        processes: How many processes validate events; 1 is this one. More are spawned, so a script
            needs `if __name__ == "__main__":`. They validate neither for a custom guard nor for
            stream kinds that require an expected number.

    Returns:
        The numbers of appended, reused, refused and skipped events.

    Raises:
        InvalidEvent: A line is not an event; the events before it are imported.
        BackendFailure: The store failed.

    Example:
        with open("export.ndjson", "wb") as file:
            export_log(log.store, file.write)
        with seriatim.open("memory:") as copy, open("export.ndjson", "rb") as lines:
            print(import_events(copy, lines).appended)
    """
    if tenant_id is not None:
        check_tenant(tenant_id)
    source = ExportReader(lines)
    undeclared = _apply_declarations(log, source.header, apply=declarations)
    with ThreadPoolExecutor(1, "seriatim-import") as writer:
        groups = _GroupWriter(log, writer, _make_pool(log, processes))
        try:
            for page in _iterate_pages(source.appends(log.settings.limits)):
                groups.load_stream_ends(page)
                for append in page:
                    append_tenant, events = _get_tenant_and_size(append)
                    if tenant_id not in (None, append_tenant or log.tenant_id):
                        groups.report.skipped += events
                        continue
                    groups.send(append)
                    if progress is not None:
                        progress(events)
                groups.prepare()  # a page bounds the bytes of appends that are not validated yet
            groups.finish()
        except InvalidEvent:  # a malformed line: import the appends before it
            groups.finish()
            raise
        except BaseException:
            # The store failed or the caller interrupted: end at once. A repeated import continues.
            writer.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            groups.close()
    groups.report.complete = source.complete
    groups.report.undeclared = undeclared
    return groups.report


def _make_pool(log: BaseLog, processes: int) -> ImportPool | None:
    """Return a pool of processes, None if this process validates the events itself."""
    if processes < 1:
        msg = f"processes must be at least 1, not {processes}"
        raise InvalidArgument(msg, details={"argument": "processes"})
    if processes == 1:
        return None
    from seriatim.log.import_pool import ImportPool, find_guard_name  # noqa: PLC0415 - slow to load

    appender = log.appender
    guard = find_guard_name(appender.guard)
    if guard is None or appender.rules.requires_expected_seq:
        return None
    return ImportPool(processes, appender.rules, guard, log.settings.limits, log.tenant_id)


def _apply_declarations(log: BaseLog, header: ExportHeader | None, *, apply: bool) -> int:
    """Declare what the log does not have, or return the number of declarations left out."""
    undeclared = _find_undeclared(log, header)
    if apply:
        log.declare(*undeclared)
        return 0
    return len(undeclared)


def _find_undeclared(log: BaseLog, header: ExportHeader | None) -> list[Declaration]:
    """Return the declarations of a file that the log does not have in the same form."""
    if header is None:
        return []
    rules = log.store.rules()
    indexes = [index.declaration for index in rules.indexes]
    return [
        *(kind for kind in header.kinds if rules.kinds.get(kind.name) != kind),
        *(entry for entry in header.types if rules.types.get(_type_key(entry)) != entry),
        *(index for index in header.indexes if index not in indexes),
    ]


def _type_key(entry: EventType) -> tuple[str, int]:
    return entry.event_type, entry.event_version


def _get_tenant_and_size(append: AppendFromFile) -> tuple[str | None, int]:
    if isinstance(append, OversizedAppend):
        return append.tenant_id, append.events
    return append[0][1].tenant_id, len(append)


def _iterate_pages(appends: Iterator[AppendFromFile]) -> Iterator[list[AppendFromFile]]:
    """Yield pages of appends; raise the error of a malformed line after the appends before it."""
    page: list[AppendFromFile] = []
    lines = size = 0
    try:
        for append in appends:
            page.append(append)
            lines += _get_tenant_and_size(append)[1]
            if not isinstance(append, OversizedAppend):
                size += sum(len(line.payload) for _, line in append)
            if lines >= EXPORT_PAGE_EVENTS or size >= PAGE_BYTES:
                yield page
                page, lines, size = [], 0, 0
    except InvalidEvent as error:
        yield page
        raise error from None
    yield page


class _Group(msgspec.Struct):
    """Appends that are committed together, all with conditions or all without."""

    appends: list[NumberedLines] = []
    requests: list[AppendRequest] = []
    conditional: bool = False
    events: int = 0
    bytes: int = 0


_SubmittedGroup = tuple[list[NumberedLines], "Future[list[Outcome]]"]


def _check_hashes(append: NumberedLines, request: AppendRequest) -> None:
    """Raise `InvalidEvent` if a payload does not match the hash in the file."""
    for (number, line), event in zip(append, request.events, strict=True):
        if line.payload_hash not in (None, event.payload_hash):
            msg = (
                f"line {number}: the payload does not match its payload_hash; the file was altered"
            )
            raise InvalidEvent(msg, details={"line": number})


class _Batch(msgspec.Struct):
    """Appends that are validated together, here or in another process."""

    appends: list[AppendFromFile]
    prepared: Future[PreparedBatch] | None = None


class _GroupWriter:
    """Commit appends in groups, a bounded number in flight; one thread keeps the file's order."""

    def __init__(self, log: BaseLog, writer: Executor, pool: ImportPool | None) -> None:
        self.report = ImportReport()
        self._log = log
        self._writer = writer
        self._pool = pool
        self._batches: deque[_Batch] = deque()  # being validated, in the order of the file
        self._divergence = DivergenceDetector(log.store, log.tenant_id)
        self._unprepared: list[AppendFromFile] = []
        self._unprepared_events = 0
        self._open = _Group()
        self._in_flight: deque[_SubmittedGroup] = deque()

    def load_stream_ends(self, page: list[AppendFromFile]) -> None:
        """Load the last events of the streams of a page, before any of its appends is sent."""
        self._divergence.load_stream_ends(
            line for append in page if isinstance(append, list) for _, line in append
        )

    def send(self, append: AppendFromFile) -> None:
        """Validate an append, together with those before it, and add it to the open group."""
        self._unprepared.append(append)
        self._unprepared_events += _get_tenant_and_size(append)[1]
        if self._unprepared_events >= (PREPARED_EVENTS if self._pool is None else POOL_EVENTS):
            self.prepare()

    def prepare(self) -> None:
        """Start to validate the appends that were sent, and add validated ones to groups."""
        appends, self._unprepared, self._unprepared_events = self._unprepared, [], 0
        if appends:
            self._batches.append(_Batch(appends, self._start_validation(appends)))
        self._add_batches(0 if self._pool is None else self._pool.batches_max)

    def _start_validation(self, appends: list[AppendFromFile]) -> Future[PreparedBatch] | None:
        """Start the validation of a batch in the pool; None if this process validates it."""
        lines = [append for append in appends if isinstance(append, list)]
        if self._pool is None or len(lines) < len(appends):
            return None
        return self._pool.submit(lines)

    def _add_batches(self, ahead: int) -> None:
        """Add batches to groups in their order, until at most `ahead` are left."""
        while len(self._batches) > ahead:
            self._add_batch(self._batches.popleft())

    def _add_batch(self, batch: _Batch) -> None:
        requests = self._prepare_in_pool(batch) or self._prepare_together(batch.appends)
        for append, request in zip(batch.appends, requests, strict=True):
            if isinstance(append, OversizedAppend):
                self._report_refusal(
                    ImportRefusal(append.line, append.events, LimitExceeded.code, append.message)
                )
                continue
            try:
                checked = self._check(append, request)
            except BackendFailure:
                raise
            except SeriatimError as error:
                self._refuse(append, error)
            else:
                self._add_to_group(append, checked)

    def _prepare_in_pool(self, batch: _Batch) -> Sequence[AppendRequest | None]:
        """Return the requests of a batch that the pool has validated; none if it has not."""
        if self._pool is None or batch.prepared is None:
            return ()
        try:
            prepared = batch.prepared.result()
        except (BrokenExecutor, CancelledError):  # its processes were killed: go on without them
            self.close()
            return ()
        if self._pool.rules.version != self._log.appender.rules.version:
            self.close()  # other processes have declared more since: what it validates is refused
            return ()
        if prepared is None:
            return [None] * len(batch.appends)  # validated one by one, for the error of each
        drafts = [
            make_draft(append, self._log.tenant_id, with_events=False)
            for append in batch.appends
            if isinstance(append, list)
        ]
        return self._log.appender.make_requests(drafts, self._pool.rules, prepared)

    def close(self) -> None:
        """End the processes of the pool; this process validates what is left."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _prepare_together(self, appends: list[AppendFromFile]) -> Sequence[AppendRequest | None]:
        """Validate appends at once, since that costs less; no requests if one is refused."""
        try:
            drafts = [self._make_draft(append) for append in appends if isinstance(append, list)]
            if len(drafts) < len(appends) or any(draft.condition for draft in drafts):
                return [None] * len(appends)
            return self._log.appender.prepare_requests(drafts)
        except BackendFailure:
            raise
        except SeriatimError:
            return [None] * len(appends)  # validated one by one, for the error of each

    def _check(self, append: NumberedLines, request: AppendRequest | None) -> AppendRequest:
        """Return the valid request of an append; raises the error that refuses it."""
        for number, line in append:
            self._divergence.check(line, number)
        if request is None:
            request = self._log.appender.prepare_request(self._make_draft(append))
        _check_hashes(append, request)
        return request

    def _add_to_group(self, append: NumberedLines, request: AppendRequest) -> None:
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
        while len(self._in_flight) >= IN_FLIGHT_MAX:
            self._settle_oldest()
        group, self._open = self._open, _Group()
        if group.appends:
            self._in_flight.append(
                (group.appends, self._writer.submit(self._commit, group.requests))
            )

    def _commit(self, requests: list[AppendRequest]) -> list[Outcome]:
        try:
            return self._log.store.append(requests)
        except SeriatimError as error:
            return [error] * len(requests)
        except Exception as error:  # noqa: BLE001 - reported like any failure of a store
            return [make_unexpected_error(error)] * len(requests)

    def finish(self) -> None:
        """Commit the appends that were sent, and wait for all groups in flight."""
        self.prepare()
        self._add_batches(0)
        self._submit_group()
        while self._in_flight:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        outcomes = deque(self._wait_for(self._in_flight.popleft()))
        while outcomes:
            append, outcome = outcomes.popleft()
            refusal = self._count_outcome(outcome)
            if refusal is None:
                continue
            # Declarations may have changed, or events of a command may share a key (contract C7).
            if isinstance(refusal, StaleRules) or self._may_share_key(append, refusal):
                retries = [append, *self._collect_failed(outcomes)]
                self._log.appender.reload_rules()
                for retried_append in retries:
                    self._send_alone(retried_append)
                return
            self._refuse(append, refusal)

    def _wait_for(self, group: _SubmittedGroup) -> Iterator[tuple[NumberedLines, Outcome]]:
        """Wait until a group is committed, and return its outcomes."""
        appends, outcomes = group
        try:
            return zip(appends, outcomes.result(self._log.settings.timeout_s), strict=True)
        except FutureTimeout:
            raise make_unanswered_error() from None

    def _count_outcome(self, outcome: Outcome) -> SeriatimError | StaleRules | None:
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

    def _may_share_key(self, append: NumberedLines, refusal: Exception) -> bool:
        return isinstance(refusal, IdempotencyConflict) and may_be_command(append)

    def _collect_failed(
        self, outcomes: Iterable[tuple[NumberedLines, Outcome]]
    ) -> list[NumberedLines]:
        """Wait for all groups and return the refused appends.

        They may have failed only because an earlier append of their stream was missing.
        """
        failed = [
            append for append, outcome in outcomes if self._count_outcome(outcome) is not None
        ]
        while self._in_flight:
            later = self._wait_for(self._in_flight.popleft())
            failed += [
                append for append, outcome in later if self._count_outcome(outcome) is not None
            ]
        return failed

    def _send_alone(self, append: NumberedLines) -> None:
        refusal: Exception | None = None
        for rules in (IMPORT_RULES, SHARED_KEY_RULES):
            try:
                request = self._log.appender.prepare_request(self._make_draft(append, rules))
                _check_hashes(append, request)
            except SeriatimError as error:
                refusal = error
                break
            future = self._writer.submit(self._commit, [request])
            [(_, outcome)] = self._wait_for(([append], future))
            refusal = self._count_outcome(outcome)
            if refusal is None or not self._may_share_key(append, refusal):
                break
        if refusal is not None:
            self._refuse(append, refusal)

    def _make_draft(self, append: NumberedLines, rules: ProfileRules = IMPORT_RULES) -> Draft:
        draft = make_draft(append, self._log.tenant_id, rules)
        conditions = self._make_conditions(append)
        return msgspec.structs.replace(draft, condition=conditions) if conditions else draft

    def _make_conditions(self, append: NumberedLines) -> tuple[Condition, ...]:
        """Return the expected sequence numbers for kinds that require them (contract B11)."""
        if not self._log.appender.rules.requires_expected_seq:
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

    def _refuse(self, append: NumberedLines, error: Exception) -> None:
        code = error.code if isinstance(error, SeriatimError) else "conflict"
        self._report_refusal(ImportRefusal(append[0][0], len(append), code, str(error)))

    def _report_refusal(self, refusal: ImportRefusal) -> None:
        self.report.refused += refusal.events
        self.report.reasons[refusal.code] += refusal.events
        if len(self.report.refusals) < REPORTED_REFUSALS_MAX:
            self.report.refusals.append(refusal)
