"""A run of a projection: batches up to the log's end, then, if it is to live, a stream."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable

from pyspark.sql import DataFrame

from seriatim.core.errors import Conflict, LeaseLost, SeriatimError
from seriatim.pipeline.failures import translated
from seriatim.pipeline.project.applying import Side, apply_batch
from seriatim.pipeline.project.job import SMALL_EVENTS, Job, Report
from seriatim.pipeline.project.leasing import kept_lease
from seriatim.pipeline.project.mending import mend
from seriatim.pipeline.project.streaming import Stream
from seriatim.store.readmodel import operating
from seriatim.store.readmodel.model import Moved
from seriatim.store.readmodel.port import Progress

LEASE_S = 10.0
_GLANCE_S = 0.5  # how often a runner looks whether it may go on
_FAR = 5  # so many small batches behind, large ones are quicker
_PATIENCE_S = 30.0  # the longest pause between two tries of a live run


class Runner:
    """The one who runs a projection, as long as the lease holds."""

    def __init__(
        self,
        job: Job,
        *,
        live: bool,
        checkpoint: str | None,
        lease_s: float,
        until: Callable[[], bool],
    ) -> None:
        self._job = job
        self._name = job.projection.name
        self._live = live
        self._checkpoint = checkpoint
        self._lease_s = lease_s
        self._until = until
        self._owner = ""
        self._pid = 0
        self._failed = 0
        self._began = (time.monotonic(), 0)

    def run(self) -> Progress:
        """Go on until the log's end, or live; wait while another runner has the lease."""
        self._job.begin()
        while not self._done():
            pass
        return operating.known(self._job.model, self._name)

    def _done(self) -> bool:
        """Work under one lease; tell whether that was all."""
        token = self._claimed()
        if token is None:
            return True
        try:
            with kept_lease(self._job.target, self._name, token, self._lease_s), translated():
                return self._worked(token)
        except (LeaseLost, Moved):
            return self._until()  # a rebuild was switched to, or another runner was faster
        except SeriatimError as error:
            if not self._live or not error.retryable:
                raise
            return self._waited(error)

    def _worked(self, token: int) -> bool:
        while not self._until():
            progress = self._job.begin()
            if progress.status != "ready":
                self._wait_or_raise(progress)
                continue
            if progress.held_until is not None:  # ends by itself, and soon
                time.sleep(_GLANCE_S)
                continue
            mend(self._job, token=token)
            position = self._caught_up(progress.position, token)
            self._failed = 0
            if not self._live:
                return True
            self._follow(position, token)
        return True

    def _caught_up(self, position: int, token: int) -> int:
        """Apply batches up to where the log ends now."""
        self._began = (time.monotonic(), position)
        head = self._job.store.head()
        while position < head and not self._until():
            end = min(head, position + self._job.batch_events)
            position = apply_batch(self._job, (position, end), position, Side(token))
            self._tell(position)
        return position

    def _follow(self, position: int, token: int) -> None:
        """Stream what comes, until something else is wanted."""

        def apply(given: DataFrame, at: int) -> int:
            reached = apply_batch(self._job, given, at, Side(token))
            self._tell(reached)
            return reached

        self._began = (time.monotonic(), position)
        with Stream(self._job, position, apply, self._checkpoint) as stream:
            while not stream.ended(_GLANCE_S):
                if self._until() or self._wanted(token):
                    return

    def _wanted(self, token: int) -> bool:
        progress = operating.known(self._job.model, self._name)
        if progress.token != token:
            raise LeaseLost(f"projection {self._name} has another runner, or was rebuilt")
        if self._job.store.head() - progress.position > _FAR * SMALL_EVENTS:
            return True  # more than a stream of small batches is made for
        if progress.status != "ready" or progress.held_until is not None:
            return True
        return any(one.again for one in self._job.model.failures(self._name))

    # -- waiting

    def _wait_or_raise(self, progress: Progress) -> None:
        if progress.status == "failed":
            failures = operating.failures(self._job.model, self._name)
            stops = [one for one in failures if one.status == "stopped"]
            if stops:
                raise self._job.stopped(stops[0].failure)
            self._job.model.set_status(self._name, "ready")
            return
        if not self._live:
            msg = f"projection {self._name} is paused: seriatim project resume {self._name}"
            raise Conflict(msg, details={"projection": self._name})
        time.sleep(_GLANCE_S)

    def _waited(self, error: SeriatimError) -> bool:
        """Wait after a failure that may pass, each time for longer; tell whether to end."""
        self._failed += 1
        pause = min(_PATIENCE_S, 0.5 * 2**self._failed)
        self._job.watcher(Report(self._name, f"waits {pause:.0f} s ({error.code})", 0, 0, 0.0))
        ends = time.monotonic() + pause
        while time.monotonic() < ends and not self._until():
            time.sleep(min(_GLANCE_S, pause))
        return self._until()

    def _claimed(self) -> int | None:
        if self._pid != os.getpid():  # a forked child is another runner
            self._owner, self._pid = uuid.uuid4().hex, os.getpid()
        told = False
        while not self._until():
            token = self._job.model.claim(self._name, self._owner, self._lease_s)
            if token is not None:
                return token
            if not told:
                told = True
                self._job.watcher(Report(self._name, "waits for another runner", 0, 0, 0.0))
            time.sleep(min(_GLANCE_S, self._lease_s / 4))
        return None

    def _tell(self, position: int) -> None:
        since, at = self._began
        pace = (position - at) / max(time.monotonic() - since, 1e-6)
        report = Report(self._name, "run", position, self._job.store.head(), pace)
        self._job.watcher(report)
