"""Stream reader of the Spark data source: offsets bound to one log, batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.streaming import datasource as limits

from seriatim.core.errors import LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.pipeline.archive.catalog import Archive, open_archive
from seriatim.pipeline.scan.database import (
    DRIVER_ERRORS,
    ReadConnection,
    parse_database_url,
    translate_driver_error,
)
from seriatim.pipeline.scan.options import MAX_POSITION, SourceOptions, option_error
from seriatim.pipeline.scan.scanner import LogState, query_log_state
from seriatim.pipeline.source.partition_reader import (
    RangePartition,
    plan_partitions,
    read_partition,
)


class LogOffset(msgspec.Struct, frozen=True):
    """The progress of a streaming query in one log, as Spark's checkpoint stores it.

    Attributes:
        position: The last position that was read.
        log_id: The id of the log.
        epoch: The epoch of the log.
        last_event_id: The id of the event at `position`, empty at position 0.
    """

    position: int
    log_id: str
    epoch: int
    # Stored as "tip" in the checkpoints of running queries: the stored name must not change.
    last_event_id: str = msgspec.field(name="tip")

    @classmethod
    def from_dict(cls, encoded: dict[str, Any]) -> LogOffset:
        """Decode an offset from a checkpoint.

        Raises:
            LogIdentityChanged: The checkpoint was written by another data source.
        """
        try:
            return msgspec.convert(encoded, cls)
        except msgspec.ValidationError as error:
            msg = (
                f"the checkpoint does not contain an offset of a log ({error}): it may belong to "
                "another data source; use a new checkpoint location"
            )
            raise LogIdentityChanged(msg) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the form that Spark stores in a checkpoint."""
        encoded: dict[str, Any] = msgspec.to_builtins(self)
        return encoded

    def check_log(self, state: LogState, event_id: str | None) -> None:
        """Raise if this offset does not belong to the history of the log.

        Args:
            state: The state of the log.
            event_id: The id of the log's event at this offset's position.

        Raises:
            LogIdentityChanged: The log was restored or replaced since the offset was stored.
        """
        problem = None
        if self.log_id != state.identity.log_id:
            problem = "belongs to another log"
        elif self.epoch != state.identity.epoch:
            problem = f"is of epoch {self.epoch}, the log is in epoch {state.identity.epoch}"
        elif self.position > state.head:
            problem = f"is at position {self.position}, the log ends at {state.head}"
        elif self.position and event_id != self.last_event_id:
            problem = f"has another event at position {self.position} than the log"
        if problem is not None:
            msg = (
                f"the checkpoint {problem}: the log was restored or replaced; check the output "
                "of the query, then start it with a new checkpoint"
            )
            raise LogIdentityChanged(msg, details={"position": self.position})


class LogProbe:
    """Reads the state of a log repeatedly and keeps a Postgres connection open in between."""

    def __init__(self, url: str) -> None:
        self._address = parse_database_url(url)
        self._connection: ReadConnection | None = None

    def read_state(self, at: int, until: int) -> LogState:
        """Read the state of the log; reconnect once if the open connection is broken.

        Args:
            at: A position whose event id is returned.
            until: A second such position; it is lowered to the head.

        Raises:
            BackendFailure: The database cannot be reached.
        """
        if self._connection is not None:
            try:
                return query_log_state(self._connection, self._address, at, until)
            except DRIVER_ERRORS:
                self.close()
        try:
            self._connection = ReadConnection(self._address)
            return query_log_state(self._connection, self._address, at, until)
        except DRIVER_ERRORS as error:
            self.close()
            # `from None`: the driver's own text may contain the URL with its password.
            raise translate_driver_error(
                self._address, error, "reading the state of the log"
            ) from None
        finally:
            if self._address.backend == "sqlite":
                # An open connection would go on reading a file that was replaced by another.
                self.close()

    def close(self) -> None:
        """Close the connection, if one is open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except DRIVER_ERRORS:
                return  # it was broken already


# Without SupportsTriggerAvailableNow, Spark would end a query with this trigger after one batch.
class StreamReader(ds.DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """Follows the log in micro-batches.

    A query resumes from its checkpoint, and stops with an error if that belongs to another log.
    """

    # `commit` is not overridden: nothing may depend on it, because Spark does not call it for the
    # last batch of a query.

    def __init__(self, options: SourceOptions) -> None:
        if options.ending_position is not None:
            raise option_error("endingPosition", "is only valid for batches; a stream has no end")
        self._options = options
        self._target = MAX_POSITION
        self._archive: Archive | None = None
        self._probe = LogProbe(options.url)

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a query without a checkpoint starts.

        Raises:
            InvalidArgument: The starting position is after the head.
        """
        starting = self._options.starting_position
        position = {"earliest": 0, "latest": MAX_POSITION}.get(str(starting), starting)
        state = self._probe.read_state(0, int(position))
        if isinstance(starting, int) and starting > state.head:
            raise option_error(
                "startingPosition", f"is after the end of the log at position {state.head}"
            )
        return _encode_offset(state)

    def latestOffset(self, start: dict[str, Any], limit: limits.ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch.

        Raises:
            LogIdentityChanged: The log was restored or replaced since `start`.
        """
        # Positions are gapless, so a limit in rows is a distance between positions.
        begin = LogOffset.from_dict(start)
        until = self._target
        if isinstance(limit, limits.ReadMaxRows):
            until = min(until, begin.position + limit.max_rows)
        state = self._probe.read_state(begin.position, until)
        begin.check_log(state, state.event_id_at)
        if state.until <= begin.position:
            return start
        return _encode_offset(state)

    def getDefaultReadLimit(self) -> limits.ReadLimit:
        """Return the largest size of a micro-batch."""
        maximum = self._options.max_batch_events
        return limits.ReadAllAvailable() if maximum is None else limits.ReadMaxRows(maximum)

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the head of the log, for the progress report of the query."""
        return _encode_offset(self._probe.read_state(0, MAX_POSITION))

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the present head as the end of a query with the trigger `availableNow`."""
        self._target = self._probe.read_state(0, MAX_POSITION).head

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ds.InputPartition]:
        """Split a micro-batch into partitions.

        After a restart, Spark may pass a batch that an earlier run of the query planned; so both
        ends are compared with the log.

        Raises:
            LogIdentityChanged: The log was restored or replaced since the batch was planned.
        """
        begin, finish = LogOffset.from_dict(start), LogOffset.from_dict(end)
        state = self._probe.read_state(begin.position, finish.position)
        begin.check_log(state, state.event_id_at)
        finish.check_log(state, state.event_id_at_until)
        archive = self._find_archive(begin.position)
        return [
            *plan_partitions(archive, begin.position, finish.position, self._options.partitions)
        ]

    def _find_archive(self, position: int) -> Archive | None:
        """Return the archive if it holds events after a position.

        It is opened once, because sealed segments never change.
        """
        if self._options.archive is None:
            return None
        if self._archive is None:
            archive = open_archive(self._options.archive)
            state = self._probe.read_state(archive.end, MAX_POSITION)
            archive.check_log(*state.identity_and_head, state.event_id_at)
            self._archive = archive
        return self._archive if position < self._archive.end else None

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of one partition; Spark calls this in a task."""
        if not isinstance(partition, RangePartition):
            msg = f"a partition of the format seriatim, not {type(partition).__name__}, is required"
            raise TypeError(msg)
        return read_partition(self._options, self._options.scan, partition)

    def stop(self) -> None:
        """Close the connection when the query ends."""
        self._probe.close()


def _encode_offset(state: LogState) -> dict[str, Any]:
    """Return the offset at the end of a state, as Spark stores it."""
    identity: LogIdentity = state.identity
    event_id = state.event_id_at_until or ""
    return LogOffset(state.until, identity.log_id, identity.epoch, event_id).to_dict()
