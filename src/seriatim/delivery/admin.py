"""The operations of operators on the registry: list, retry, skip, pause, prune."""

from __future__ import annotations

from typing import Any

import msgspec

from seriatim.core.errors import InvalidArgument, NotFound
from seriatim.core.operation import ActionName, OperatorAction
from seriatim.core.tenants import ALL_TENANTS
from seriatim.core.times import format_us, parse_us
from seriatim.delivery.entries import (
    RETRYABLE_STATUSES,
    UNFINISHED_STATUSES,
    DeclaredHandler,
    Entry,
    EntryFilter,
    HandlerCursor,
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
from seriatim.delivery.reset import LogCursor, ResetReport, reset_handler
from seriatim.log.base import BaseLog
from seriatim.log.operator_journal import check_reason, local_operator, record_action

_EntryKey = tuple[str, str, str]  # handler, tenant id and event id


class RegistryAdmin:
    """The part of the registry for operators; `Registry` documents each method.

    Args:
        database: The database.
        journal: The log in which actions are recorded; None if the caller records them itself, as
            the service and the commands do, or has no log.
    """

    def __init__(self, database: RegistryDatabase, journal: BaseLog | None = None) -> None:
        self._database = database
        self._journal = journal

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

    def cursors(self) -> list[HandlerCursor]:
        """Return the cursors of each handler's workers, by source."""
        return [_decode_cursor(*row) for row in self._database.read("list_cursors", {})]

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

    def event_entries(self, tenant_id: str, event_id: str, limit: int = 100) -> list[Entry]:
        """Return the entries of one event, also finished ones, by handler."""
        values = {"tenant_id": tenant_id, "event_id": event_id, "limit": limit}
        return [decode_entry(row) for row in self._database.read("list_event_entries", values)]

    def retry(self, entry_filter: EntryFilter, *, restart: bool = True, reason: str = "") -> int:
        """Make dead, unknown and failed events due at once; return their number."""
        self._check_reason(reason)
        where, values = entry_filter.to_sql()
        with self._database.engine.autocommit() as session:
            rows = session.run(self._fill_in_filters("retry_entries", where), values)
        check_entry_found(entry_filter, len(rows), RETRYABLE_STATUSES)
        self._resume_stopped([(row[0], row[1], row[2]) for row in rows], restart=restart)
        self._record_events("events_retried", entry_filter, len(rows), reason)
        return len(rows)

    def skip(self, entry_filter: EntryFilter, reason: str, *, restart: bool = True) -> int:
        """Mark unfinished events as skipped; return their number."""
        if not reason.strip():
            msg = "say why these events are skipped: the reason is stored with them (--reason)"
            raise InvalidArgument(msg, details={"argument": "reason"})
        self._check_reason(reason)
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
        self._record_events("events_skipped", entry_filter, len(skipped), reason)
        return len(skipped)

    def set_status(self, handler: str, status: str, reason: str = "") -> None:
        """Set the status of a handler."""
        self._check_reason(reason)
        self._set_status(handler, status, reason)
        action: ActionName = "handler_resumed" if status == "ready" else "handler_paused"
        self._record(action, {"handler": handler}, 1, reason)

    def _set_status(self, handler: str, status: str, reason: str = "") -> None:
        values = {"handler": handler, "status": status, "reason": reason}
        if not self._database.run("update_handler_status", values):
            raise unknown_handler_error(handler)

    def prune(
        self,
        handler: str,
        older_s: float,
        *,
        streamless: bool = False,
        finished_before: str | None = None,
        reason: str = "",
    ) -> int:
        """Delete old finished entries; return their number."""
        self._check_reason(reason)
        values = self._prunable(handler, older_s, streamless, finished_before)
        condition = self._database.sql["match_prunable"]

        def delete() -> int:
            with self._database.engine.autocommit() as session:
                return len(
                    session.run(self._fill_in_filters("delete_finished_entries", condition), values)
                )

        count = self._database.outage.run(delete)
        target: dict[str, Any] = {"handler": handler, "streamless": streamless}
        if finished_before is None:
            target["older_s"] = older_s
        else:
            target["finished_before"] = finished_before
        self._record("handler_pruned", target, count, reason)
        return count

    def count_prunable(
        self,
        handler: str,
        older_s: float,
        *,
        streamless: bool = False,
        finished_before: str | None = None,
    ) -> int:
        """Count old finished entries."""
        values = self._prunable(handler, older_s, streamless, finished_before)
        condition = self._database.sql["match_prunable"]
        with self._database.engine.transaction(write=False) as session:
            [(count,)] = session.run(self._fill_in_filters("count_prunable", condition), values)
            return int(count)

    def _prunable(
        self, handler: str, older_s: float, streamless: bool, finished_before: str | None
    ) -> dict[str, Any]:
        """Return the parameters that select old finished entries."""
        before_us = None if finished_before is None else parse_us(finished_before)
        if finished_before is not None and before_us is None:
            msg = "finished_before must be a time such as 2026-05-01T12:30:00Z"
            raise InvalidArgument(msg, details={"argument": "finished_before"})
        self._database.check_handler_exists(handler)
        return {
            "handler": handler,
            "older_us": int(older_s * 1_000_000),
            "before_us": before_us,
            "streamless": int(streamless),
        }

    def reset(
        self,
        handler: str,
        log: BaseLog,
        *,
        reason: str,
        tenant_id: str | None = None,
        position: int | None = None,
        dry_run: bool = False,
    ) -> list[ResetReport]:
        """Let a handler continue with a log that was restored or replaced."""
        self._check_reason(reason)
        reports = reset_handler(
            self._database,
            handler,
            log,
            reason=reason,
            tenant_id=tenant_id,
            position=position,
            dry_run=dry_run,
        )
        if not dry_run:
            target: dict[str, Any] = {"handler": handler, "position": position}
            self._record("handler_reset", target, len(reports), reason, tenant_id)
        return reports

    def _check_reason(self, reason: str) -> None:
        """Check a reason before the action, so that the journal does not refuse it afterwards."""
        if self._journal is not None:
            check_reason(reason)

    def _record_events(
        self, action: ActionName, entry_filter: EntryFilter, count: int, reason: str
    ) -> None:
        self._record(action, entry_filter.describe(), count, reason, entry_filter.tenant_id)

    def _record(
        self,
        action: ActionName,
        target: dict[str, Any],
        count: int,
        reason: str,
        tenant_id: str | None = None,
    ) -> None:
        """Record an action that affected something; without a tenant it affected all of them."""
        if self._journal is None or not count:
            return
        record_action(
            self._journal,
            OperatorAction(
                action=action,
                operator=local_operator(),
                tenant_id=tenant_id or ALL_TENANTS,
                target={name: value for name, value in target.items() if value is not None},
                count=count,
                reason=reason,
            ),
        )

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
                self._set_status(declared.name, "ready")

    def _fill_in_filters(self, name: str, where: str) -> str:
        """Return a statement with a condition in place of `{filters}`."""
        return self._database.sql[name].replace("{filters}", where)

    def _select(
        self, name: str, entry_filter: EntryFilter, **values: object
    ) -> list[tuple[Any, ...]]:
        """Run a query on the entries that a filter selects.

        Operators get an error at once if the database is unreachable: no retry.
        """
        where, filter_values = entry_filter.to_sql()
        with self._database.engine.transaction(write=False) as session:
            return session.run(self._fill_in_filters(name, where), filter_values | values)


def _decode_cursor(handler: str, source: str, cursor: str, updated_us: int) -> HandlerCursor:
    """Decode a stored cursor; those of topics are offsets by partition."""
    # The names of `seriatim.pipeline.work.feeds`; only the tenant may contain a colon.
    is_log = source.startswith("log:")
    tenant_id = source.split(":", 2 if is_log else 3)[-1]
    handler_cursor = HandlerCursor(
        handler=handler, source=source, tenant_id=tenant_id, updated_at=format_us(updated_us)
    )
    if not is_log:
        return handler_cursor
    stored = msgspec.json.decode(cursor, type=LogCursor)
    return msgspec.structs.replace(
        handler_cursor, log_id=stored.log_id, epoch=stored.epoch, position=stored.position
    )


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
