"""The registry of a service, accessed over HTTP by the commands `registry` and `dlq`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn, Protocol

import msgspec

from seriatim.client.store import HttpStore
from seriatim.core.errors import InvalidArgument, NotFound
from seriatim.delivery.admin import check_entry_found
from seriatim.delivery.entries import DeclaredHandler, Entry, EntryFilter, HandlerLog, StatusCount
from seriatim.delivery.reset import ResetReport
from seriatim.factory import Log
from seriatim.log.arguments import invalid_argument
from seriatim.wire import messages

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

    def retry(self, selection: EntryFilter) -> int:
        """Make the selected events due for a retry; return their number."""
        ...

    def skip(self, selection: EntryFilter, reason: str) -> int:
        """Mark the selected events as skipped; return their number."""
        ...

    def set_status(self, handler: str, status: str, reason: str = "") -> Any:
        """Pause or resume a handler."""
        ...

    def prune(self, handler: str, older_s: float, *, streamless: bool = False) -> int:
        """Delete entries finished more than `older_s` seconds ago; return their number."""
        ...

    def reset(
        self,
        handler: str,
        log: Log,
        *,
        reason: str,
        tenant_id: str | None = None,
        position: int | None = None,
        dry_run: bool = False,
    ) -> list[ResetReport]:
        """Let a handler continue with a log that was restored or replaced."""
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


class RemoteRegistry:
    """One tenant's part of the registry that a service keeps next to its log."""

    def __init__(self, log: Log) -> None:
        if not isinstance(log.store, HttpStore):
            raise invalid_argument("url", "must be the URL of a service")
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
        """Return dead letters, the only entries that a service lists."""
        if selection.status not in ("dead", ("dead",)):
            self._require_database("listing events other than dead letters")
        found: dict[tuple[str, str], Entry] = {}
        after = selection.after
        while len(found) < limit:
            params = {
                "handler": selection.handler,
                "event_id": selection.event_id,
                "event_type": selection.event_type,
                "stream_type": selection.stream_type,
                "stream_id": selection.stream_id,
                "after": after,
                "limit": min(_PAGE_SIZE, limit),
            }
            page: list[Entry] = self._get("/v1/dead-letters", params, _EntryPage).entries
            found |= {(entry.handler, entry.event_id): entry for entry in page}
            # Several handlers can have a dead letter at one position, and a page may end between
            # them: the last position is read again.
            if len(page) < min(_PAGE_SIZE, limit) or page[-1].position - 1 <= after:
                break
            after = page[-1].position - 1
        return list(found.values())[:limit]

    def retry(self, selection: EntryFilter) -> int:
        """Make the selected events due for a retry; return their number."""
        return self._apply("/v1/dead-letters/retry", selection, {})

    def skip(self, selection: EntryFilter, reason: str) -> int:
        """Mark the selected events as skipped for a reason; return their number."""
        return self._apply("/v1/dead-letters/skip", selection, {"reason": reason})

    def _apply(self, path: str, selection: EntryFilter, fields: dict[str, Any]) -> int:
        if selection.status == ("dead",):
            total = self._apply_to_dead_letters(path, selection, fields)
            check_entry_found(selection, total, ("dead",))
            return total
        if selection.stream_type is not None:
            self._require_database("filtering by --stream")
        body = {
            "handler": selection.handler,
            "event_id": selection.event_id,
            "event_type": selection.event_type,
            "all": selection.event_id is None,
            **fields,
        }
        return self._post(path, body)

    def _apply_to_dead_letters(
        self, path: str, selection: EntryFilter, fields: dict[str, Any]
    ) -> int:
        """Apply the operation to each dead letter by its id.

        Without an id the route would apply it to events in any unfinished state.
        """
        total = 0
        while dead := self.entries(selection, _PAGE_SIZE):
            done = 0
            for entry in dead:
                with suppress(NotFound):  # another operator was faster
                    body = {"handler": entry.handler, "event_id": entry.event_id, **fields}
                    done += self._post(path, body)
            total += done
            if not done or len(dead) < _PAGE_SIZE:
                break
        return total

    def set_status(self, handler: str, status: str, reason: str = "") -> NoReturn:
        """Raise `InvalidArgument`: handlers are shared by all tenants."""
        del handler, status, reason
        self._require_database("pausing and resuming handlers")

    def prune(self, handler: str, older_s: float, *, streamless: bool = False) -> NoReturn:
        """Raise `InvalidArgument`: handlers are shared by all tenants."""
        del handler, older_s, streamless
        self._require_database("pruning")

    def reset(
        self,
        handler: str,
        log: Log,
        *,
        reason: str,
        tenant_id: str | None = None,
        position: int | None = None,
        dry_run: bool = False,
    ) -> NoReturn:
        """Raise `InvalidArgument`: handlers are shared by all tenants."""
        del handler, log, reason, tenant_id, position, dry_run
        self._require_database("resetting a handler")

    def close(self) -> None:
        """Close the connection to the service."""
        self._log.close()

    def _get(self, path: str, params: dict[str, Any], kind: type[Any]) -> Any:
        raw = self._store.http.get(path, params, tenant_id=self._tenant_id)
        return self._store.decode(raw, kind)

    def _post(self, path: str, body: dict[str, Any]) -> int:
        raw = self._store.http.post(path, body, tenant_id=self._tenant_id)
        return int(self._store.decode(raw, messages.CountResponse).count)

    def _require_database(self, operation: str) -> NoReturn:
        msg = (
            f"{operation} needs the database of the registry, not a service: set --registry, or "
            "--url to the database"
        )
        raise InvalidArgument(msg, details={"argument": "url"})
