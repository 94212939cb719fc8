"""The operations of operators on the registry: list, retry, skip, pause, prune."""

from __future__ import annotations

from typing import Any

import msgspec

from seriatim.core.errors import InvalidArgument, NotFound
from seriatim.core.times import format_us
from seriatim.delivery.entries import (
    RETRYABLE_STATUSES,
    UNFINISHED_STATUSES,
    DeclaredHandler,
    Entry,
    EntryFilter,
    HandlerLog,
    StatusCount,
    decode_entry,
    format_stop_reason,
)
from seriatim.delivery.registry_database import (
    RETURNED_COLUMNS,
    RegistryDatabase,
    unknown_handler_error,
)

_EntryKey = tuple[str, str, str]  # handler, tenant id and event id


class RegistryAdmin:
    """The part of the registry for operators; `Registry` documents each method."""

    def __init__(self, database: RegistryDatabase) -> None:
        self._database = database

    def handlers(self) -> list[DeclaredHandler]:
        """Return every declared handler."""
        return [
            DeclaredHandler(
                name=name,
                declaration=msgspec.json.decode(declaration),
                status=status,
                reason=reason,
            )
            for name, declaration, status, reason in self._database.read("list_handlers", {})
        ]

    def logs(self) -> list[HandlerLog]:
        """Return the log that each handler is bound to, by tenant."""
        rows = self._database.read("list_logs", {})
        return [
            HandlerLog(
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
        status = None if finished else UNFINISHED_STATUSES
        return self.count_entries(EntryFilter(tenant_id=tenant_id, status=status))

    def count_entries(self, entry_filter: EntryFilter) -> list[StatusCount]:
        """Count the entries that a filter selects, by handler and status."""
        return [
            StatusCount(
                handler=handler,
                status=status,
                count=count,
                first_position=position,
                updated_at=format_us(updated_us),
            )
            for handler, status, count, position, updated_us in self._select(
                "count_entries", entry_filter
            )
        ]

    def entries(self, entry_filter: EntryFilter, limit: int = 100) -> list[Entry]:
        """Return entries in the order of the log."""
        return [
            decode_entry(row) for row in self._select("list_entries", entry_filter, limit=limit)
        ]

    def retry(self, entry_filter: EntryFilter, *, restart: bool = True) -> int:
        """Make dead, unknown and failed events due at once; return their number."""
        where, values = entry_filter.to_sql()
        with self._database.engine.autocommit() as session:
            rows = session.run(self._fill_in_filters("retry_entries", where), values)
        check_entry_found(entry_filter, len(rows), RETRYABLE_STATUSES)
        self._resume_stopped([(row[0], row[1], row[2]) for row in rows], restart=restart)
        return len(rows)

    def skip(self, entry_filter: EntryFilter, reason: str, *, restart: bool = True) -> int:
        """Mark unfinished events as skipped; return their number."""
        if not reason.strip():
            msg = "say why these events are skipped: the reason is stored with them (--reason)"
            raise InvalidArgument(msg, details={"argument": "reason"})
        where, values = entry_filter.to_sql()
        skipped: list[_EntryKey] = []
        # One handler at a time: `mark_waiting_streams` marks the streams of a single handler.
        for handler in sorted(
            {name for (name,) in self._select("list_handlers_of_entries", entry_filter)}
        ):
            with self._database.engine.autocommit() as session:
                rows = session.run_with_rows_then(
                    self._fill_in_filters("skip_entries", f"handler = :handler and {where}"),
                    self._database.sql["mark_waiting_streams"],
                    {"one": "integer"},
                    [[1]],
                    RETURNED_COLUMNS,
                    values | {"handler": handler, "reason": reason},
                )
            skipped += [(handler, row[0], row[1]) for row in rows]
            # On its own, as it must see the rows that the statements above have changed. If it is
            # lost, the consumers' next call of `due` advances the streams.
            with self._database.engine.autocommit() as session:
                session.run(self._database.sql["advance_waiting_streams"], {"handler": handler})
        check_entry_found(entry_filter, len(skipped), UNFINISHED_STATUSES)
        self._resume_stopped(skipped, restart=restart)
        return len(skipped)

    def set_status(self, handler: str, status: str, reason: str = "") -> None:
        """Set the status of a handler."""
        values = {"handler": handler, "status": status, "reason": reason}
        if not self._database.run("update_handler_status", values):
            raise unknown_handler_error(handler)

    def prune(self, handler: str, older_s: float, *, streamless: bool = False) -> int:
        """Delete old finished entries; return their number."""
        self._database.check_handler_exists(handler)
        values = {
            "handler": handler,
            "older_us": int(older_s * 1_000_000),
            "streamless": int(streamless),
        }
        return len(self._database.run("delete_finished_entries", values))

    def _resume_stopped(self, resolved: list[_EntryKey], *, restart: bool) -> None:
        """Resume stopped handlers of resolved events.

        Without `restart`, resume a handler only if one of these events has stopped it.
        """
        names = {handler for handler, _, _ in resolved}
        for declared in self.handlers():
            if declared.status != "stopped" or declared.name not in names:
                continue
            if restart or any(
                handler == declared.name
                and declared.reason.startswith(format_stop_reason(tenant_id, event_id))
                for handler, tenant_id, event_id in resolved
            ):
                self.set_status(declared.name, "ready")

    def _fill_in_filters(self, name: str, where: str) -> str:
        """Return a statement with a condition in place of `{filters}`."""
        return self._database.sql[name].replace("{filters}", where)

    def _select(self, name: str, entry_filter: EntryFilter, **values: Any) -> list[tuple[Any, ...]]:
        """Run a query on the entries that a filter selects.

        Operators get an error at once if the database is unreachable: no retry.
        """
        where, filter_values = entry_filter.to_sql()
        with self._database.engine.transaction(write=False) as session:
            return session.run(self._fill_in_filters(name, where), filter_values | values)


def check_entry_found(entry_filter: EntryFilter, count: int, statuses: tuple[str, ...]) -> None:
    """Raise `NotFound` if a filter names an event and nothing matched; others may match nothing."""
    if count or entry_filter.event_id is None:
        return
    handler = "" if entry_filter.handler is None else f" for handler {entry_filter.handler}"
    status = entry_filter.status or statuses
    names = status if isinstance(status, str) else ", ".join(status)
    msg = (
        f"no event {entry_filter.event_id!r:.80}{handler} has the status {names}: see seriatim "
        "registry failed, unknown and waiting"
    )
    raise NotFound(msg, details={"event_id": entry_filter.event_id})
