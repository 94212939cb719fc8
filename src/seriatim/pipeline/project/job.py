"""A projection job: one projection, its log and its read model, on Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from seriatim.config import Settings
from seriatim.core.errors import Conflict, LogIdentityChanged, ProjectionFailed
from seriatim.core.event import DEFAULT_TENANT, LogIdentity
from seriatim.core.fold import Failure
from seriatim.core.projection import Projection
from seriatim.core.tenants import EVERY_TENANT
from seriatim.log.cursors import problem_with
from seriatim.opening import absolute_url, open_read_model, open_store, read_model_url
from seriatim.pipeline.events import events, name_list
from seriatim.pipeline.options import source_options
from seriatim.pipeline.project import frames, shares
from seriatim.pipeline.project.folding import Folder, sendable
from seriatim.pipeline.project.outcome import OUTCOME, Outcome, outcome_of
from seriatim.pipeline.session import own_session
from seriatim.store.readmodel.port import Progress

BATCH_EVENTS = 200_000
SMALL_EVENTS = 2_000  # a range of at most this size is folded in the driver


class Report(msgspec.Struct, frozen=True):
    """The progress of a run, passed to the progress callback.

    Attributes:
        projection: The name of the projection or handler, or "publisher".
        doing: What the run is doing, such as "run", "rebuild" or "retrying in 4 s".
        position: The position reached.
        head: The head of the log.
        events_per_s: The rate since the start.

    """

    projection: str
    doing: str
    position: int
    head: int
    events_per_s: float

    @property
    def lag(self) -> int:
        """The number of events between the position and the head."""
        return max(0, self.head - self.position)

    @property
    def eta_s(self) -> float | None:
        """The remaining seconds at the current rate, or None if the rate is 0."""
        return self.lag / self.events_per_s if self.events_per_s else None


Watcher = Callable[[Report], None]

Range = tuple[int, int]  # after (exclusive) and until (inclusive)
Given = DataFrame | Range  # a batch: the DataFrame of a stream, or a range of the log


class Job:
    """A projection, its log and its read model, on Spark."""

    def __init__(  # noqa: PLR0913 - the options of a projection
        self,
        spark: SparkSession,
        projection: Projection,
        url: str,
        *,
        target: str | None = None,
        tenant_id: str = DEFAULT_TENANT,
        archive: str | None = None,
        batch_events: int = BATCH_EVENTS,
        watcher: Watcher | None = None,
    ) -> None:
        """Open the log and the read model.

        Args:
            spark: The session that runs the tasks.
            projection: The declaration.
            url: The log.
            target: The read model; by default it is beside the log.
            tenant_id: The tenant to project, or `*` for all.
            archive: An archive of the log, from which sealed events are read.
            batch_events: How many events a batch has at most.
            watcher: Called with a `RunReport` after each batch.

        Raises:
            InvalidArgument: The projection cannot be sent to Spark's tasks.

        """
        self.sent = sendable(projection)
        self.spark = own_session(spark)
        self.projection = projection
        self.url = absolute_url(url)  # tasks may run in another working directory
        self.tenant_id = tenant_id
        self.target = absolute_url(target or read_model_url(url, tenant_id))
        self.archive = archive
        self.batch_events = batch_events
        self.watcher = watcher or (lambda _: None)
        self.store = open_store(url, Settings(), create=False)
        self.model = open_read_model(self.target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the log and the read model."""
        self.model.close()
        self.store.close()

    # -- reading and folding events

    @property
    def _tenant(self) -> str | None:
        return None if self.tenant_id == EVERY_TENANT else self.tenant_id

    @property
    def _types(self) -> tuple[str, ...] | None:
        return None if "*" in self.projection.events else self.projection.events

    @property
    def options(self) -> dict[str, str]:
        """The source's options that select this projection's events."""
        as_records = not self.projection.is_frame
        given = {
            "url": self.url,
            "tenant": self._tenant,
            "types": name_list(self._types),
            "streamType": name_list(self.projection.stream_types),
            "columns": name_list(frames.needed(self.projection)) if as_records else None,
            "packed": "true" if as_records else None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def events(self, after: int, until: int) -> DataFrame:
        """Return this projection's events after one position and up to another.

        With an archive, sealed events are read from there.
        """
        parts = 1 if until - after <= SMALL_EVENTS else None
        if self.archive is None:
            reader = self.spark.read.format("seriatim").options(**self.options)
            reader = reader.options(startingPosition=after, endingPosition=until)
            return (reader.option("partitions", parts) if parts else reader).load()
        return events(
            self.spark,
            self.url,
            after=after,
            until=until,
            tenant=self._tenant,
            types=self._types,
            stream_types=self.projection.stream_types,
            archive=self.archive,
            partitions=parts,
        )

    @property
    def spread(self) -> int:
        """The number of partitions over which keys are distributed."""
        return int(self.spark.conf.get("spark.sql.shuffle.partitions") or 1)

    def outcome(self, given: Given, folder: Folder, *, spread: int | None = None) -> Outcome:
        """Fold a batch in Spark tasks and combine their outcomes.

        If the key consists of columns, each task reads its own keys from the log. Otherwise Spark
        shuffles the events by key.
        """
        parts = spread or self.spread
        columns = self._partition_columns(parts)
        keyless = None
        if isinstance(given, DataFrame) or columns is None:
            keyless = frames.KeylessCount() if folder.shadow else None
            made = frames.folded(self._frame(given), folder, spread=parts, keyless=keyless)
        else:
            task = shares.ShareFolder(
                folder=folder,
                url=self.url,
                wanted=source_options(self.options).scan.whole,
                columns=columns,
                after=given[0],
                until=given[1],
                shares=parts,
            )
            made = shares.folded(self.spark, task)
        return self._add_keyless(given, outcome_of(self.projection, made.toArrow()), keyless)

    def _add_keyless(
        self, given: Given, outcome: Outcome, keyless: frames.KeylessCount | None
    ) -> Outcome:
        """Add the number of events without a key to the number of events read."""
        if keyless is not None:
            dropped = keyless.result()
            if dropped is None:
                dropped = self._frame(given).select("position").count()
            outcome.read += dropped
        return outcome

    def _partition_columns(self, parts: int) -> tuple[str, ...] | None:
        """Return the columns by which tasks select their own keys in the log, or None."""
        if self.archive or parts > shares.MOST:
            return None
        return shares.key_columns(self.projection)

    def stages(self, parts: int) -> int:
        """Return the number of Spark stages that fold a range of the log in `parts` tasks."""
        return 2 if self._partition_columns(parts) is None else 1

    def _frame(self, given: Given) -> DataFrame:
        return given if isinstance(given, DataFrame) else self.events(*given)

    def outcome_here(self, given: Given, folder: Folder) -> Outcome:
        """Fold a small batch in the driver, which is faster than a second Spark stage."""
        keyless = frames.KeylessCount() if folder.shadow else None
        ready = frames.ready(self._frame(given), self.projection, keyless)
        found = ready.toArrow().sort_by("position")
        lines = folder.outcome(found.to_batches(), self.model)
        outcome = outcome_of(self.projection, pa.Table.from_batches(lines, OUTCOME))
        return self._add_keyless(given, outcome, keyless)

    def tip(self, position: int) -> str:
        """Return the id of the event at a position; it identifies the history up to there."""
        return (self.store.event_id_at(position) or "") if position else ""

    # -- progress

    def begin(self, *, shadow: bool = False) -> Progress:
        """Return the projection's progress, created if it is new, after `check_progress`."""
        log = self.store.identity()
        progress = self.model.begin(self.projection, self.tenant_id, log, shadow=shadow)
        self.check(progress)
        return progress

    def check(self, progress: Progress) -> None:
        """Check that the read model was built from this declaration and this log.

        Raises:
            Conflict: The declaration has changed.
            LogIdentityChanged: The log was restored or replaced.

        """
        name = self.projection.name
        if progress.declaration != self.projection.declaration:
            msg = (
                f"the declaration of projection {name} has changed: run seriatim project rebuild "
                f"{name}"
            )
            raise Conflict(msg, details={"projection": name})
        identity = LogIdentity(progress.log_id, progress.epoch)
        problem = problem_with(self.store, identity, progress.position, progress.tip)
        if problem is not None:
            msg = (
                f"projection {name} {problem}: the log was restored or replaced. Run seriatim "
                f"project rebuild {name} to build the read model from this log"
            )
            raise LogIdentityChanged(
                msg, details={"projection": name, "position": progress.position}
            )

    def stopped(self, failure: Failure) -> ProjectionFailed:
        """Build the error for an event that stops the projection."""
        name = self.projection.name
        msg = (
            f"projection {name} stopped at position {failure.position}: event "
            f"{failure.event_id} ({failure.event_type}) of key {failure.key!r:.200} failed with "
            f"{failure.reason}; fix the fold and run seriatim project retry {name}, or run "
            f"seriatim project skip {name} {failure.position}"
        )
        details: dict[str, Any] = {"projection": name, **msgspec.structs.asdict(failure)}
        return ProjectionFailed(msg, details=details)
