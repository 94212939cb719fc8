"""The Spark engine of projections: batches in tasks, parallel rebuilds, live streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Self

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from seriatim.config import Settings
from seriatim.core.event import DEFAULT_TENANT
from seriatim.core.fold import TenantKey
from seriatim.core.projection import Projection
from seriatim.core.tenants import ALL_TENANTS
from seriatim.factory import absolute_url, open_read_model, open_store, read_model_url
from seriatim.log.base import BaseLog
from seriatim.pipeline.project import dataframes, key_partitions
from seriatim.pipeline.project.fold_outcome import OUTCOME_SCHEMA, decode_outcome
from seriatim.pipeline.project.fold_tasks import (
    KEY_COLUMN,
    FoldTask,
    FrameLoadTask,
    LoadTask,
    prepare_for_tasks,
)
from seriatim.pipeline.project.live_stream import LiveStream
from seriatim.pipeline.project.stage_progress import report_progress
from seriatim.pipeline.scan.options import ScanSpec, parse_source_options
from seriatim.pipeline.scan.scanner import count_events
from seriatim.pipeline.source.dataframe import encode_names, events
from seriatim.pipeline.source.spark_session import create_job_session
from seriatim.pipeline.source.watermarks import find_covered_range
from seriatim.pipeline.spark_errors import annotate_errors, translate_spark_errors
from seriatim.runs.job_loop import ProgressCallback
from seriatim.runs.projection_batch import apply_batch
from seriatim.runs.projection_job import (
    Ended,
    FoldOutcome,
    ModelLease,
    PositionRange,
    ProjectionJob,
)
from seriatim.store.readmodel.port import ProjectionStep

BATCH_EVENTS = 200_000
DRIVER_FOLD_MAX_EVENTS = 2_000  # a range of at most this size is folded in the driver

_POLL_S = 0.5  # how often a run that follows the log checks whether it may continue
_FOLLOW_MAX_LAG = 5 * DRIVER_FOLD_MAX_EVENTS
_PART_EVENTS = 2_000_000  # the most events per task, if keys are evenly distributed

BatchInput = DataFrame | PositionRange  # a batch: the DataFrame of a stream, or a range of the log


def fits_driver(events: int) -> bool:
    """Return whether the driver folds a range of this many events itself."""
    return events <= DRIVER_FOLD_MAX_EVENTS


class SparkProjection(ProjectionJob):
    """A projection, its log and its read model, on Spark."""

    follow_max_lag = _FOLLOW_MAX_LAG

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
        self.journal = journal
        self.url = absolute_url(url)  # tasks may run in another working directory
        self.target = absolute_url(target or read_model_url(url, tenant_id))
        self.archive = archive
        self.batch_events = batch_events
        self.checkpoint: str | None = None
        super().__init__(
            projection,
            open_store(url, Settings(), create=False),
            open_read_model(self.target),
            tenant_id=tenant_id,
            on_progress=on_progress,
        )

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

    # -- the engine of the runner and the rebuild

    def fold_range(self, after: int, until: int, *, shadow: bool) -> FoldOutcome:
        """Compute the changes of a range of the log: a small one in the driver."""
        if self.projection.is_frame:
            return self._transform(self.events(after, until), after, (after, until))
        task = FoldTask(projection=self.projection, target=self.target, shadow=shadow, after=after)
        fold = self.fold_in_driver if fits_driver(until - after) else self.fold_in_tasks
        outcome = fold((after, until), task)
        outcome.position_range = after, until
        return outcome

    def fold_key(self, owner: TenantKey, until: int) -> tuple[FoldOutcome, list[int]]:
        """Fold one key from its first event."""
        tenant_id, key = owner
        events = dataframes.add_key_column(self.events(0, until), self.projection).where(
            (f.col("tenant_id") == tenant_id) & (f.col(KEY_COLUMN) == key)
        )
        positions: list[int] = events.select("position").toArrow().column(0).to_pylist()
        task = FoldTask(projection=self.projection, target=self.target, until=until, only_key=owner)
        return self.fold_in_tasks(events.drop(KEY_COLUMN), task, partitions=1), positions

    def build_shadow(self, lease: ModelLease, until: int, report: Callable[[float], None]) -> None:
        """Fold the log in tasks that store their own keys."""
        # A multiple of the partition count, so that all cores are busy until the end.
        parts = self.partition_count * -(-until // (self.partition_count * _PART_EVENTS))
        with report_progress(self.spark, report, self.count_stages(parts)):
            outcome = self._load_shadow(lease, until, parts)
        first = outcome.first_failure
        if first is not None and self.projection.on_failure == "stop":
            raise self.stopped_error(first)
        lease.events_read += outcome.events_read
        step = ProjectionStep(
            after=0,
            until=until,
            last_event_id=self.event_id_at(until),
            failures=outcome.step.failures,
        )
        self.model.commit(self.projection, step, token=lease.token, shadow=True)

    def _load_shadow(self, lease: ModelLease, until: int, parts: int) -> FoldOutcome:
        """Fold the events up to a position in tasks that write to the shadow."""
        if self.projection.is_frame:
            rows = dataframes.transform_events(
                self.events(0, until), self.projection, self.tenant_id
            )
            loader = FrameLoadTask(
                projection=self.task_projection,
                target=self.target,
                until=until,
                owner=lease.owner,
            )
            return decode_outcome(self.projection, dataframes.store_rows(rows, loader).toArrow())
        fold_loader = LoadTask(
            projection=self.projection, target=self.target, shadow=True, owner=lease.owner
        )
        return self.fold_in_tasks((0, until), fold_loader, partitions=parts)

    def count_stored(self, after: int, until: int) -> int | None:
        """Return how many events the log holds; None where only an archive could differ."""
        # Of a DataFrame projection the number of events read is not known.
        if self.projection.is_frame and self.archive is None:
            return None
        scan_spec = parse_source_options(self.options).scan
        if not scan_spec.is_filtered:
            return until - after  # positions are gapless
        # In a task: the driver may have the SQLite log open, and must not open it with a second
        # library in the same process.
        counter = _CountTask(self.url, scan_spec, after, until)
        rows = self.spark.range(0, 1, 1, 1).mapInArrow(counter, "events long").collect()
        return sum(int(row[0]) for row in rows)

    def count_read(self, after: int, until: int) -> int:
        """Count the events of a range in a separate read; tasks may have been repeated."""
        return self.events(after, until).select("position").count()

    def follow(
        self, position: int, lease: ModelLease, report: Callable[[int], None], ended: Ended
    ) -> None:
        """Apply new events from a stream."""

        def apply(frame: DataFrame, after: int) -> int:
            compute = partial(self._fold_stream_batch, frame, after)
            reached = apply_batch(self, compute, after, lease)
            report(reached)
            return reached

        name, events = self.projection.name, self._stream(position)
        with LiveStream(name, events, position, apply, self.checkpoint) as stream:
            while not stream.wait_ended(_POLL_S):
                if ended():
                    return

    def _stream(self, position: int) -> DataFrame:
        """Return the stream of this projection's events after a position."""
        reader = self.spark.readStream.format("seriatim").options(
            **self.options,
            startingPosition=str(position),
            maxEventsPerBatch=str(min(self.batch_events, DRIVER_FOLD_MAX_EVENTS)),
            watermarks="true",  # a batch without events of the projection moves the cursor too
        )
        events = reader.load()
        return (
            events
            if self.projection.is_frame
            else dataframes.prepare_events(events, self.projection)
        )

    def _fold_stream_batch(self, frame: DataFrame, after: int, until: int | None) -> FoldOutcome:
        """Compute the events of a stream's batch after a position, and up to another if given."""
        if self.projection.is_frame:
            return self._transform_stream_batch(frame, after)
        task = FoldTask(projection=self.projection, target=self.target, after=after, until=until)
        # Batches of a stream are small: fold them in the driver.
        return self.fold_in_driver(frame, task)

    def translate_errors(self) -> AbstractContextManager[None]:
        """Turn the errors of Spark into Seriatim's."""
        return translate_spark_errors()

    @property
    def check_command(self) -> str:
        """The command that finds the damage if a rebuild read too few events."""
        return "seriatim archive verify" if self.archive else "seriatim verify"

    def _transform_stream_batch(self, batch: DataFrame, after: int) -> FoldOutcome:
        """Run a DataFrame projection on a batch of a stream."""
        # Persisted, because the batch is evaluated twice: for its watermarks and for its rows.
        events = batch.persist()
        try:
            watermarks = (
                events.where(dataframes.is_watermark())
                .select("append_position", "position")
                .collect()
            )
            # The first batch of a stream may be empty, without a watermark.
            position_range = find_covered_range((row[0], row[1]) for row in watermarks) or (
                after,
                after,
            )
            return self._transform(events, after, position_range)
        finally:
            events.unpersist()

    def _transform(
        self, events: DataFrame, after: int, position_range: PositionRange
    ) -> FoldOutcome:
        """Run a DataFrame projection on events, and merge its rows by key."""
        new = events.where(f.col("position") > after)
        rows = dataframes.transform_events(new, self.projection, self.tenant_id)
        encoded = dataframes.encode_rows(rows, self.projection, position_range[1])
        outcome = decode_outcome(self.projection, encoded.toArrow())
        outcome.position_range = position_range
        return outcome


class _CountTask(msgspec.Struct, frozen=True):
    """Counts the events of a range that a scan selects, in the database."""

    url: str
    scan_spec: ScanSpec
    after: int
    until: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the count; the input row only starts the task."""
        with annotate_errors():
            for _ in batches:
                count = count_events(self.url, self.scan_spec, self.after, self.until)
                yield pa.RecordBatch.from_pydict({"events": [count]})
