"""A run of a projection: batches up to the head of the log, then, if live, a stream."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

from pyspark.sql import DataFrame

from seriatim.core.backoff import Backoff
from seriatim.core.errors import Conflict, LeaseLost
from seriatim.pipeline.job_loop import JobLoop
from seriatim.pipeline.project.batch import ModelLease, apply_batch
from seriatim.pipeline.project.job import DRIVER_FOLD_MAX_EVENTS, ProjectionJob
from seriatim.pipeline.project.lease import hold_lease
from seriatim.pipeline.project.live_stream import LiveStream
from seriatim.pipeline.project.refold import refold_failed_keys
from seriatim.pipeline.run_report import ProgressReporter
from seriatim.pipeline.spark_errors import translate_spark_errors
from seriatim.store.lease_keeper import wait_for_lease
from seriatim.store.readmodel import operations
from seriatim.store.readmodel.model import ProjectionMoved
from seriatim.store.readmodel.port import Progress

LEASE_S = 10.0
_POLL_S = 0.5  # how often a runner checks whether it may continue
_MAX_LAG_BATCHES = 5  # with a larger lag, catching up in large batches is faster than the stream
# A failed batch has cost a Spark job, so the first delay is longer than that of a publisher.
_BACKOFF = Backoff(first_s=1.0, cap_s=30.0)


class Runner:
    """Runs a projection while it holds the lease; other runners of the projection wait."""

    def __init__(
        self,
        job: ProjectionJob,
        *,
        live: bool,
        checkpoint: str | None,
        lease_s: float,
        until: Callable[[], bool],
    ) -> None:
        self._job = job
        self._name = job.projection.name
        self._checkpoint = checkpoint
        self._lease_s = lease_s
        self._owner = ""
        self._pid = 0
        self._progress = ProgressReporter(self._name, job.on_progress)
        self._loop = JobLoop(
            f"projection {self._name}", self._progress, backoff=_BACKOFF, live=live, until=until
        )

    def run(self) -> Progress:
        """Run up to the head of the log, or live until stopped; wait for the lease if necessary."""
        self._job.begin()
        self._loop.run(self._run_once)
        return operations.get_progress(self._job.model, self._name)

    def _run_once(self) -> bool:
        """Run under one lease; return whether the run is complete."""
        token = self._claim_lease()
        if token is None:
            return True
        try:
            with (
                hold_lease(self._job.target, self._name, token, self._lease_s),
                translate_spark_errors(),
            ):
                return self._run_with_lease(token)
        except (LeaseLost, ProjectionMoved):
            return False  # a rebuild has replaced the tables, or another runner took over

    def _run_with_lease(self, token: int) -> bool:
        while not self._loop.stopped:
            progress = self._job.begin()
            if progress.status != "ready":
                self._wait_or_raise(progress)
                continue
            if progress.held_until is not None:  # a rebuild compares the tables, briefly
                self._loop.pause(_POLL_S)
                continue
            refold_failed_keys(self._job, token=token)
            position = self._catch_up(progress.position, token)
            self._loop.reset_backoff()
            if not self._loop.live:
                return True
            self._follow(position, token)
        return True

    def _catch_up(self, position: int, token: int) -> int:
        """Apply batches up to the current head; return the position."""
        self._progress.start(position)
        head = self._job.store.head()
        while position < head and not self._loop.stopped:
            end = min(head, position + self._job.batch_events)
            position = apply_batch(self._job, (position, end), position, ModelLease(token))
            self._report(position)
        return position

    def _follow(self, position: int, token: int) -> None:
        """Apply new events from a stream, until the runner must do something else."""

        def apply(batch: DataFrame, after: int) -> int:
            reached = apply_batch(self._job, batch, after, ModelLease(token))
            self._report(reached)
            return reached

        self._progress.start(position)
        with LiveStream(self._job, position, apply, self._checkpoint) as stream:
            while not stream.wait_ended(_POLL_S):
                if self._loop.stopped or self._must_leave_stream(token):
                    return

    def _must_leave_stream(self, token: int) -> bool:
        """Return whether the runner must catch up, wait or refold; raise if the lease is lost."""
        progress = operations.get_progress(self._job.model, self._name)
        if progress.token != token:
            raise LeaseLost(f"projection {self._name} is run by another runner, or was rebuilt")
        if self._job.store.head() - progress.position > _MAX_LAG_BATCHES * DRIVER_FOLD_MAX_EVENTS:
            return True
        if progress.status != "ready" or progress.held_until is not None:
            return True
        return any(one.again for one in self._job.model.failures(self._name))

    # -- waiting

    def _wait_or_raise(self, progress: Progress) -> None:
        """Wait while the projection is paused, or raise the error that stopped it."""
        if progress.status == "failed":
            failures = operations.find_failures(self._job.model, self._name)
            stops = [one for one in failures if one.status == "stopped"]
            if stops:
                raise self._job.stopped_error(stops[0].failure)
            # The failure was retried or skipped meanwhile.
            self._job.model.set_status(self._name, "ready")
            return
        if not self._loop.live:
            msg = f"projection {self._name} is paused: run seriatim project resume {self._name}"
            raise Conflict(msg, details={"projection": self._name})
        self._loop.pause(_POLL_S)

    def _claim_lease(self) -> int | None:
        """Wait for the lease and return its token; None if the run is ended first."""
        if self._pid != os.getpid():  # a forked child is another runner
            self._owner, self._pid = uuid.uuid4().hex, os.getpid()
        return wait_for_lease(
            lambda: self._job.model.claim(self._name, self._owner, self._lease_s),
            stopped=lambda: self._loop.stopped,
            interval_s=min(_POLL_S, self._lease_s / 4),
            on_wait=lambda: self._progress.waiting("waiting for another runner"),
        )

    def _report(self, position: int) -> None:
        """Report the progress to the callback."""
        self._progress.advance("run", position, self._job.store.head())
