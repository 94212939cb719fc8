"""The registry behind a service: what its routes offer to the commands `registry` and `dlq`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NoReturn, Protocol

import msgspec

from seriatim.client.store import HttpStore
from seriatim.core.errors import InvalidArgument, NotFound
from seriatim.delivery.entries import Asked, Declared, Entry, KnownLog, StatusCount
from seriatim.delivery.operating import check_found
from seriatim.delivery.reset import Reset
from seriatim.log.arguments import bad
from seriatim.opening import Log
from seriatim.wire import shapes

_PAGE = 1000


class KnownRegistry(Protocol):
    """What the commands need of a registry, in a database or behind a service."""

    def handlers(self) -> list[Declared]:
        """Return the handlers."""
        ...

    def counts(self, *, finished: bool, tenant_id: str | None) -> list[StatusCount]:
        """Count events by handler and status."""
        ...

    def logs(self) -> list[KnownLog]:
        """Return the log that each handler has handled, tenant by tenant."""
        ...

    def entries(self, asked: Asked, limit: int = 100) -> list[Entry]:
        """Return the entries that are asked for."""
        ...

    def retry(self, asked: Asked) -> int:
        """Let events be tried again."""
        ...

    def skip(self, asked: Asked, reason: str) -> int:
        """Give events up, for a reason."""
        ...

    def set_status(self, handler: str, status: str, reason: str = "") -> Any:
        """Pause or resume a handler."""
        ...

    def prune(self, handler: str, older_s: float, *, streamless: bool = False) -> int:
        """Forget what was done long ago."""
        ...

    def reset(  # noqa: PLR0913 - whom, to what, and why
        self,
        handler: str,
        log: Log,
        *,
        reason: str,
        tenant_id: str | None = None,
        position: int | None = None,
        dry_run: bool = False,
    ) -> list[Reset]:
        """Let a handler go on with a log that was restored or replaced."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class _Known(msgspec.Struct, frozen=True):
    handlers: list[Declared]
    counts: list[StatusCount]
    logs: list[KnownLog]


class _Entries(msgspec.Struct, frozen=True):
    entries: list[Entry]


class RemoteRegistry:
    """A tenant's part of the registry that a service has beside its log."""

    def __init__(self, log: Log) -> None:
        if not isinstance(log.store, HttpStore):
            raise bad("url", "must be the address of a service")
        self._log = log
        self._store = log.store
        self._tenant_id = log.tenant_id

    def handlers(self) -> list[Declared]:
        """Return the handlers."""
        return self._known(finished=False).handlers

    def counts(self, *, finished: bool, tenant_id: str | None) -> list[StatusCount]:
        """Count the tenant's events by handler and status."""
        del tenant_id  # the service knows it by the token
        return self._known(finished=finished).counts

    def logs(self) -> list[KnownLog]:
        """Return the log whose events of the tenant each handler has handled."""
        return self._known(finished=False).logs

    def _known(self, *, finished: bool) -> _Known:
        params = {"finished": "true" if finished else None}
        known: _Known = self._get("/v1/registry", params, _Known)
        return known

    def entries(self, asked: Asked, limit: int = 100) -> list[Entry]:
        """Return dead letters, which are what a service lists."""
        if asked.status not in ("dead", ("dead",)):
            self._only_beside("listing other events than dead letters")
        found: dict[tuple[str, str], Entry] = {}
        after = asked.after
        while len(found) < limit:
            params = {
                "handler": asked.handler,
                "event_id": asked.event_id,
                "event_type": asked.event_type,
                "stream_type": asked.stream_type,
                "stream_id": asked.stream_id,
                "after": after,
                "limit": min(_PAGE, limit),
            }
            page: list[Entry] = self._get("/v1/dead-letters", params, _Entries).entries
            found |= {(one.handler, one.event_id): one for one in page}
            # Several handlers may have given one event up, so the last position is read again.
            if len(page) < min(_PAGE, limit) or page[-1].position - 1 <= after:
                break
            after = page[-1].position - 1
        return list(found.values())[:limit]

    def retry(self, asked: Asked) -> int:
        """Let events be tried again; of dead letters those alone, one by one."""
        return self._act("/v1/dead-letters/retry", asked, {})

    def skip(self, asked: Asked, reason: str) -> int:
        """Give events up for a reason; of dead letters those alone, one by one."""
        return self._act("/v1/dead-letters/skip", asked, {"reason": reason})

    def _act(self, path: str, asked: Asked, more: dict[str, Any]) -> int:
        if asked.status == ("dead",):
            total = self._act_on_letters(path, asked, more)
            check_found(asked, total, ("dead",))
            return total
        if asked.stream_type is not None:
            self._only_beside("narrowing by --stream")
        body = {
            "handler": asked.handler,
            "event_id": asked.event_id,
            "event_type": asked.event_type,
            "all": asked.event_id is None,
            **more,
        }
        return self._post(path, body)

    def _act_on_letters(self, path: str, asked: Asked, more: dict[str, Any]) -> int:
        """Act on each dead letter; the route alone would take an event in any open state."""
        total = 0
        while dead := self.entries(asked, _PAGE):
            done = 0
            for one in dead:
                with suppress(NotFound):  # somebody else has just dealt with it
                    body = {"handler": one.handler, "event_id": one.event_id, **more}
                    done += self._post(path, body)
            total += done
            if not done or len(dead) < _PAGE:
                break
        return total

    def set_status(self, handler: str, status: str, reason: str = "") -> NoReturn:
        """Refuse: handlers are of all tenants."""
        del handler, status, reason
        self._only_beside("pausing and resuming handlers")

    def prune(self, handler: str, older_s: float, *, streamless: bool = False) -> NoReturn:
        """Refuse: handlers are of all tenants."""
        del handler, older_s, streamless
        self._only_beside("pruning")

    def reset(  # noqa: PLR0913 - whom, to what, and why
        self,
        handler: str,
        log: Log,
        *,
        reason: str,
        tenant_id: str | None = None,
        position: int | None = None,
        dry_run: bool = False,
    ) -> NoReturn:
        """Refuse: handlers are of all tenants."""
        del handler, log, reason, tenant_id, position, dry_run
        self._only_beside("resetting a handler")

    def close(self) -> None:
        """Let go of the service."""
        self._log.close()

    def _get(self, path: str, params: dict[str, Any], kind: type[Any]) -> Any:
        raw = self._store.http.get(path, params, tenant_id=self._tenant_id)
        return self._store.decoded(raw, kind)

    def _post(self, path: str, body: dict[str, Any]) -> int:
        raw = self._store.http.post(path, body, tenant_id=self._tenant_id)
        return int(self._store.decoded(raw, shapes.Count).count)

    def _only_beside(self, what: str) -> NoReturn:
        msg = f"{what} needs the registry's own database, not a service: give --registry or --url"
        raise InvalidArgument(msg, details={"argument": "url"})
