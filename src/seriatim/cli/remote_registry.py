"""The registry of a service, accessed over HTTP by the commands `registry` and `dlq`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from seriatim.cli.command_session import CommandSession
from seriatim.cli.operations import warn_unrecorded
from seriatim.client.store import HttpStore
from seriatim.delivery.entries import (
    UNFINISHED_STATUSES,
    DeclaredHandler,
    Entry,
    EntryFilter,
    HandlerLog,
    StatusCount,
)
from seriatim.delivery.reset import ResetReport
from seriatim.factory import Log
from seriatim.log.arguments import invalid_argument
from seriatim.wire.messages import CountResponse

_PAGE_SIZE = 1000


class RegistryOperations(Protocol):
    """The operations of a registry that commands use, in a database or through a service."""

    def handlers(self) -> list[DeclaredHandler]:
        """Return the handlers."""
        ...

    def counts(self, *, finished: bool, tenant_id: str | None) -> list[StatusCount]:
        """Count events by handler and status."""
        ...

    def logs(self) -> list[HandlerLog]:
        """Return the identity of the log that each handler has processed, by tenant."""
        ...

    def entries(self, selection: EntryFilter, limit: int = 100) -> list[Entry]:
        """Return at most `limit` entries that match a selection, in the order of the log."""
        ...

    def count(self, selection: EntryFilter) -> int:
        """Count the entries that match a selection."""
        ...

    def retry(
        self, selection: EntryFilter, *, reason: str, expected_count: int | None
    ) -> CountResponse:
        """Make the selected events due for a retry."""
        ...

    def skip(
        self, selection: EntryFilter, *, reason: str, expected_count: int | None
    ) -> CountResponse:
        """Mark the selected events as skipped."""
        ...

    def set_status(self, handler: str, status: str, reason: str = "") -> None:
        """Pause or resume a handler."""
        ...

    def count_prunable(self, handler: str, finished_before: str, *, streamless: bool) -> int:
        """Count the entries that were finished before a time."""
        ...

    def prune(
        self,
        handler: str,
        finished_before: str,
        *,
        streamless: bool,
        reason: str,
        expected_count: int,
    ) -> CountResponse:
        """Delete the entries that were finished before a time."""
        ...

    def reset(
        self,
        handler: str,
        *,
        reason: str,
        tenant_id: str | None = None,
        position: int | None = None,
        expected_count: int | None = None,
    ) -> list[ResetReport]:
        """Let a handler continue with a restored log; without an expected count only plan it."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class _RegistryStatus(msgspec.Struct, frozen=True):
    handlers: list[DeclaredHandler]
    counts: list[StatusCount]
    logs: list[HandlerLog]


class _EntryPage(msgspec.Struct, frozen=True):
    entries: list[Entry]


class _EntryCount(msgspec.Struct, frozen=True):
    count: int


def _params(selection: EntryFilter) -> dict[str, Any]:
    return {
        "handler": selection.handler,
        "event_id": selection.event_id,
        "event_type": selection.event_type,
        "stream_type": selection.stream_type,
        "stream_id": selection.stream_id,
    }


def _statuses(selection: EntryFilter) -> tuple[str | None, ...]:
    """Return the statuses to request, one by one; None requests every unfinished one."""
    if selection.status is None or selection.status == UNFINISHED_STATUSES:
        return (None,)
    return (selection.status,) if isinstance(selection.status, str) else selection.status


class _Reset(msgspec.Struct, frozen=True):
    reports: list[ResetReport]
    recorded: bool = True


class RemoteRegistry:
    """One tenant's part of the registry that a service keeps next to its log."""

    def __init__(self, log: Log, command: CommandSession) -> None:
        if not isinstance(log.store, HttpStore):
            raise invalid_argument("url", "must be the URL of a service")
        self._command = command
        self._log = log
        self._store = log.store
        self._tenant_id = log.tenant_id

    def handlers(self) -> list[DeclaredHandler]:
        """Return the handlers."""
        return self._fetch_status(finished=False).handlers

    def counts(self, *, finished: bool, tenant_id: str | None) -> list[StatusCount]:
        """Count the tenant's events by handler and status."""
        del tenant_id  # the service takes it from the token
        return self._fetch_status(finished=finished).counts

    def logs(self) -> list[HandlerLog]:
        """Return the identity of the log that each handler has processed for the tenant."""
        return self._fetch_status(finished=False).logs

    def _fetch_status(self, *, finished: bool) -> _RegistryStatus:
        params = {"finished": "true" if finished else None}
        status: _RegistryStatus = self._get("/v1/registry", params, _RegistryStatus)
        return status

    def entries(self, selection: EntryFilter, limit: int = 100) -> list[Entry]:
        """Return at most `limit` unfinished entries that match a selection."""
        by_key: dict[tuple[str, str], Entry] = {}
        for status in _statuses(selection):
            for entry in self._read_entries(selection, status, limit):
                by_key[entry.handler, entry.event_id] = entry
        entries = sorted(
            by_key.values(), key=lambda entry: (entry.position, entry.handler, entry.event_id)
        )
        return entries[:limit]

    def _read_entries(
        self, selection: EntryFilter, status: str | None, limit: int
    ) -> Iterator[Entry]:
        after, size = selection.after, min(_PAGE_SIZE, limit)
        read = 0
        while read < limit:
            params = _params(selection) | {"status": status, "after": after, "limit": size}
            page: list[Entry] = self._get("/v1/registry/entries", params, _EntryPage).entries
            yield from page
            read += len(page)
            # Several handlers can have an entry at one position, and a page may end between
            # them: the last position is read again.
            if len(page) < size or page[-1].position - 1 <= after:
                return
            after = page[-1].position - 1

    def count(self, selection: EntryFilter) -> int:
        """Count the unfinished entries that match a selection."""
        return sum(
            self._get(
                "/v1/registry/count", _params(selection) | {"status": status}, _EntryCount
            ).count
            for status in _statuses(selection)
        )

    def retry(
        self, selection: EntryFilter, *, reason: str, expected_count: int | None
    ) -> CountResponse:
        """Make the selected events due for a retry."""
        return self._apply("/v1/dead-letters/retry", selection, reason, expected_count)

    def skip(
        self, selection: EntryFilter, *, reason: str, expected_count: int | None
    ) -> CountResponse:
        """Mark the selected events as skipped."""
        return self._apply("/v1/dead-letters/skip", selection, reason, expected_count)

    def _apply(
        self, path: str, selection: EntryFilter, reason: str, expected_count: int | None
    ) -> CountResponse:
        status = selection.status if isinstance(selection.status, str) else None
        if isinstance(selection.status, tuple) and len(selection.status) == 1:
            (status,) = selection.status
        body = _params(selection) | {
            "status": status,
            "all": selection.event_id is None,
            "expected_count": expected_count,
            "reason": reason,
        }
        return self._post(path, body)

    def set_status(self, handler: str, status: str, reason: str = "") -> None:
        """Pause or resume a handler; this needs a token for all tenants."""
        action = "pause" if status == "paused" else "resume"
        self._post(f"/v1/handlers/{action}", {"handler": handler, "reason": reason})

    def count_prunable(self, handler: str, finished_before: str, *, streamless: bool) -> int:
        """Count the entries that were finished before a time; needs a token for all tenants."""
        params = {
            "handler": handler,
            "finished_before": finished_before,
            "streamless": "true" if streamless else None,
        }
        count: int = self._get("/v1/handlers/prunable", params, CountResponse).count
        return count

    def prune(
        self,
        handler: str,
        finished_before: str,
        *,
        streamless: bool,
        reason: str,
        expected_count: int,
    ) -> CountResponse:
        """Delete the entries that were finished before a time; needs a token for all tenants."""
        body = {
            "handler": handler,
            "finished_before": finished_before,
            "streamless": streamless,
            "reason": reason,
            "expected_count": expected_count,
        }
        return self._post("/v1/handlers/prune", body)

    def reset(
        self,
        handler: str,
        *,
        reason: str,
        tenant_id: str | None = None,
        position: int | None = None,
        expected_count: int | None = None,
    ) -> list[ResetReport]:
        """Let a handler continue with a restored log; needs a token for all tenants."""
        body = {
            "handler": handler,
            "reason": reason,
            "tenant_id": tenant_id,
            "position": position,
            "expected_count": expected_count,
            "dry_run": expected_count is None,
        }
        raw = self._store.http.post("/v1/handlers/reset", body, tenant_id=self._tenant_id)
        found: _Reset = self._store.decode(raw, _Reset)
        if not found.recorded:
            warn_unrecorded(self._command)
        return found.reports

    def close(self) -> None:
        """Close the connection to the service."""
        self._log.close()

    def _get(self, path: str, params: dict[str, Any], kind: type[Any]) -> Any:
        raw = self._store.http.get(path, params, tenant_id=self._tenant_id)
        return self._store.decode(raw, kind)

    def _post(self, path: str, body: dict[str, Any]) -> CountResponse:
        raw = self._store.http.post(path, body, tenant_id=self._tenant_id)
        result: CountResponse = self._store.decode(raw, CountResponse)
        if not result.recorded:
            warn_unrecorded(self._command)
        return result
