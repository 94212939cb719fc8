"""A run of a projection: batches up to the head of the log, then, if live, a stream."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from seriatim.core.backoff import Backoff
from seriatim.core.errors import Conflict, LeaseLost
from seriatim.core.fold import TenantKey
from seriatim.pipeline.job_loop import JobLoop, ProgressReporter
from seriatim.pipeline.project import dataframes, rebuild
from seriatim.pipeline.project.batch import ModelLease, apply_batch
from seriatim.pipeline.project.fold_tasks import KEY_COLUMN, FoldTask
from seriatim.pipeline.project.job import DRIVER_FOLD_MAX_EVENTS, ProjectionJob
from seriatim.pipeline.project.lease import hold_lease
from seriatim.pipeline.spark_errors import (
    SPARK_ERRORS,
    silence_spark_errors,
    to_seriatim_error,
    translate_spark_errors,
)
from seriatim.store.lease_keeper import wait_for_lease
from seriatim.store.readmodel import operations
from seriatim.store.readmodel.model import ProjectionMoved
from seriatim.store.readmodel.port import Progress


def refold_failed_keys(job: ProjectionJob, *, token: int) -> None:
    """Fold again the keys whose failures an operator wants to retry.

    If keys share rows and one of them no longer writes a row as before, the correct row depends on
    the whole log. The projection is then rebuilt, which ends the lease.

    Raises:
        LeaseLost: The projection was rebuilt.

    """
    keys = {
        (record.failure.tenant_id, record.failure.key)
        for record in job.model.failures(job.projection.name)
        if record.again
    }
    for key in sorted(keys):
        if not _refold(job, key, token=token):
            rebuild.rebuild_without_comparison(job)
            msg = f"projection {job.projection.name} was rebuilt to refold key {key[1]!r:.200}"
            raise LeaseLost(msg, details={"projection": job.projection.name})


def _refold(job: ProjectionJob, owner: TenantKey, *, token: int) -> bool:
    """Fold one key again; return False if that needs a rebuild."""
    progress = job.model.progress(job.projection.name)
    until = progress.position if progress else 0
    tenant_id, key = owner
    events = dataframes.add_key_column(job.events(0, until), job.projection).where(
        (f.col("tenant_id") == tenant_id) & (f.col(KEY_COLUMN) == key)
    )
    positions: list[int] = events.select("position").toArrow().column(0).to_pylist()
    task = FoldTask(projection=job.projection, target=job.target, until=until, only_key=owner)
    step = job.fold_in_tasks(events.drop(KEY_COLUMN), task, partitions=1).step
    step.after = step.until = until
    step.failures = [
        (failure, "skipped" if job.projection.on_failure == "skip" else "parked")
        for failure, _ in step.failures
    ]
    return job.model.refold(job.projection, owner, step, positions, token=token)


ApplyBatch = Callable[[DataFrame, int], int]


class LiveStream:
    """A stream of a projection's events after a position.

    The cursor in the read model is authoritative. The checkpoint directory holds only Spark's
    internal state, so it may be lost, outdated or temporary.
    """

    def __init__(
        self, job: ProjectionJob, position: int, apply: ApplyBatch, checkpoint: str | None
    ) -> None:
        """Start the stream.

        Args:
            job: The projection.
            position: The position after which the stream starts.
            apply: Applies a batch after a position, and returns the new position.
            checkpoint: Spark's checkpoint directory; None creates a temporary one.

        """
        self._position = position
        self._apply = apply
        self._raised: BaseException | None = None
        self._temporary = checkpoint is None
        self._folder = Path(checkpoint or tempfile.mkdtemp(prefix="seriatim-checkpoint-"))
        reader = job.spark.readStream.format("seriatim").options(
            **job.options,
            startingPosition=str(position),
            maxEventsPerBatch=str(min(job.batch_events, DRIVER_FOLD_MAX_EVENTS)),
            watermarks="true",  # a batch without events of the projection moves the cursor too
        )
        events = reader.load()
        if not job.projection.is_frame:
            events = dataframes.prepare_events(events, job.projection)
        self._query = (
            events.writeStream.foreachBatch(self._apply_batch)
            .queryName(f"seriatim_{job.projection.name}_{time.monotonic_ns()}")
            .option("checkpointLocation", str(self._folder))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._query.stop()
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _apply_batch(self, batch: DataFrame, _batch_id: int) -> None:
        # Batch ids start at 0 with a new checkpoint directory, so only the position protects
        # against applying a batch twice.
        try:
            with silence_spark_errors():  # this runs in a thread of Spark's
                self._position = self._apply(batch, self._position)
        except BaseException as error:
            # Spark passes on only the text of this error: keep the error itself for `wait_ended`.
            self._raised = error
            raise

    def wait_ended(self, within_s: float) -> bool:
        """Wait up to `within_s` seconds; return whether the stream ended, or raise its error."""
        try:
            # Spark's annotation asks for whole seconds, but it accepts fractions.
            return bool(self._query.awaitTermination(within_s))  # type: ignore[arg-type]
        except SPARK_ERRORS as error:
            # Spark's error only quotes the one that a batch raised.
            raised = error if self._raised is None else self._raised
            if isinstance(raised, SPARK_ERRORS):
                raise to_seriatim_error(raised) from None
            raise raised from None


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
            # Read each time: an operator may pause, retry, skip or rebuild in the meantime.
            progress = self._job.begin()
            if progress.status != "ready":
                self._wait_or_raise(progress)
                continue
            if progress.held_until is not None:  # a rebuild compares the tables, briefly
                self._loop.pause(_POLL_S)
                continue
            refold_failed_keys(self._job, token=token)
            # Large batches first: a stream plans less per batch, but its batches are small.
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
        # A stream without new events commits nothing, so only this notices a lost lease.
        progress = operations.get_progress(self._job.model, self._name)
        if progress.token != token:
            raise LeaseLost(f"projection {self._name} is run by another runner, or was rebuilt")
        if self._job.store.head() - progress.position > _MAX_LAG_BATCHES * DRIVER_FOLD_MAX_EVENTS:
            return True
        if progress.status != "ready" or progress.held_until is not None:
            return True
        return any(record.again for record in self._job.model.failures(self._name))

    # -- waiting

    def _wait_or_raise(self, progress: Progress) -> None:
        """Wait while the projection is paused, or raise the error that stopped it."""
        if progress.status == "failed":
            failures = operations.find_failures(self._job.model, self._name)
            stopped = [record for record in failures if record.status == "stopped"]
            if stopped:
                raise self._job.stopped_error(stopped[0].failure)
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
            on_wait=lambda: self._progress.report_wait("waiting for another runner"),
        )

    def _report(self, position: int) -> None:
        """Report the progress to the callback."""
        self._progress.advance("run", position, self._job.store.head())
