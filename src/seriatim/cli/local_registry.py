"""The registry in a database, with its actions recorded in the operators' journal."""

from __future__ import annotations

from seriatim.cli.command_session import CommandSession
from seriatim.cli.operations import record_command
from seriatim.core.operation import ActionName
from seriatim.delivery.entries import DeclaredHandler, Entry, EntryFilter, HandlerLog, StatusCount
from seriatim.delivery.registry import Registry
from seriatim.delivery.reset import ResetReport
from seriatim.factory import Log
from seriatim.log.operator_journal import check_expected_count, check_reason
from seriatim.wire.messages import CountResponse


class LocalRegistry:
    """The registry of a log as commands use it: each action is recorded after it succeeded."""

    def __init__(self, registry: Registry, command: CommandSession) -> None:
        self._registry = registry
        self._command = command

    def handlers(self) -> list[DeclaredHandler]:
        """Return the handlers."""
        return self._registry.handlers()

    def counts(self, *, finished: bool, tenant_id: str | None) -> list[StatusCount]:
        """Count events by handler and status."""
        return self._registry.counts(finished=finished, tenant_id=tenant_id)

    def logs(self) -> list[HandlerLog]:
        """Return the identity of the log that each handler has processed, by tenant."""
        return self._registry.logs()

    def entries(self, selection: EntryFilter, limit: int = 100) -> list[Entry]:
        """Return at most `limit` entries that match a selection, in the order of the log."""
        return self._registry.entries(selection, limit)

    def count(self, selection: EntryFilter) -> int:
        """Count the entries that match a selection."""
        return sum(entry_count.count for entry_count in self._registry.count_entries(selection))

    def retry(
        self, selection: EntryFilter, *, reason: str, expected_count: int | None
    ) -> CountResponse:
        """Make the selected events due for a retry."""
        self._check(selection, reason, expected_count)
        count = self._registry.retry(selection)
        return self._record_events("events_retried", selection, count, reason)

    def skip(
        self, selection: EntryFilter, *, reason: str, expected_count: int | None
    ) -> CountResponse:
        """Mark the selected events as skipped."""
        self._check(selection, reason, expected_count)
        count = self._registry.skip(selection, reason)
        return self._record_events("events_skipped", selection, count, reason)

    def _check(self, selection: EntryFilter, reason: str, expected_count: int | None) -> None:
        check_reason(reason, required=selection.event_id is None)
        if expected_count is not None:
            check_expected_count(expected_count, self.count(selection))

    def _record_events(
        self, action: ActionName, selection: EntryFilter, count: int, reason: str
    ) -> CountResponse:
        recorded = not count or record_command(
            self._command,
            action,
            selection.describe(),
            count=count,
            reason=reason,
            tenant_id=selection.tenant_id,
        )
        return CountResponse(count, recorded)

    def set_status(self, handler: str, status: str, reason: str = "") -> None:
        """Pause or resume a handler."""
        check_reason(reason)
        self._registry.set_status(handler, status, reason if status == "paused" else "")
        action: ActionName = "handler_paused" if status == "paused" else "handler_resumed"
        record_command(self._command, action, {"handler": handler}, reason=reason)

    def prune(
        self, handler: str, older_s: float, *, streamless: bool = False, reason: str = ""
    ) -> CountResponse:
        """Delete entries finished more than `older_s` seconds ago."""
        check_reason(reason)
        count = self._registry.prune(handler, older_s, streamless=streamless)
        target = {"handler": handler, "older_s": older_s, "streamless": streamless}
        recorded = not count or record_command(
            self._command, "handler_pruned", target, count=count, reason=reason
        )
        return CountResponse(count, recorded)

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
        check_reason(reason)
        reports = self._registry.reset(
            handler, log, reason=reason, tenant_id=tenant_id, position=position, dry_run=dry_run
        )
        if reports and not dry_run:
            target = {"handler": handler, "position": position}
            record_command(
                self._command,
                "handler_reset",
                target,
                count=len(reports),
                reason=reason,
                tenant_id=tenant_id,
            )
        return reports

    def close(self) -> None:
        """Close the connection."""
        self._registry.close()
