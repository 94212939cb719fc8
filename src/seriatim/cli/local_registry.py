"""The registry in a database, with its actions recorded in the operators' journal."""

from __future__ import annotations

from functools import partial

from seriatim.cli.command_session import CommandSession
from seriatim.cli.operations import record_command
from seriatim.core.operation import ActionName
from seriatim.delivery.entries import DeclaredHandler, Entry, EntryFilter, HandlerLog, StatusCount
from seriatim.delivery.registry import Registry
from seriatim.delivery.reset import ResetReport, count_forgotten
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

    def count_prunable(self, handler: str, finished_before: str, *, streamless: bool) -> int:
        """Count the entries that were finished before a time."""
        return self._registry.count_prunable(
            handler, streamless=streamless, finished_before=finished_before
        )

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
        actual = self.count_prunable(handler, finished_before, streamless=streamless)
        check_expected_count(expected_count, actual)
        count = self._registry.prune(
            handler, streamless=streamless, finished_before=finished_before
        )
        target = {
            "handler": handler,
            "finished_before": finished_before,
            "streamless": streamless,
        }
        recorded = not count or record_command(
            self._command, "handler_pruned", target, count=count, reason=reason
        )
        return CountResponse(count, recorded)

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
        check_reason(reason)
        with self._command.open() as log:
            reset = partial(
                self._registry.reset,
                handler,
                log,
                reason=reason,
                tenant_id=tenant_id,
                position=position,
            )
            reports = reset(dry_run=True)
            if expected_count is None:
                return reports
            check_expected_count(expected_count, count_forgotten(reports))
            reports = reset()
        if reports:
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
