"""A projection job: one projection, its log and its read model, on Spark."""

from __future__ import annotations

from typing import Any, Self

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from seriatim.config import Settings
from seriatim.core.errors import Conflict, LogIdentityChanged, ProjectionFailed
from seriatim.core.event import DEFAULT_TENANT, LogIdentity
from seriatim.core.fold import Failure
from seriatim.core.projection import Projection
from seriatim.core.tenants import ALL_TENANTS
from seriatim.factory import absolute_url, open_read_model, open_store, read_model_url
from seriatim.log.base import BaseLog
from seriatim.log.cursors import find_cursor_problem
from seriatim.pipeline.job_loop import ProgressCallback
from seriatim.pipeline.project import dataframes, key_partitions
from seriatim.pipeline.project.fold_outcome import OUTCOME_SCHEMA, FoldOutcome, decode_outcome
from seriatim.pipeline.project.fold_tasks import FoldTask, prepare_for_tasks
from seriatim.pipeline.scan.options import parse_source_options
from seriatim.pipeline.source.dataframe import encode_names, events
from seriatim.pipeline.source.spark_session import create_job_session
from seriatim.store.readmodel.port import Progress

BATCH_EVENTS = 200_000
DRIVER_FOLD_MAX_EVENTS = 2_000  # a range of at most this size is folded in the driver

PositionRange = tuple[int, int]  # after (exclusive) and until (inclusive)
BatchInput = DataFrame | PositionRange  # a batch: the DataFrame of a stream, or a range of the log


class ProjectionJob:
    """A projection, its log and its read model, on Spark."""

    def __init__(
        self,
        spark: SparkSession,
        projection: Projection,
        url: str,
        *,
        target: str | None = None,
        tenant_id: str = DEFAULT_TENANT,
        archive: str | None = None,
        batch_events: int = BATCH_EVENTS,
        on_progress: ProgressCallback | None = None,
        journal: BaseLog | None = None,
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
            on_progress: Called with a `RunReport` after each batch.
            journal: The log in which the actions of operators are recorded: rebuild, retry, skip,
                pause and resume. None records nothing: a job needs only to read its log.

        Raises:
            InvalidArgument: The projection cannot be sent to Spark's tasks.

        """
        self.task_projection = prepare_for_tasks(projection)
        self.spark = create_job_session(spark)
        self.projection = projection
        self.journal = journal
        self.url = absolute_url(url)  # tasks may run in another working directory
        self.tenant_id = tenant_id
        self.target = absolute_url(target or read_model_url(url, tenant_id))
        self.archive = archive
        self.batch_events = batch_events
        self.on_progress = on_progress or (lambda _: None)
        self.store = open_store(url, Settings(), create=False)
        self.model = open_read_model(self.target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the log and the read model.

        Example:
            projector.close()
        """
        self.model.close()
        self.store.close()

    # -- reading and folding events

    @property
    def _tenant(self) -> str | None:
        return None if self.tenant_id == ALL_TENANTS else self.tenant_id

    @property
    def _types(self) -> tuple[str, ...] | None:
        return None if "*" in self.projection.events else self.projection.events

    @property
    def options(self) -> dict[str, str]:
        """The source's options that select this projection's events."""
        as_records = not self.projection.is_frame
        values = {
            "url": self.url,
            "tenant": self._tenant,
            "types": encode_names(self._types),
            "streamType": encode_names(self.projection.stream_types),
            "columns": encode_names(dataframes.required_columns(self.projection))
            if as_records
            else None,
            "records": "true" if as_records else None,
        }
        return {name: value for name, value in values.items() if value is not None}

    def events(self, after: int, until: int) -> DataFrame:
        """Return this projection's events after one position and up to another.

        With an archive, sealed events are read from there.
        """
        parts = 1 if until - after <= DRIVER_FOLD_MAX_EVENTS else None
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
    def partition_count(self) -> int:
        """The number of partitions over which keys are distributed."""
        return int(self.spark.conf.get("spark.sql.shuffle.partitions") or 1)

    def fold_in_tasks(
        self, batch: BatchInput, task: FoldTask, *, partitions: int | None = None
    ) -> FoldOutcome:
        """Fold a batch in Spark tasks and combine their outcomes.

        If the key consists of columns, each task reads its own keys from the log. Otherwise Spark
        shuffles the events by key.
        """
        parts = partitions or self.partition_count
        columns = self._partition_columns(parts)
        keyless = None
        if isinstance(batch, DataFrame) or columns is None:
            # Only a rebuild compares the number of events read with the log.
            keyless = dataframes.KeylessCount() if task.shadow else None
            outcome_frame = dataframes.fold_events(
                self._frame(batch), task, partitions=parts, keyless=keyless
            )
        else:
            partition_task = key_partitions.PartitionFoldTask(
                task=task,
                url=self.url,
                scan_spec=parse_source_options(self.options).scan.with_all_columns,
                columns=columns,
                after=batch[0],
                until=batch[1],
                partitions=parts,
            )
            outcome_frame = key_partitions.fold_partitions(self.spark, partition_task)
        return self._add_keyless(
            batch, decode_outcome(self.projection, outcome_frame.toArrow()), keyless
        )

    def _add_keyless(
        self, batch: BatchInput, outcome: FoldOutcome, keyless: dataframes.KeylessCount | None
    ) -> FoldOutcome:
        """Add the number of events without a key to the number of events read."""
        if keyless is not None:
            dropped = keyless.result()
            if dropped is None:
                dropped = self._frame(batch).select("position").count()
            outcome.events_read += dropped
        return outcome

    def _partition_columns(self, parts: int) -> tuple[str, ...] | None:
        """Return the columns by which tasks select their own keys in the log, or None."""
        if self.archive or parts > key_partitions.MAX_PARTITIONS:
            return None
        return key_partitions.find_key_columns(self.projection)

    def count_stages(self, parts: int) -> int:
        """Return the number of Spark stages that fold a range of the log in `parts` tasks."""
        return 2 if self._partition_columns(parts) is None else 1

    def _frame(self, batch: BatchInput) -> DataFrame:
        return batch if isinstance(batch, DataFrame) else self.events(*batch)

    def fold_in_driver(self, batch: BatchInput, task: FoldTask) -> FoldOutcome:
        """Fold a small batch in the driver, which is faster than a second Spark stage."""
        keyless = dataframes.KeylessCount() if task.shadow else None
        prepared = dataframes.prepare_events(self._frame(batch), self.projection, keyless)
        table = prepared.toArrow().sort_by("position")
        batches = task.fold_batches(table.to_batches(), self.model)
        outcome = decode_outcome(self.projection, pa.Table.from_batches(batches, OUTCOME_SCHEMA))
        return self._add_keyless(batch, outcome, keyless)

    def event_id_at(self, position: int) -> str:
        """Return the id of the event at a position; it identifies the history up to there."""
        return (self.store.event_id_at(position) or "") if position else ""

    # -- progress

    def begin(self, *, shadow: bool = False) -> Progress:
        """Return the projection's progress, created if it is new, after `check_progress`."""
        log = self.store.identity()
        progress = self.model.create_projection(self.projection, self.tenant_id, log, shadow=shadow)
        self.check_progress(progress)
        return progress

    def check_progress(self, progress: Progress) -> None:
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
        problem = find_cursor_problem(
            self.store, identity, progress.position, progress.last_event_id
        )
        if problem is not None:
            msg = (
                f"projection {name} {problem}: the log was restored or replaced. Run seriatim "
                f"project rebuild {name} to build the read model from this log"
            )
            raise LogIdentityChanged(
                msg, details={"projection": name, "position": progress.position}
            )

    def stopped_error(self, failure: Failure) -> ProjectionFailed:
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
