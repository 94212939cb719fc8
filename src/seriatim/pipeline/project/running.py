"""Catch-up and live: a stream of batches, each folded and stored with its cursor at once."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from seriatim.core.errors import BackendFailure, Conflict, LeaseLost
from seriatim.opening import open_read_model
from seriatim.pipeline.failures import failure_of
from seriatim.pipeline.project.applying import Gap, Side, apply_batch
from seriatim.pipeline.project.job import Job, Report
from seriatim.pipeline.project.mending import mend
from seriatim.store.readmodel.model import Moved
from seriatim.store.readmodel.port import Progress

LEASE_S = 10.0
_GLANCE_S = 0.5  # how often a runner looks for pauses and retries


class Runner:
    """The one who runs a projection, as long as the lease holds."""

    def __init__(
        self,
        job: Job,
        *,
        live: bool,
        checkpoint: str | None = None,
        lease_s: float = LEASE_S,
        until: Callable[[], bool] | None = None,
    ) -> None:
        self._job = job
        self._live = live
        self._checkpoint = checkpoint
        self._lease_s = lease_s
        self._until = until or (lambda: False)
        self._owner = uuid.uuid4().hex
        self._name = job.projection.name
        # Renewals must not wait for the transaction of a batch.
        self._watch = open_read_model(job.target)
        self._token = 0
        self._position = 0
        self._raised: BaseException | None = None
        self._began = (time.monotonic(), 0)
        self._renewed = 0.0

    def run(self) -> Progress:
        """Go on until the log's end, or for ever; wait while another runner has the lease."""
        try:
            self._job.begin()
            self._claim()
            with self._folder() as checkpoint:
                while self._once(checkpoint) and not self._until():
                    pass
            return self._progress()
        finally:
            self._watch.renew(self._name, self._token, 0)
            self._watch.close()

    def _once(self, checkpoint: Path) -> bool:
        """Run one stream; tell whether another is to follow."""
        progress = self._job.begin()
        if progress.token != self._token:
            self._claim()  # a rebuild came in between
        if self._waits(progress):
            return True
        mend(self._job, token=self._token)
        self._position = progress.position
        self._began = (time.monotonic(), progress.position)
        self._raised = None
        query = self._start(checkpoint)
        try:
            again = self._attend(query)
        except Gap:
            shutil.rmtree(checkpoint)
            return True
        except (LeaseLost, Moved):
            self._claim()
            shutil.rmtree(checkpoint)
            return True
        finally:
            query.stop()
        return again

    def _waits(self, progress: Progress) -> bool:
        if progress.status == "failed":
            stops = [one for one in self._watch.failures(self._name) if one.status == "stopped"]
            if stops:
                raise self._job.stopped(stops[0].failure)
            self._watch.set_status(self._name, "ready")
        if progress.status != "paused":
            return False
        if not self._live:
            msg = f"projection {self._name} is paused: seriatim project resume {self._name}"
            raise Conflict(msg, details={"projection": self._name})
        self._renew()
        time.sleep(_GLANCE_S)
        return True

    # -- the stream

    def _start(self, checkpoint: Path) -> StreamingQuery:
        reader = self._job.spark.readStream.format("seriatim").options(
            **self._job.options,
            startingPosition=str(self._position),
            maxEventsPerBatch=str(self._job.batch_events),
            marks="true",
        )
        if self._job.archive is not None:
            reader = reader.option("archive", self._job.archive)
        writer = (
            reader.load()
            .writeStream.foreachBatch(self._batch)
            .queryName(f"seriatim_{self._name}_{self._owner[:8]}_{time.monotonic_ns()}")
            .option("checkpointLocation", str(checkpoint))
        )
        if self._live:
            return writer.trigger(processingTime="0 seconds").start()
        return writer.trigger(availableNow=True).start()

    def _batch(self, given: DataFrame, _batch_id: int) -> None:
        # Spark keeps only the text of what is raised here, and the number restarts at 0 with a
        # new checkpoint: the position alone guards against doing a batch twice.
        try:
            self._position = apply_batch(self._job, given, self._position, Side(self._token))
            self._tell()
        except BaseException as error:
            self._raised = error
            raise

    def _attend(self, query: StreamingQuery) -> bool:
        """Keep the lease while the stream runs; tell whether it was stopped to begin anew."""
        while not self._ended(query):
            self._renew()
            if self._live and (self._until() or self._wanted()):
                return True
        return False

    def _ended(self, query: StreamingQuery) -> bool:
        try:
            return bool(query.awaitTermination(_GLANCE_S))  # type: ignore[arg-type]
        except PySparkException as error:
            if self._raised is not None:
                raise self._raised from None
            raise failure_of(error) from error

    def _wanted(self) -> bool:
        progress = self._progress()
        marked = any(one.again for one in self._watch.failures(self._name))
        return marked or progress.status != "ready" or progress.token != self._token

    def _tell(self) -> None:
        since, at = self._began
        pace = (self._position - at) / max(time.monotonic() - since, 1e-6)
        head = self._job.store.head()
        self._job.watcher(Report(self._name, "run", self._position, head, pace))

    # -- the lease

    def _claim(self) -> None:
        told = False
        while (token := self._watch.claim(self._name, self._owner, self._lease_s)) is None:
            if not told:
                told = True
                self._job.watcher(Report(self._name, "waits for another runner", 0, 0, 0.0))
            time.sleep(min(_GLANCE_S, self._lease_s / 4))
        self._token = token
        self._renewed = time.monotonic()

    def _renew(self) -> None:
        if time.monotonic() - self._renewed < self._lease_s / 4:
            return
        if not self._watch.renew(self._name, self._token, self._lease_s):
            raise LeaseLost(f"another runner has projection {self._name}")
        self._renewed = time.monotonic()

    def _progress(self) -> Progress:
        found = self._watch.progress(self._name)
        if found is None:
            msg = f"projection {self._name} was dropped while it ran"
            raise BackendFailure(msg, retryable=False)
        return found

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Give Spark a place for its notes; what counts is the cursor in the read model."""
        if self._checkpoint is not None:
            yield Path(self._checkpoint)
            return
        with tempfile.TemporaryDirectory(prefix="seriatim-checkpoint-") as folder:
            yield Path(folder) / "checkpoint"
