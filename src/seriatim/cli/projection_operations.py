"""The actions of operators on projections, in a database or through a service."""

from __future__ import annotations

from typing import Any, Protocol

from seriatim.cli.command_session import CommandSession
from seriatim.cli.operations import record_command, warn_unrecorded
from seriatim.core.operation import ActionName
from seriatim.log.operator_journal import check_expected_count, check_reason
from seriatim.log.projections import Projections
from seriatim.store.readmodel import operations
from seriatim.store.readmodel.model import ReadModel


class ProjectionOperations(Protocol):
    """The actions that commands perform; each returns whether it was recorded in the journal."""

    def pause(self, name: str, reason: str) -> bool:
        """Pause a projection until it is resumed."""
        ...

    def resume(self, name: str, reason: str) -> bool:
        """Resume a paused projection."""
        ...

    def count_retryable(self, name: str) -> int:
        """Count the failures that a retry of all affects."""
        ...

    def retry(
        self, name: str, position: int | None, reason: str, expected_count: int | None
    ) -> tuple[int, bool]:
        """Retry failures; return their number too."""
        ...

    def skip(self, name: str, position: int, reason: str) -> bool:
        """Skip the event at a position."""
        ...


class LocalOperations:
    """Projections of a read model in a database; commands record their actions in the log."""

    def __init__(self, model: ReadModel, tenant_id: str, command: CommandSession) -> None:
        self._model = model
        self._tenant_id = tenant_id
        self._command = command

    def pause(self, name: str, reason: str) -> bool:
        """Pause a projection until it is resumed."""
        check_reason(reason)
        operations.pause(self._model, name)
        return self._record("projection_paused", {"projection": name}, reason)

    def resume(self, name: str, reason: str) -> bool:
        """Resume a paused projection."""
        check_reason(reason)
        operations.resume(self._model, name)
        return self._record("projection_resumed", {"projection": name}, reason)

    def count_retryable(self, name: str) -> int:
        """Count the failures that a retry of all affects."""
        return len(operations.find_retryable(self._model, name))

    def retry(
        self, name: str, position: int | None, reason: str, expected_count: int | None
    ) -> tuple[int, bool]:
        """Retry failures; return their number too."""
        if expected_count is not None:
            check_expected_count(expected_count, self.count_retryable(name))
        count = operations.retry(self._model, name, position)
        target = {"projection": name, "position": position}
        action: ActionName = "projection_failures_retried"
        return count, not count or self._record(action, target, reason, count)

    def skip(self, name: str, position: int, reason: str) -> bool:
        """Skip the event at a position."""
        check_reason(reason)
        operations.skip(self._model, name, position)
        target = {"projection": name, "position": position}
        return self._record("projection_failure_skipped", target, reason)

    def _record(
        self, action: ActionName, target: dict[str, Any], reason: str, count: int = 1
    ) -> bool:
        return record_command(
            self._command, action, target, count=count, reason=reason, tenant_id=self._tenant_id
        )


class RemoteOperations:
    """Projections of a service, which records the actions with the subject of the token."""

    def __init__(self, projections: Projections, command: CommandSession) -> None:
        self._projections = projections
        self._command = command

    def pause(self, name: str, reason: str) -> bool:
        """Pause a projection until it is resumed."""
        return self._warn(self._projections.pause(name, reason=reason))

    def resume(self, name: str, reason: str) -> bool:
        """Resume a paused projection."""
        return self._warn(self._projections.resume(name, reason=reason))

    def count_retryable(self, name: str) -> int:
        """Count the failures that a retry of all affects."""
        return sum(failure.status != "passed" for failure in self._projections.failures(name))

    def retry(
        self, name: str, position: int | None, reason: str, expected_count: int | None
    ) -> tuple[int, bool]:
        """Retry failures; return their number too."""
        count, recorded = self._projections.retry(
            name, position, reason=reason, expected_count=expected_count
        )
        return count, self._warn(recorded)

    def skip(self, name: str, position: int, reason: str) -> bool:
        """Skip the event at a position."""
        return self._warn(self._projections.skip(name, position, reason=reason))

    def _warn(self, recorded: bool) -> bool:
        if not recorded:
            warn_unrecorded(self._command)
        return recorded
