"""Append of many rows in order: several appends in flight, which share group commits."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from seriatim.config import Settings
from seriatim.core.decide import StaleRules
from seriatim.core.errors import BackendFailure, SeriatimError
from seriatim.core.event import AppendResult, NewEvent
from seriatim.core.profile_rules import LOG_PROFILE
from seriatim.factory import Log, open_log
from seriatim.log.appender import Draft
from seriatim.pipeline.sink.row_events import EventBuilder, Row
from seriatim.store.committer import QueuedAppend

_PARTIAL_SUFFIX = ".part"
_FIRST_REASONS = 10
_encode = msgspec.json.Encoder(enc_hook=str).encode


class RefusalReason(msgspec.Struct, frozen=True):
    """The error with which the log refused a row."""

    code: str
    message: str


class RefusedRows:
    """Collects the refused rows of one task: the first reasons and, with a folder, all rows.

    The file has one JSON object per line with the error's `code` and `message` and the `row`. It
    keeps the suffix `.part` until the job commits (`finalize_files`), and is removed if the task
    fails, because Spark then runs the task again.

    Attributes:
        first_reasons: The first reasons.
        file: The path of the file, None if no row was written to one.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._sink: IO[bytes] | None = None
        self.first_reasons: list[RefusalReason] = []
        self.file: str | None = None

    def add(self, error: SeriatimError, row: dict[str, Any]) -> None:
        """Add a row and the error with which it was refused."""
        if len(self.first_reasons) < _FIRST_REASONS:
            self.first_reasons.append(RefusalReason(error.code, error.message))
        if self._folder is None:
            return
        if self._sink is None:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
            path = Path(self._folder, f"refused-{uuid.uuid4().hex}.jsonl{_PARTIAL_SUFFIX}")
            self.file = str(path)
            self._sink = path.open("xb")
        line = {"code": error.code, "message": error.message, "row": row}
        self._sink.write(_encode(line) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._sink is not None:
            self._sink.close()
            if failure[0] is not None and self.file is not None:
                # Spark runs the task again, which writes its refused rows anew.
                Path(self.file).unlink(missing_ok=True)


def finalize_files(files: Sequence[str]) -> None:
    """Give the files of successful tasks their final names, without `.part`."""
    for name in files:
        Path(name).rename(name.removesuffix(_PARTIAL_SUFFIX))


# Enough appends for large group commits, but bounded: each keeps its row until its result arrives.
MAX_IN_FLIGHT = 1000
MAX_BYTES_IN_FLIGHT = 32 * 1024 * 1024


class AppendCounts(msgspec.Struct):
    """Numbers of rows that were appended, were stored already, or were refused."""

    appended: int = 0
    reused: int = 0
    refused: int = 0


class _InFlightAppend(msgspec.Struct):
    """An append that was submitted and has no result yet."""

    row: Row
    draft: Draft
    queued: QueuedAppend


def append_rows(
    url: str,
    builder: EventBuilder,
    rows: Iterable[Row],
    refused: RefusedRows,
    *,
    tenant_id: str,
    guard: str,
) -> AppendCounts:
    """Append each row as an event of its own, in order, and count the results.

    Args:
        url: The URL of an existing log.
        builder: Builds the event of a row.
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
        window = AppendWindow(log, refused)
        for row in rows:
            try:
                event = builder.build_event(row)
            except SeriatimError as error:
                window.refuse(error, row)
                continue
            window.append(row, event, event.tenant_id or tenant_id)
        window.finish()
        return window.counts


class AppendWindow:
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
        self.counts = AppendCounts()

    def append(self, row: Row, event: NewEvent, tenant_id: str) -> None:
        """Submit the event of a row; wait for older ones while the window is full.

        Raises:
            SeriatimError: An older append, or this one, failed in the database.
        """
        while self._in_flight and (
            self._stale
            or len(self._in_flight) >= MAX_IN_FLIGHT
            or self._bytes > MAX_BYTES_IN_FLIGHT
        ):
            self._complete_oldest()
        self._stale = False
        draft = Draft(tenant_id=tenant_id, profile_rules=LOG_PROFILE, events=(event,))
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
        request = self._log.appender.prepare_request(draft)
        queued = self._log.appender.submission.submit(request)
        self._in_flight.append(_InFlightAppend(row, draft, queued))
        self._bytes += request.size

    def _complete_oldest(self) -> None:
        """Wait for the oldest append and count its result."""
        oldest = self._in_flight.popleft()
        self._bytes -= oldest.queued.request.size
        try:
            self._count(self._wait(oldest))
        except SeriatimError as error:
            self.refuse(error, oldest.row)

    def _wait(self, append: _InFlightAppend) -> AppendResult:
        try:
            return append.queued.result(self._log.settings.timeout_s)
        except StaleRules:
            # Declarations changed after this append was validated, so the appends submitted after
            # it are stale too. All of them are repeated one by one before a new one is submitted,
            # which keeps the order of the rows.
            self._stale = True
            return self._log.append_draft(append.draft)
        except TimeoutError:
            msg = "an append timed out and its outcome is unknown: run the task again"
            raise BackendFailure(msg, details={"ambiguous": True}) from None

    def _count(self, result: AppendResult) -> None:
        if result.replayed:
            self.counts.reused += 1
        else:
            self.counts.appended += 1
