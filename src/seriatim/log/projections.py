"""The projections of a log: wait for one, require that it is current, pause it, retry failures."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from seriatim.core.backoff import Backoff
from seriatim.core.errors import (
    Conflict,
    Forbidden,
    InvalidArgument,
    LogIdentityChanged,
    NotFound,
    ProjectionOutOfDate,
    ProjectionTimeout,
    SeriatimError,
)
from seriatim.core.event import LogIdentity
from seriatim.core.operation import ActionName, Operator, OperatorAction
from seriatim.core.tenants import ALL_TENANTS
from seriatim.log.arguments import check_name, check_position, check_timeout, invalid_argument
from seriatim.log.async_iteration import AsyncExecutor
from seriatim.log.cursors import find_cursor_problem
from seriatim.log.operator_journal import (
    check_expected_count,
    check_reason,
    local_operator,
    record_action,
)
from seriatim.store.readmodel import operations
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import (
    FailureCounts,
    FailureRecord,
    Progress,
    ProjectionStanding,
)

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog

# A projection in the same process is often done within milliseconds; 0.1 s bounds the latency.
_POLL_BACKOFF = Backoff(first_s=0.002, cap_s=0.1, factor=1.5)


class ReadModelConnections:
    """The read models that a log has opened, one connection for each URL.

    Args:
        find: Opens the read model at a URL; returns None if there is none.
        default_url: Returns the default URL of a tenant's read model; None if there is none.
    """

    def __init__(
        self, find: Callable[[str], ReadModel | None], default_url: Callable[[str], str] | None
    ) -> None:
        self._find_read_model = find
        self._default_url = default_url
        # Keyed by process: connections inherited by a fork may be neither used nor closed.
        self._open: dict[tuple[int, str], ReadModel] = {}

    def default_url(self, tenant_id: str) -> str:
        """Return the default URL of a tenant's read model.

        Raises:
            InvalidArgument: The log has no default, as in memory.
        """
        if self._default_url is None:
            msg = (
                "this log has no default read model, because it is in memory: "
                "name one with log.projections_at(url)"
            )
            raise InvalidArgument(msg, details={"argument": "target"})
        return self._default_url(tenant_id)

    def find(self, url: str) -> ReadModel | None:
        """Return the read model at a URL, or None if there is none yet."""
        key = (os.getpid(), url)
        if key in self._open:
            return self._open[key]
        opened = self._find_read_model(url)
        if opened is None:
            return None
        model = self._open.setdefault(key, opened)
        if model is not opened:  # another thread opened it first
            opened.close()
        return model

    def close(self) -> None:
        """Close all connections of this process."""
        for key in [key for key in self._open if key[0] == os.getpid()]:
            self._open.pop(key).close()


class Projections:
    """The progress of a log's projections, and the actions of their operators."""

    def __init__(self, log: BaseLog, target: str) -> None:
        self._log = log
        self._target = target

    def wait_for(self, name: str, position: int, timeout_s: float = 10.0) -> Progress:
        """Wait until a projection has reached a position, and return its progress.

        Args:
            name: The projection.
            position: A position of the log, such as `receipt.last_position`.
            timeout_s: How long to wait.

        Raises:
            ProjectionTimeout: The projection did not reach the position in time.
            NotFound: There is no such projection.
            InvalidArgument: The position is after the head.
            LogIdentityChanged: The log was restored or replaced.

        Example:
            receipt = log.append([NewEvent("order.placed", {"total": 12})])
            try:
                log.projections.wait_for("orders", receipt.last_position, timeout_s=0.1)
            except (NotFound, ProjectionTimeout) as error:
                print(error)
        """
        deadline = time.monotonic() + check_timeout(timeout_s, "timeout_s")
        self.check_position(position)
        for delay in poll_delays():
            progress = self.get_progress(name)
            if progress.position >= position:
                return progress
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            time.sleep(min(delay, remaining))
        raise wait_timeout_error(progress, position, timeout_s)

    def demand(self, name: str, position: int) -> Progress:
        """Return the progress of a projection if it has reached a position.

        Raises:
            ProjectionOutOfDate: The projection has not reached the position.
            NotFound: There is no such projection.

        Example:
            try:
                log.projections.demand("orders", log.head())
            except (NotFound, ProjectionOutOfDate) as error:
                print(error)
        """
        self.check_position(position)
        progress = self.get_progress(name)
        if progress.position < position:
            msg = f"projection {name} has reached {progress.position}, not {position}"
            raise _lag_error(ProjectionOutOfDate, msg, progress, position)
        return progress

    def status(self) -> list[ProjectionStanding]:
        """Return the position, lag and status of every projection.

        Example:
            for standing in log.projections.status():
                print(standing.name, standing.position, standing.lag)
        """
        model = self._log.read_models.find(self._target)
        if model is None:
            return []
        head = self._log.head()
        return [
            ProjectionStanding(
                name=progress.name,
                position=progress.position,
                # Not negative: a projection may have passed the head, which was read before.
                lag=max(0, head - progress.position),
                updated_at=progress.updated_at,
                status=progress.status,
                running=bool(progress.owner),
                failures=model.count_failures(progress.name).stored,
                held_until=progress.held_until,
            )
            for progress in model.list_progress()
            if not progress.shadow
        ]

    def failures(self, name: str) -> list[FailureRecord]:
        """Return the events that a projection could not process, and how each was resolved.

        Raises:
            NotFound: There is no such projection.

        Example:
            for standing in log.projections.status():
                print(standing.name, log.projections.failures(standing.name))
        """
        self.get_progress(name)
        return self._model(name).failures(name)

    def list_failures(
        self, name: str, tenant_id: str, *, after: int = 0, limit: int
    ) -> list[FailureRecord]:
        """Return a page of the failures of one tenant; see `failures`.

        Args:
            name: The projection.
            tenant_id: The tenant.
            after: Only failures after this position.
            limit: The maximum number of failures.

        Raises:
            NotFound: There is no such projection.

        Example:
            for standing in log.projections.status():
                page = log.projections.list_failures(standing.name, "default", limit=100)
        """
        self.get_progress(name)
        model = self._model(name)
        return model.failures(name, tenant_id=tenant_id, after=after, limit=limit)

    def count_failures(self, name: str, tenant_id: str) -> FailureCounts:
        """Count the failures of one tenant; see `failures`.

        Raises:
            NotFound: There is no such projection.

        Example:
            for standing in log.projections.status():
                counts = log.projections.count_failures(standing.name, "default")
                print(standing.name, counts.stored, counts.unresolved)
        """
        self.get_progress(name)
        return self._model(name).count_failures(name, tenant_id=tenant_id)

    # -- operators

    def pause(self, name: str, *, reason: str = "", operator: Operator | None = None) -> bool:
        """Stop a projection at its current position until it is resumed.

        Args:
            name: The projection.
            reason: Why, for the operators' journal.
            operator: Who does it; by default the user of this process.

        Returns:
            Whether the action was recorded in the operators' journal.

        Raises:
            NotFound: There is no such projection.
            Forbidden: It covers all tenants, and the operator is one tenant's.

        Example:
            for standing in log.projections.status():
                log.projections.pause(standing.name, reason="deploying")
        """
        model = self._open_for_operator(name, operator, all_tenants=True)
        check_reason(reason)
        operations.pause(model, name)
        return self._record("projection_paused", {"projection": name}, operator, reason)

    def resume(self, name: str, *, reason: str = "", operator: Operator | None = None) -> bool:
        """Resume a paused projection; see `pause`.

        Example:
            for standing in log.projections.status():
                log.projections.resume(standing.name)
        """
        model = self._open_for_operator(name, operator, all_tenants=True)
        check_reason(reason)
        operations.resume(model, name)
        return self._record("projection_resumed", {"projection": name}, operator, reason)

    def retry(
        self,
        name: str,
        position: int | None = None,
        *,
        expected_count: int | None = None,
        reason: str = "",
        operator: Operator | None = None,
    ) -> tuple[int, bool]:
        """Retry failures in the current run or the next one.

        Args:
            name: The projection.
            position: The position of one failed event; None for all.
            expected_count: How many failures the action must affect, or it is refused.
            reason: Why, for the operators' journal.
            operator: Who does it; by default the user of this process.

        Returns:
            The number of failures, and whether the action was recorded in the operators' journal.

        Raises:
            NotFound: There is no such projection or failure.
            Conflict: There are more or fewer failures than expected.

        Example:
            for standing in log.projections.status():
                log.projections.retry(standing.name, reason="the fold is fixed")
        """
        model, tenant_id = (
            self._open_for_operator(name, operator),
            self._get_confined_tenant(operator),
        )
        check_reason(reason)
        if expected_count is not None:
            actual = len(operations.find_retryable(model, name, position, tenant_id))
            check_expected_count(expected_count, actual)
        count = operations.retry(model, name, position, tenant_id)
        target = {"projection": name} | ({} if position is None else {"position": position})
        action: ActionName = "projection_failures_retried"
        return count, not count or self._record(action, target, operator, reason, count)

    def skip(
        self, name: str, position: int, *, reason: str = "", operator: Operator | None = None
    ) -> bool:
        """Skip a failed event, now and in every rebuild; its key continues after it.

        Args:
            name: The projection.
            position: The position of the failed event.
            reason: Why, for the operators' journal.
            operator: Who does it; by default the user of this process.

        Returns:
            Whether the action was recorded in the operators' journal.

        Raises:
            NotFound: There is no such projection or failure.

        Example:
            for standing in log.projections.status():
                for record in log.projections.failures(standing.name):
                    position = record.failure.position
                    log.projections.skip(standing.name, position, reason="bad data")
        """
        model, tenant_id = (
            self._open_for_operator(name, operator),
            self._get_confined_tenant(operator),
        )
        check_reason(reason)
        operations.skip(model, name, check_position("position", position), tenant_id)
        target = {"projection": name, "position": position}
        return self._record("projection_failure_skipped", target, operator, reason)

    def _open_for_operator(
        self, name: str, operator: Operator | None, *, all_tenants: bool = False
    ) -> ReadModel:
        """Return the read model of a projection that the operator may act on.

        With `all_tenants`, the action affects every tenant of the projection.
        """
        progress = self.find(name)
        if (
            all_tenants
            and progress.tenant_id == ALL_TENANTS
            and self._get_confined_tenant(operator) is not None
        ):
            msg = f"projection {name} covers all tenants: use a token for all tenants"
            raise Forbidden(msg, details={"projection": name})
        return self._model(name)

    def _get_confined_tenant(self, operator: Operator | None) -> str | None:
        """Return the tenant whose failures an operator may resolve, None for all."""
        return self._log.tenant_id if operator is not None and operator.confined else None

    def _record(
        self,
        action: ActionName,
        target: dict[str, Any],
        operator: Operator | None,
        reason: str,
        count: int = 1,
    ) -> bool:
        return record_action(
            self._log,
            OperatorAction(
                action=action,
                operator=operator or local_operator(),
                tenant_id=self._log.tenant_id,
                target=target,
                count=count,
                reason=reason,
            ),
        )

    # -- progress

    def check_position(self, position: object) -> None:
        """Raise `InvalidArgument` for a position after the head, which a wait might never reach."""
        if check_position("position", position) > (head := self._log.head()):
            raise invalid_argument("position", f"must not be after the head: {position} > {head}")

    def get_progress(self, name: str) -> Progress:
        """Return the progress of a projection of this log.

        Raises:
            NotFound: There is no such projection.
            Conflict: It belongs to another tenant.
            LogIdentityChanged: The log was restored or replaced since it last ran.
        """
        progress = self.find(name)
        identity = LogIdentity(progress.log_id, progress.epoch)
        problem = find_cursor_problem(
            self._log.store, identity, progress.position, progress.last_event_id
        )
        if problem is not None:
            msg = (
                f"projection {name} {problem}: the log was restored or replaced; "
                f"run seriatim project rebuild {name} to rebuild its read model"
            )
            raise LogIdentityChanged(msg, details={"projection": name})
        return progress

    def find(self, name: str) -> Progress:
        """Return the progress of a projection, also if the log was restored since it last ran.

        Raises:
            NotFound: There is no such projection.
            Conflict: It belongs to another tenant.

        Example:
            for standing in log.projections.status():
                print(log.projections.find(standing.name).owner)
        """
        progress = self._model(check_name("name", name)).progress(name)
        if progress is None:
            raise _not_found_error(name)
        if progress.tenant_id not in (self._log.tenant_id, ALL_TENANTS):
            msg = f"projection {name} belongs to another tenant: open the log of that tenant"
            raise Conflict(msg, details={"projection": name, "tenant_id": self._log.tenant_id})
        return progress

    def _model(self, name: str) -> ReadModel:
        model = self._log.read_models.find(self._target)
        if model is None:
            raise _not_found_error(name)
        return model


class AsyncProjections:
    """`Projections` for asyncio; a thread is used only while the read model is queried."""

    def __init__(
        self, projections: Projections, executor: AsyncExecutor = asyncio.to_thread
    ) -> None:
        self._projections = projections
        self._execute = executor

    async def wait_for(self, name: str, position: int, timeout_s: float = 10.0) -> Progress:
        """Wait until a projection has reached a position; see `Projections.wait_for`.

        Raises:
            ProjectionTimeout: The projection did not reach the position in time.
            NotFound: There is no such projection.

        Example:
            receipt = await log.aio.append([NewEvent("order.placed", {"total": 12})])
            try:
                await log.aio.projections.wait_for("orders", receipt.last_position, 0.1)
            except (NotFound, ProjectionTimeout) as error:
                print(error)
        """
        deadline = time.monotonic() + check_timeout(timeout_s, "timeout_s")
        await self._execute(self._projections.check_position, position)
        for delay in poll_delays():
            progress = await self._execute(self._projections.get_progress, name)
            if progress.position >= position:
                return progress
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            await asyncio.sleep(min(delay, remaining))
        raise wait_timeout_error(progress, position, timeout_s)

    async def demand(self, name: str, position: int) -> Progress:
        """Require that a projection has reached a position; see `Projections.demand`.

        Raises:
            ProjectionOutOfDate: The projection has not reached the position.
            NotFound: There is no such projection.

        Example:
            try:
                await log.aio.projections.demand("orders", 1)
            except (NotFound, ProjectionOutOfDate) as error:
                print(error)
        """
        return await self._execute(self._projections.demand, name, position)

    async def status(self) -> list[ProjectionStanding]:
        """Return the status of every projection; see `Projections.status`.

        Example:
            for standing in await log.aio.projections.status():
                print(standing.name, standing.position, standing.lag)
        """
        return await self._execute(self._projections.status)

    async def failures(self, name: str) -> list[FailureRecord]:
        """Return the failures of a projection; see `Projections.failures`.

        Raises:
            NotFound: There is no such projection.

        Example:
            for standing in await log.aio.projections.status():
                print(await log.aio.projections.failures(standing.name))
        """
        return await self._execute(self._projections.failures, name)

    async def list_failures(
        self, name: str, tenant_id: str, *, after: int = 0, limit: int
    ) -> list[FailureRecord]:
        """Return one page of the failures of a tenant; see `Projections.list_failures`.

        Raises:
            NotFound: There is no such projection.

        Example:
            for standing in await log.aio.projections.status():
                page = await log.aio.projections.list_failures(standing.name, "default", limit=9)
        """
        return await self._execute(
            self._projections.list_failures, name, tenant_id, after=after, limit=limit
        )

    async def count_failures(self, name: str, tenant_id: str) -> FailureCounts:
        """Count the failures of a tenant; see `Projections.count_failures`.

        Raises:
            NotFound: There is no such projection.

        Example:
            for standing in await log.aio.projections.status():
                print(await log.aio.projections.count_failures(standing.name, "default"))
        """
        return await self._execute(self._projections.count_failures, name, tenant_id)

    async def pause(self, name: str, *, reason: str = "", operator: Operator | None = None) -> bool:
        """Stop a projection at its current position; see `Projections.pause`.

        Raises:
            NotFound: There is no such projection.

        Example:
            for standing in await log.aio.projections.status():
                await log.aio.projections.pause(standing.name, reason="deploying")
        """
        return await self._execute(self._projections.pause, name, reason=reason, operator=operator)

    async def resume(
        self, name: str, *, reason: str = "", operator: Operator | None = None
    ) -> bool:
        """Resume a paused projection; see `Projections.resume`.

        Raises:
            NotFound: There is no such projection.

        Example:
            for standing in await log.aio.projections.status():
                await log.aio.projections.resume(standing.name)
        """
        return await self._execute(self._projections.resume, name, reason=reason, operator=operator)

    async def retry(
        self,
        name: str,
        position: int | None = None,
        *,
        expected_count: int | None = None,
        reason: str = "",
        operator: Operator | None = None,
    ) -> tuple[int, bool]:
        """Retry failures in the current run or the next one; see `Projections.retry`.

        Raises:
            NotFound: There is no such projection or failure.
            Conflict: There are more or fewer failures than expected.

        Example:
            for standing in await log.aio.projections.status():
                await log.aio.projections.retry(standing.name, reason="the fold is fixed")
        """
        return await self._execute(
            self._projections.retry,
            name,
            position,
            expected_count=expected_count,
            reason=reason,
            operator=operator,
        )

    async def skip(
        self, name: str, position: int, *, reason: str = "", operator: Operator | None = None
    ) -> bool:
        """Skip a failed event; see `Projections.skip`.

        Raises:
            NotFound: There is no such projection or failure.

        Example:
            for standing in await log.aio.projections.status():
                for record in await log.aio.projections.failures(standing.name):
                    position = record.failure.position
                    await log.aio.projections.skip(standing.name, position, reason="bad data")
        """
        return await self._execute(
            self._projections.skip, name, position, reason=reason, operator=operator
        )


def poll_delays() -> Iterator[float]:
    """Return poll intervals that grow up to a maximum, without end."""
    return (_POLL_BACKOFF.delay_s(attempt) for attempt in count(1))


def wait_timeout_error(progress: Progress, position: int, seconds: float) -> SeriatimError:
    """Return the error for a projection that did not reach a position in time."""
    activity = "running" if progress.owner else "not running"
    msg = (
        f"projection {progress.name} has reached {progress.position}, not {position}, within "
        f"{seconds:g} s: it is {progress.status} and {activity}"
    )
    return _lag_error(ProjectionTimeout, msg, progress, position)


def _lag_error(
    kind: type[SeriatimError], msg: str, progress: Progress, position: int
) -> SeriatimError:
    details = {
        "projection": progress.name,
        "position": position,
        "reached": progress.position,
        "status": progress.status,
    }
    return kind(msg, details=details)


def _not_found_error(name: str) -> NotFound:
    msg = (
        f"there is no projection {name!r:.80} in this read model: create it with "
        "seriatim project run"
    )
    return NotFound(msg, details={"projection": name})
