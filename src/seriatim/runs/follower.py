"""Follow the log in threads of this process: projections and handlers, each in its own thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Literal, ParamSpec, Protocol, Self, TypeVar

import msgspec

from seriatim.core.backoff import Backoff
from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import SeriatimError, TimedOut
from seriatim.runs.job_loop import ProgressCallback, RunReport

logger = logging.getLogger("seriatim")

P = ParamSpec("P")
T = TypeVar("T")

STOP_TIMEOUT_S = 30.0
# A run that failed for good is tried again, so that it continues when an operator has resolved the
# failure. Trying costs one look at its state.
_FAILED_BACKOFF = Backoff(first_s=0.5, cap_s=30.0)

RunKind = Literal["projection", "handler"]
RunStatus = Literal["starting", "running", "waiting", "failed", "stopped"]


class FollowedRun(msgspec.Struct, frozen=True):
    """A projection or handler to follow the log.

    Attributes:
        name: The name of the projection or handler.
        kind: Which of the two it is.
        run: Follows the log until the first argument returns true; the second one receives
            reports.
        close: Called in the thread of the run when it ends.
    """

    name: str
    kind: RunKind
    run: Callable[[Callable[[], bool], ProgressCallback], object]
    close: Callable[[], object] = lambda: None


class RunHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one projection or handler that follows the log in this process.

    Attributes:
        name: The name of the projection or handler.
        kind: Which of the two it is.
        status: `starting`, `running`, `waiting` (for another runner, or to retry), `failed`, or
            `stopped`.
        activity: What it does, such as "run" or "waiting for another runner".
        position: The position that it reached; 0 until it has read something.
        lag: The number of positions from there to the head.
        error: The last error; empty if it runs without one.
        failures: How often it has failed in a row.
    """

    name: str
    kind: RunKind
    status: RunStatus
    activity: str = ""
    position: int = 0
    lag: int = 0
    error: str = ""
    failures: int = 0


class FollowerMetrics(Protocol):
    """Where a follower reports progress: `seriatim.telemetry.JobMetrics`."""

    def set_progress(self, job: str, position: int, lag: int, pace: float) -> None:
        """Set the position, lag and events per second of a job."""
        ...


class Follower:
    """Projections or handlers that follow the log, each in a thread of this process.

    One that fails does not stop the others: it is tried again with growing delays, so that it
    continues when an operator has resolved the failure. `health` shows its error meanwhile.

    The threads do not survive a fork: start a follower in the process that serves.

    Example:
        @projection("totals", key="stream", columns={"orders": int}, events=["order.*"])
        def totals(row, event):
            return {"orders": row["orders"] + 1 if row else 1}

        with log.projections.follow(totals) as follower:
            receipt = log.append([NewEvent("order.placed", stream=("order", "1"))])
            log.projections.wait_for("totals", receipt.last_position)
            print([run.status for run in follower.health()])
    """

    def __init__(self, runs: Sequence[FollowedRun], metrics: FollowerMetrics | None = None) -> None:
        """Start a thread for each run."""
        self._stopped = threading.Event()
        self._threads = [_RunThread(run, self._stopped, metrics) for run in runs]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        """Return the follower, to be stopped at the end of a `with` block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the threads."""
        self.stop()

    def health(self) -> list[RunHealth]:
        """Return the state of each projection or handler.

        Example:
            with log.projections.follow() as follower:
                print(all(run.status != "failed" for run in follower.health()))
        """
        return [thread.health for thread in self._threads]

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Let each finish its current batch, and wait until all have stopped.

        Args:
            timeout_s: How long to wait. What still runs then is fenced by its lease, and ends with
                its batch.

        Raises:
            TimedOut: Some have not stopped in time; the message names them.

        Example:
            follower = log.projections.follow()
            follower.stop(timeout_s=10)
        """
        self._stopped.set()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if busy := [thread.health.name for thread in self._threads if thread.is_alive()]:
            names = ", ".join(busy)
            msg = (
                f"{names} did not stop within {timeout_s:g} s: a batch is still being processed; "
                "wait again, or end the process, which loses nothing"
            )
            raise TimedOut(msg, details={"runs": busy})

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until `stop` is called from another thread.

        A signal handler of the main thread must raise instead, such as `SystemExit`: it may have
        interrupted this very wait, which holds the lock that `stop` needs.

        Args:
            timeout_s: How long to wait; None waits without end.

        Returns:
            Whether the follower was stopped.

        Example:
            with log.projections.follow() as follower:
                follower.wait(timeout_s=0.1)
        """
        return self._stopped.wait(timeout_s)


class AsyncFollower:
    """A `Follower` for asyncio; the event loop is never blocked.

    Example:
        async with log.aio.projections.follow() as follower:
            print(follower.health())
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    async def __aenter__(self) -> Self:
        """Return the follower, to be stopped at the end of an `async with` block."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the threads."""
        await self.stop()

    def health(self) -> list[RunHealth]:
        """Return the state of each projection or handler; see `Follower.health`.

        Example:
            async with log.aio.projections.follow() as follower:
                print(follower.health())
        """
        return self._follower.health()

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Let each finish its current batch, and wait until all have stopped.

        Raises:
            TimedOut: Some have not stopped in time; the message names them.

        Example:
            follower = log.aio.projections.follow()
            await follower.stop(timeout_s=10)
        """
        await run_in_own_thread(self._follower.stop, timeout_s)


def run_in_own_thread(
    function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> asyncio.Future[T]:
    """Run a blocking function in a thread of its own, and return an awaitable of its result.

    The threads of an executor may all be busy, also with what the function waits for.
    """
    thread = ThreadPoolExecutor(1, "seriatim")
    context = copy_context()  # so that spans made in the thread join the caller's trace
    try:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(thread, lambda: context.run(function, *args, **kwargs))
    finally:
        thread.shutdown(wait=False)


class _RunThread(threading.Thread):
    """The thread of one run; it repeats the run after failures, until it is stopped."""

    def __init__(
        self, run: FollowedRun, stopped: threading.Event, metrics: FollowerMetrics | None
    ) -> None:
        # A daemon: a program that forgets to stop its follower must still be able to end.
        super().__init__(name=f"seriatim {run.kind} {run.name}", daemon=True)
        self._followed = run
        self._stopped = stopped
        self._metrics = metrics
        self.health = RunHealth(name=run.name, kind=run.kind, status="starting")

    def run(self) -> None:
        """Run until stopped."""
        failures = 0
        while not self._stopped.is_set():
            try:
                self._followed.run(self._stopped.is_set, self._report)
            except Exception as error:  # noqa: BLE001 - one that fails must not stop the others
                failures = 1 if self.health.status == "running" else failures + 1
                self._fail(error, failures)
        self._followed.close()
        self._set(status="stopped", activity="")

    def _report(self, report: RunReport) -> None:
        if report.waits:
            self._set(status="waiting", activity=report.activity)
            return
        self._set(
            status="running",
            activity=report.activity,
            position=report.position,
            lag=report.lag,
            error="",
            failures=0,
        )
        if self._metrics is not None:
            self._metrics.set_progress(
                self._followed.name, report.position, report.lag, report.events_per_s
            )

    def _fail(self, error: Exception, failures: int) -> None:
        message = error.message if isinstance(error, SeriatimError) else summarize_error(error)
        if message != self.health.error:
            logger.error("%s %s failed: %s", self._followed.kind, self._followed.name, message)
        delay = _FAILED_BACKOFF.delay_s(failures)
        self._set(status="failed", activity="", error=message, failures=failures)
        self._stopped.wait(delay)

    def _set(self, **changes: str | int) -> None:
        # Replaced as a whole, so that readers in other threads see a consistent value.
        self.health = msgspec.structs.replace(self.health, **changes)
