"""Export to Delta tables; the position is an application transaction of the same commit."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import IO

import msgspec
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from seriatim import config
from seriatim.core.errors import BackendFailure, LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.core.extras import explain_missing_module
from seriatim.pipeline.archive.segment_tasks import PositionRange
from seriatim.pipeline.columns import EVENT_SCHEMA
from seriatim.pipeline.lake.table_export import (
    FILE_EVENTS,
    ExportedFile,
    ExportReport,
    ExportState,
    Progress,
    export,
)
from seriatim.pipeline.object_storage import ObjectStorage, open_storage

try:
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
    from deltalake.transaction import AddAction
except ModuleNotFoundError as error:
    raise explain_missing_module(error) from error

_LOG_ID = "seriatim.logId"


def export_delta(
    spark: SparkSession,
    url: str,
    table: str,
    *,
    until: int | None = None,
    file_events: int = FILE_EVENTS,
    accept_epoch: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Add the log's new events to a Delta table, which is created if it does not exist.

    Each event is in the table exactly once, however often this runs or is killed.

    Args:
        spark: A session.
        url: The URL of the log.
        table: The location of the table: a path or `s3://bucket/prefix`.
        until: The last position to export; by default the head.
        file_events: The number of events in a file.
        accept_epoch: Continue although the log was restored or promoted since the last export,
            because the table was checked to be the past of this log.
        progress: Called after each commit with the exported position and the target.

    Raises:
        LogIdentityChanged: The table belongs to another log, or the log was restored.
        BackendFailure: The table, the database or Spark failed.

    Example:
        report = export_delta(spark, "sqlite:///app.db", "/lake/events")
    """
    return export(
        spark,
        url,
        _DeltaTable(table),
        until=until,
        file_events=file_events,
        accept_epoch=accept_epoch,
        progress=progress,
    )


class _DeltaTable:
    """A Delta table as the target of an export."""

    def __init__(self, uri: str) -> None:
        self._storage = open_storage(uri)
        self._uri = str(self._storage)
        self._options = config.object_store_options() if self._uri.startswith("s3:") else None

    def read_state(self, identity: LogIdentity) -> ExportState:
        """Return the progress of the table; create the table if it does not exist.

        Raises:
            LogIdentityChanged: The table belongs to another log.
        """
        try:
            table = self._open(identity)
            position = table.transaction_version(_position_key(identity)) or 0
            epoch = table.transaction_version(_epoch_key(identity)) or 0
            return ExportState(position, epoch, _find_event_id(table, position))
        except DeltaError as error:
            raise _translate_error(error) from error

    def _open(self, identity: LogIdentity) -> DeltaTable:
        try:
            table = DeltaTable(self._uri, storage_options=self._options)
        except TableNotFoundError:
            table = DeltaTable.create(
                self._uri,
                EVENT_SCHEMA,
                mode="ignore",
                name="seriatim",
                description="The events of a log, by position.",
                configuration={_LOG_ID: identity.log_id, "delta.appendOnly": "true"},
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )
        stored = table.metadata().configuration.get(_LOG_ID)
        if stored != identity.log_id:
            owner = f"log {stored}" if stored else "no log"
            msg = f"the Delta table belongs to {owner}, not to log {identity.log_id}"
            raise LogIdentityChanged(msg, details={"table": self._uri, "kept": stored})
        return table

    def make_file_opener(
        self,
    ) -> Callable[[PositionRange], tuple[str, AbstractContextManager[IO[bytes]]]]:
        """Return a function that opens a new file in the folder of the table."""
        return partial(_open_new_file, self._storage)

    def commit(self, files: Sequence[ExportedFile], identity: LogIdentity) -> bool:
        """Commit files and their position, unless another exporter committed first.

        Returns:
            Whether the commit was made.
        """
        # Delta accepts concurrent appends: the position is compared here, and a commit in between
        # fails this one, because it makes no second attempt.
        try:
            table = self._open(identity)
            if (table.transaction_version(_position_key(identity)) or 0) + 1 != files[0].first:
                return False
            table.create_write_transaction(
                [_make_add_action(file) for file in files],
                mode="append",
                schema=table.schema(),
                commit_properties=_make_commit_properties(identity, files[-1].last),
            )
        except CommitFailedError:
            return False
        except DeltaError as error:
            raise _translate_error(error) from error
        return True


def _position_key(identity: LogIdentity) -> str:
    return f"seriatim:{identity.log_id}"


def _epoch_key(identity: LogIdentity) -> str:
    return f"seriatim:{identity.log_id}:epoch"


def _make_commit_properties(identity: LogIdentity, position: int) -> CommitProperties:
    """Put the position into the commit itself, and disable retries.

    A commit that lost a race must fail: a retry on top of the other commit would add its events a
    second time.
    """
    return CommitProperties(
        custom_metadata={"seriatim.position": position, "seriatim.epoch": identity.epoch},
        max_commit_retries=0,
        app_transactions=[
            Transaction(_position_key(identity), position),
            Transaction(_epoch_key(identity), identity.epoch),
        ],
    )


def _make_add_action(file: ExportedFile) -> AddAction:
    stats = {
        "numRecords": file.last - file.first + 1,
        "minValues": {"position": file.first},
        "maxValues": {"position": file.last},
        "nullCount": {"position": 0},
    }
    now_ms = time.time_ns() // 1_000_000
    text = msgspec.json.encode(stats).decode()
    return AddAction(file.name, file.bytes, {}, now_ms, data_change=True, stats=text)


def _find_event_id(table: DeltaTable, position: int) -> str | None:
    """Return the id of the table's event at a position, found by the statistics of its files."""
    if not position:
        return None
    table_rows = table.to_pyarrow_dataset().to_table(
        columns=["event_id"], filter=ds.field("position") == position
    )
    return str(table_rows.column(0)[0]) if table_rows.num_rows else ""


def _open_new_file(
    storage: ObjectStorage, span: PositionRange
) -> tuple[str, AbstractContextManager[IO[bytes]]]:
    name = f"part-{span.first:020d}-{uuid.uuid4().hex}.parquet"
    return name, storage.open_writer(name)


def _translate_error(error: DeltaError) -> BackendFailure:
    return BackendFailure(f"the Delta table failed: {str(error)[:300]}")
