"""A run of a projection: batches up to the head of the log, then, if live, new events."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable

from seriatim.core.backoff import Backoff
from seriatim.core.errors import Conflict, LeaseLost
from seriatim.core.fold import TenantKey
from seriatim.runs.job_loop import JobLoop, ProgressReporter
from seriatim.runs.projection_batch import apply_range
from seriatim.runs.projection_job import ModelLease, ProjectionJob
from seriatim.runs.projection_lease import hold_lease
from seriatim.runs.rebuild import rebuild_without_comparison
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
            rebuild_without_comparison(job)
            msg = f"projection {job.projection.name} was rebuilt to refold key {key[1]!r:.200}"
            raise LeaseLost(msg, details={"projection": job.projection.name})


def _refold(job: ProjectionJob, owner: TenantKey, *, token: int) -> bool:
    """Fold one key again; return False if that needs a rebuild."""
    progress = job.model.progress(job.projection.name)
    until = progress.position if progress else 0
    outcome, positions = job.fold_key(owner, until)
    step = outcome.step
    step.after = step.until = until
    step.failures = [
        (failure, "skipped" if job.projection.on_failure == "skip" else "parked")
        for failure, _ in step.failures
    ]
    return job.model.refold(job.projection, owner, step, positions, token=token)


LEASE_S = 10.0
_POLL_S = 0.5  # how often a runner checks whether it may continue
# A failed batch may have cost a Spark job, so the first delay is longer than that of a publisher.
_BACKOFF = Backoff(first_s=1.0, cap_s=30.0)


def run_projection(
    job: ProjectionJob,
    *,
    live: bool = False,
    lease_s: float = LEASE_S,
    until: Callable[[], bool] | None = None,
) -> Progress:
    """Catch up to the head of the log, or with `live` follow it.

    Args:
        job: The projection on an engine.
        live: Whether to follow the log.
        lease_s: The duration of the lease, in seconds.
        until: Ends the run when it returns true.

    Returns:
        The progress of the projection.

    Raises:
        ProjectionFailed: An event failed, and the projection stops at failures.
        Conflict: The projection is paused, or its declaration has changed.
        LogIdentityChanged: The log was restored or replaced.

    """
    return _Runner(job, live=live, lease_s=lease_s, until=until or (lambda: False)).run()


class _Runner:
    """Runs a projection while it holds the lease; other runners of the projection wait."""

    def __init__(
        self,
        job: ProjectionJob,
        *,
        live: bool,
        lease_s: float,
        until: Callable[[], bool],
    ) -> None:
        self._job = job
        self._name = job.projection.name
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
                hold_lease(self._job.model, self._name, token, self._lease_s),
                self._job.translate_errors(),
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
            # Large batches first: following the log costs less per batch, but more per event.
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
            position = apply_range(self._job, position, end, ModelLease(token))
            self._report(position)
        return position

    def _follow(self, position: int, token: int) -> None:
        """Apply new events, until the runner must do something else."""
        self._progress.start(position)
        self._report(position)
        check_at = time.monotonic() + _POLL_S

        def ended() -> bool:
            nonlocal check_at
            if self._loop.stopped or time.monotonic() < check_at:
                return self._loop.stopped
            check_at = time.monotonic() + _POLL_S
            return self._must_stop_following(token)

        self._job.follow(position, ModelLease(token), self._report, ended)

    def _must_stop_following(self, token: int) -> bool:
        """Return whether the runner must catch up, wait or refold; raise if the lease is lost."""
        # Without new events nothing is committed, so only this notices a lost lease.
        progress = operations.get_progress(self._job.model, self._name)
        if progress.token != token:
            raise LeaseLost(f"projection {self._name} is run by another runner, or was rebuilt")
        self._job.check_progress(progress)  # the log may have been restored, without new events
        if self._job.store.head() - progress.position > self._job.follow_max_lag:
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
