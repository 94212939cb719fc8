"""What an operator does with the registry: look, retry, skip, pause, prune."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from seriatim.core.errors import InvalidArgument, NotFound
from seriatim.core.times import format_us
from seriatim.delivery.acts import TOUCHED, Acts, unknown_handler
from seriatim.delivery.entries import (
    RETRIED,
    UNFINISHED,
    Asked,
    Declared,
    Entry,
    KnownLog,
    StatusCount,
    entry_of,
    stop_reason,
)

_Dealt = tuple[str, str, str]  # a handler, a tenant and an event's id


class Operating(Acts):
    """The part of the registry that people use."""

    def handlers(self) -> list[Declared]:
        """Return every handler that was ever declared here."""
        return [
            Declared(
                name=name,
                declaration=msgspec.json.decode(declaration),
                status=status,
                reason=reason,
            )
            for name, declaration, status, reason in self._look("handlers", {})
        ]

    def logs(self) -> list[KnownLog]:
        """Return the log that each handler keeps to, tenant by tenant."""
        return [
            KnownLog(
                handler=handler,
                tenant_id=tenant_id,
                log_id=log_id,
                epoch=epoch,
                reason=reason,
                updated_at=format_us(updated_us),
            )
            for handler, tenant_id, log_id, epoch, reason, updated_us in self._look("logs", {})
        ]

    def counts(self, *, finished: bool = False, tenant_id: str | None = None) -> list[StatusCount]:
        """Count events by handler and status; the finished ones take a while to count."""
        where, values = Asked(tenant_id=tenant_id, status=None if finished else UNFINISHED).where()
        with self.engine.transaction(write=False) as session:
            found = session.run(self.sql["counts"].replace("{filters}", where), values)
        return [
            StatusCount(
                handler=handler,
                status=status,
                count=count,
                first_position=position,
                updated_at=format_us(updated_us),
            )
            for handler, status, count, position, updated_us in found
        ]

    def entries(self, asked: Asked, limit: int = 100) -> list[Entry]:
        """Return entries in the order of the log."""
        where, values = asked.where()
        with self.engine.transaction(write=False) as session:
            found = session.run(
                self.sql["entries"].replace("{filters}", where), values | {"limit": limit}
            )
        return [entry_of(row) for row in found]

    def retry(self, asked: Asked, *, restart: bool = True) -> int:
        """Let dead, unknown and failed events be tried again at once; tell how many.

        Their handlers go on if they had stopped; without `restart` only if at one of these. Raise
        `NotFound` if an event is named and there is none to retry.
        """
        where, values = asked.where()
        with self.engine.at_once() as session:
            found = session.run(self.sql["retry"].replace("{filters}", where), values)
        check_found(asked, len(found), RETRIED)
        self._let_run([(row[0], row[1], row[2]) for row in found], restart=restart)
        return len(found)

    def skip(self, asked: Asked, reason: str, *, restart: bool = True) -> int:
        """Count unfinished events as done, for a reason that is kept; tell how many.

        Their handlers go on as after a retry. Raise `NotFound` if an event is named and there is
        none to skip.
        """
        if not reason.strip():
            msg = "say why these events are skipped: the reason is kept with them"
            raise InvalidArgument(msg, details={"argument": "reason"})
        where, values = asked.where()
        found: list[_Dealt] = []
        # One handler at a time: what follows its streams is told by its name.
        with self.engine.transaction(write=False) as session:
            named = session.run(self.sql["whose"].replace("{filters}", where), values)
        names = {name for (name,) in named}
        for handler in sorted(names):
            with self.engine.at_once() as session:
                skipped = session.given_then(
                    self.sql["skip"].replace("{filters}", f"handler = :handler and {where}"),
                    self.sql["wait"],
                    {"one": "integer"},
                    [[1]],
                    TOUCHED,
                    values | {"handler": handler, "reason": reason},
                )
            found += [(handler, row[0], row[1]) for row in skipped]
            with self.engine.at_once() as session:
                session.run(self.sql["advance"], {"handler": handler})
        check_found(asked, len(found), UNFINISHED)
        self._let_run(found, restart=restart)
        return len(found)

    def _let_run(self, dealt: list[_Dealt], *, restart: bool) -> None:
        """Let handlers go on that had stopped at what was dealt with now, or at anything."""
        names = {handler for handler, _, _ in dealt}
        for one in self.handlers():
            if one.status != "stopped" or one.name not in names:
                continue
            if restart or any(
                handler == one.name and one.reason.startswith(stop_reason(tenant_id, event_id))
                for handler, tenant_id, event_id in dealt
            ):
                self.set_status(one.name, "ready")

    def set_status(self, handler: str, status: str, reason: str = "") -> None:
        """Stop a handler, pause it, or let it run."""
        values = {"handler": handler, "status": status, "reason": reason}
        if not self._run("set_handler", values):
            raise unknown_handler(handler)

    def prune(self, handler: str, older_s: float, *, streamless: bool = False) -> int:
        """Forget events that were done so long ago; tell how many.

        A stream's number still tells its old events; without a stream nothing would, so those
        are forgotten only when told so. Raise `NotFound` for an unknown handler.
        """
        self.check_known(handler)
        values: Mapping[str, Any] = {
            "handler": handler,
            "older_us": int(older_s * 1_000_000),
            "streamless": int(streamless),
        }
        return len(self._run("prune", values))


def check_found(asked: Asked, count: int, statuses: tuple[str, ...]) -> None:
    """Raise `NotFound` for a named event that is not there; a filter may match nothing."""
    if count or asked.event_id is None:
        return
    whose = "" if asked.handler is None else f" for handler {asked.handler}"
    wanted = asked.status or statuses
    named = wanted if isinstance(wanted, str) else ", ".join(wanted)
    msg = f"there is no event {asked.event_id!r:.80}{whose} that is {named}"
    raise NotFound(msg, details={"event_id": asked.event_id})
