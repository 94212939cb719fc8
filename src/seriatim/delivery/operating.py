"""The operations of operators on the registry: list, retry, skip, pause, prune."""

from __future__ import annotations

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

_EntryKey = tuple[str, str, str]  # handler, tenant id and event id


class Operating:
    """The part of the registry for operators; `Registry` documents each method."""

    def __init__(self, database: Acts) -> None:
        self._database = database

    def handlers(self) -> list[Declared]:
        """Return every declared handler."""
        return [
            Declared(
                name=name,
                declaration=msgspec.json.decode(declaration),
                status=status,
                reason=reason,
            )
            for name, declaration, status, reason in self._database.read("handlers", {})
        ]

    def logs(self) -> list[KnownLog]:
        """Return the log that each handler is bound to, by tenant."""
        rows = self._database.read("logs", {})
        return [
            KnownLog(
                handler=handler,
                tenant_id=tenant_id,
                log_id=log_id,
                epoch=epoch,
                reason=reason,
                updated_at=format_us(updated_us),
            )
            for handler, tenant_id, log_id, epoch, reason, updated_us in rows
        ]

    def counts(self, *, finished: bool = False, tenant_id: str | None = None) -> list[StatusCount]:
        """Count events by handler and status."""
        selection = Asked(tenant_id=tenant_id, status=None if finished else UNFINISHED)
        return [
            StatusCount(
                handler=handler,
                status=status,
                count=count,
                first_position=position,
                updated_at=format_us(updated_us),
            )
            for handler, status, count, position, updated_us in self._select("counts", selection)
        ]

    def entries(self, asked: Asked, limit: int = 100) -> list[Entry]:
        """Return entries in the order of the log."""
        return [entry_of(row) for row in self._select("entries", asked, limit=limit)]

    def retry(self, asked: Asked, *, restart: bool = True) -> int:
        """Make dead, unknown and failed events due at once; return their number."""
        where, values = asked.where()
        with self._database.engine.at_once() as session:
            found = session.run(self._statement("retry", where), values)
        check_found(asked, len(found), RETRIED)
        self._resume_stopped([(row[0], row[1], row[2]) for row in found], restart=restart)
        return len(found)

    def skip(self, asked: Asked, reason: str, *, restart: bool = True) -> int:
        """Mark unfinished events as skipped; return their number."""
        if not reason.strip():
            msg = "say why these events are skipped: the reason is stored with them (--reason)"
            raise InvalidArgument(msg, details={"argument": "reason"})
        where, values = asked.where()
        found: list[_EntryKey] = []
        # One handler at a time: the statement `wait` marks the streams of a single handler.
        for handler in sorted({name for (name,) in self._select("whose", asked)}):
            with self._database.engine.at_once() as session:
                skipped = session.given_then(
                    self._statement("skip", f"handler = :handler and {where}"),
                    self._database.sql["wait"],
                    {"one": "integer"},
                    [[1]],
                    TOUCHED,
                    values | {"handler": handler, "reason": reason},
                )
            found += [(handler, row[0], row[1]) for row in skipped]
            with self._database.engine.at_once() as session:
                session.run(self._database.sql["advance"], {"handler": handler})
        check_found(asked, len(found), UNFINISHED)
        self._resume_stopped(found, restart=restart)
        return len(found)

    def set_status(self, handler: str, status: str, reason: str = "") -> None:
        """Set the status of a handler."""
        values = {"handler": handler, "status": status, "reason": reason}
        if not self._database.run("set_handler", values):
            raise unknown_handler(handler)

    def prune(self, handler: str, older_s: float, *, streamless: bool = False) -> int:
        """Delete old finished entries; return their number."""
        self._database.check_handler_exists(handler)
        values = {
            "handler": handler,
            "older_us": int(older_s * 1_000_000),
            "streamless": int(streamless),
        }
        return len(self._database.run("prune", values))

    def _resume_stopped(self, resolved: list[_EntryKey], *, restart: bool) -> None:
        """Resume stopped handlers of resolved events.

        Without `restart`, resume a handler only if one of these events has stopped it.
        """
        names = {handler for handler, _, _ in resolved}
        for one in self.handlers():
            if one.status != "stopped" or one.name not in names:
                continue
            if restart or any(
                handler == one.name and one.reason.startswith(stop_reason(tenant_id, event_id))
                for handler, tenant_id, event_id in resolved
            ):
                self.set_status(one.name, "ready")

    def _statement(self, name: str, where: str) -> str:
        """Return a statement with a condition in place of `{filters}`."""
        return self._database.sql[name].replace("{filters}", where)

    def _select(self, name: str, asked: Asked, **values: Any) -> list[tuple[Any, ...]]:
        """Run a query on the entries that a filter selects.

        Operators get an error at once if the database is unreachable: no retry.
        """
        where, filter_values = asked.where()
        with self._database.engine.transaction(write=False) as session:
            return session.run(self._statement(name, where), filter_values | values)


def check_found(asked: Asked, count: int, statuses: tuple[str, ...]) -> None:
    """Raise `NotFound` if a filter names an event and nothing matched; others may match nothing."""
    if count or asked.event_id is None:
        return
    handler = "" if asked.handler is None else f" for handler {asked.handler}"
    status = asked.status or statuses
    names = status if isinstance(status, str) else ", ".join(status)
    msg = f"no event {asked.event_id!r:.80}{handler} has the status {names}"
    raise NotFound(msg, details={"event_id": asked.event_id})
