"""Delta tables: the position is the version of an application's transaction in the same commit."""

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
from seriatim.core.extras import explained
from seriatim.pipeline.archive.place import Place, open_place
from seriatim.pipeline.archive.tasks import Span
from seriatim.pipeline.columns import EVENTS
from seriatim.pipeline.lake.exporting import (
    FILE_EVENTS,
    Exported,
    ExportReport,
    Progress,
    Written,
    export,
)

try:
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
    from deltalake.transaction import AddAction
except ModuleNotFoundError as error:
    raise explained(error) from error

_LOG_ID = "seriatim.logId"


def export_delta(  # noqa: PLR0913 - what, where to, how much
    spark: SparkSession,
    url: str,
    table: str,
    *,
    until: int | None = None,
    file_events: int = FILE_EVENTS,
    accept_epoch: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Add the log's new events to a Delta table at a path or `s3://` URL; it is made if need be.

    Each event is in it once, however often this runs and whatever is killed. `accept_epoch` says
    that the table was found to be the past of a log that was restored or promoted since.
    """
    return export(
        spark,
        url,
        _Delta(table),
        until=until,
        file_events=file_events,
        accept_epoch=accept_epoch,
        progress=progress,
    )


class _Delta:
    """One Delta table."""

    def __init__(self, uri: str) -> None:
        self._place = open_place(uri)
        self._uri = str(self._place)
        self._options = config.object_store() if self._uri.startswith("s3:") else None

    def exported(self, identity: LogIdentity) -> Exported:
        """Look how far the table is, and make it where there is none."""
        try:
            table = self._opened(identity)
            position = table.transaction_version(_application(identity)) or 0
            epoch = table.transaction_version(_epochs(identity)) or 0
            return Exported(position, epoch, _tip(table, position))
        except DeltaError as error:
            raise _failure(error) from error

    def _opened(self, identity: LogIdentity) -> DeltaTable:
        try:
            table = DeltaTable(self._uri, storage_options=self._options)
        except TableNotFoundError:
            table = DeltaTable.create(
                self._uri,
                EVENTS,
                mode="ignore",
                name="seriatim",
                description="The events of a log, by position.",
                configuration={_LOG_ID: identity.log_id, "delta.appendOnly": "true"},
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )
        kept = table.metadata().configuration.get(_LOG_ID)
        if kept != identity.log_id:
            owner = f"log {kept}" if kept else "no log"
            msg = f"the Delta table holds the events of {owner}, not of {identity.log_id}"
            raise LogIdentityChanged(msg, details={"table": self._uri, "kept": kept})
        return table

    def writer(self) -> Callable[[Span], tuple[str, AbstractContextManager[IO[bytes]]]]:
        """Return what makes a file beside the table's others."""
        return partial(_new_file, self._place)

    def commit(self, files: Sequence[Written], identity: LogIdentity) -> bool:
        """Add files with their position, unless the table was changed since it was looked at."""
        try:
            table = self._opened(identity)
            if (table.transaction_version(_application(identity)) or 0) + 1 != files[0].first:
                return False
            table.create_write_transaction(
                [_added(file) for file in files],
                mode="append",
                schema=table.schema(),
                commit_properties=_properties(identity, files[-1].last),
            )
        except CommitFailedError:
            return False
        except DeltaError as error:
            raise _failure(error) from error
        return True


def _application(identity: LogIdentity) -> str:
    return f"seriatim:{identity.log_id}"


def _epochs(identity: LogIdentity) -> str:
    return f"seriatim:{identity.log_id}:epoch"


def _properties(identity: LogIdentity, position: int) -> CommitProperties:
    """Say where the table is in the same commit; one that lost a race is not tried again."""
    return CommitProperties(
        custom_metadata={"seriatim.position": position, "seriatim.epoch": identity.epoch},
        max_commit_retries=0,
        app_transactions=[
            Transaction(_application(identity), position),
            Transaction(_epochs(identity), identity.epoch),
        ],
    )


def _added(file: Written) -> AddAction:
    stats = {
        "numRecords": file.last - file.first + 1,
        "minValues": {"position": file.first},
        "maxValues": {"position": file.last},
        "nullCount": {"position": 0},
    }
    now_ms = time.time_ns() // 1_000_000
    text = msgspec.json.encode(stats).decode()
    return AddAction(file.name, file.bytes, {}, now_ms, data_change=True, stats=text)


def _tip(table: DeltaTable, position: int) -> str | None:
    """Return the id of the event at a position, which the statistics of files lead to."""
    if not position:
        return None
    found = table.to_pyarrow_dataset().to_table(
        columns=["event_id"], filter=ds.field("position") == position
    )
    return str(found.column(0)[0]) if found.num_rows else ""


def _new_file(place: Place, span: Span) -> tuple[str, AbstractContextManager[IO[bytes]]]:
    name = f"part-{span.first:020d}-{uuid.uuid4().hex}.parquet"
    return name, place.writing(name)


def _failure(error: DeltaError) -> BackendFailure:
    return BackendFailure(f"the Delta table failed: {str(error)[:300]}")
