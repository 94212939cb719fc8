"""The projections of a log for asyncio."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from itertools import islice
from typing import Any

from seriatim.core.operation import Operator
from seriatim.core.projection import Projection
from seriatim.log.arguments import check_timeout
from seriatim.log.async_iteration import AsyncExecutor, iterate_in_own_thread
from seriatim.log.projections import Projections, poll_delays, wait_timeout_error
from seriatim.runs.follower import AsyncFollower, FollowerMetrics, run_in_own_thread
from seriatim.runs.job_loop import ProgressCallback
from seriatim.runs.local_projection import BATCH_EVENTS
from seriatim.runs.projection_runner import LEASE_S
from seriatim.runs.rebuild import Proof
from seriatim.store.readmodel.port import (
    FailureCounts,
    FailureRecord,
    Progress,
    ProjectionStanding,
)

_ROWS_AT_ONCE = 1_000


class AsyncProjections:
    """`Projections` for asyncio; a thread is used only while the read model is queried."""

    def __init__(
        self, projections: Projections, executor: AsyncExecutor = asyncio.to_thread
    ) -> None:
        self._projections = projections
        self._execute = executor

    # -- the local engine

    async def run(
        self,
        projection: Projection,
        *,
        batch_events: int = BATCH_EVENTS,
        lease_s: float = LEASE_S,
        on_progress: ProgressCallback | None = None,
        until: Callable[[], bool] | None = None,
    ) -> Progress:
        """Update the tables of a projection to the head of the log; see `Projections.run`.

        Cancelling the call ends the run after its current batch.

        Raises:
            ProjectionFailed: An event failed, and the projection stops at failures.
            Conflict: The projection is paused, or its declaration has changed.
            LogIdentityChanged: The log was restored or replaced.

        Example:
            @projection("totals", key="stream", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            print((await log.aio.projections.run(totals)).position)
        """
        cancelled = threading.Event()
        ends = until or (lambda: False)
        try:
            return await run_in_own_thread(
                self._projections.run,
                projection,
                batch_events=batch_events,
                lease_s=lease_s,
                on_progress=on_progress,
                until=lambda: cancelled.is_set() or ends(),
            )
        finally:
            cancelled.set()

    def follow(
        self,
        *projections: Projection,
        batch_events: int = BATCH_EVENTS,
        lease_s: float = LEASE_S,
        metrics: FollowerMetrics | None = None,
    ) -> AsyncFollower:
        """Keep projections up to date while the program runs; see `Projections.follow`.

        Folds and transactions run in threads, one for each projection, not on the event loop.

        Returns:
            The running follower; leave its `async with` block, or await `stop`, to end it.

        Example:
            @projection("totals", key="stream", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            async with log.aio.projections.follow(totals):
                receipt = await log.aio.append([NewEvent("order.placed", stream=("order", "1"))])
                await log.aio.projections.wait_for("totals", receipt.last_position)
        """
        return AsyncFollower(
            self._projections.follow(
                *projections, batch_events=batch_events, lease_s=lease_s, metrics=metrics
            )
        )

    async def verify(
        self, projection: Projection, *, on_progress: ProgressCallback | None = None
    ) -> Proof:
        """Compare the tables of a projection with a fold of the log; see `Projections.verify`.

        Raises:
            NotFound: The projection has not run yet.
            Conflict: The declaration has changed, or another rebuild or verification is running.

        Example:
            @projection("totals", key="stream", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            await log.aio.projections.run(totals)
            assert (await log.aio.projections.verify(totals)).equal
        """
        return await run_in_own_thread(
            self._projections.verify, projection, on_progress=on_progress
        )

    async def rebuild(
        self,
        projection: Projection,
        *,
        accept: bool = False,
        reason: str = "",
        operator: Operator | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> Proof:
        """Fold the whole log anew, compare, and switch; see `Projections.rebuild`.

        Raises:
            ProjectionFailed: The tables differ with an unchanged declaration, or an event failed.
            Conflict: Another rebuild or verification is running.

        Example:
            @projection("totals", key="stream", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            print((await log.aio.projections.rebuild(totals)).switched)
        """
        return await run_in_own_thread(
            self._projections.rebuild,
            projection,
            accept=accept,
            reason=reason,
            operator=operator,
            on_progress=on_progress,
        )

    def rows(
        self, projection: Projection, table: str | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Iterate over the rows of a table in the order of its key; see `Projections.rows`.

        Example:
            @projection("totals", key="stream", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            await log.aio.projections.run(totals)
            print([row["orders"] async for row in log.aio.projections.rows(totals)])
        """
        return self._iterate_rows(projection, table)

    async def _iterate_rows(
        self, projection: Projection, table: str | None
    ) -> AsyncGenerator[dict[str, Any], None]:
        rows = await self._execute(self._projections.rows, projection, table)
        batches = iter(lambda: list(islice(rows, _ROWS_AT_ONCE)), [])
        async for batch in iterate_in_own_thread(batches, lambda: None):
            for row in batch:
                yield row

    async def get_row(self, projection: Projection, key: str) -> dict[str, Any] | None:
        """Return the row of a key; see `Projections.get_row`.

        Raises:
            InvalidArgument: The projection has tables of its own; use `rows`.
            NotFound: The projection has not run yet.

        Example:
            @projection("totals", key="stream_id", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            await log.aio.projections.run(totals)
            print(await log.aio.projections.get_row(totals, "1"))
        """
        return await self._execute(self._projections.get_row, projection, key)

    # -- progress

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
