"""Export to Iceberg tables; the position is a table property set in the same commit."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import IO, Any

from pyspark.sql import SparkSession

from seriatim.core.errors import BackendFailure, InvalidArgument, LogIdentityChanged
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

try:
    from pyiceberg import exceptions as problems
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.io import load_file_io
    from pyiceberg.table import Table
except ModuleNotFoundError as error:
    raise explain_missing_module(error) from error

_LOG_ID = "seriatim.log-id"
_EPOCH = "seriatim.epoch"
_POSITION = "seriatim.position"
_RETRIES = "commit.retry.num-retries"
_COMMIT_CONFLICTS = (problems.CommitFailedException, problems.ValidationException)


def export_iceberg(
    spark: SparkSession,
    url: str,
    identifier: str,
    catalog: Mapping[str, str],
    *,
    until: int | None = None,
    file_events: int = FILE_EVENTS,
    accept_epoch: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Add the log's new events to an Iceberg table, which is created if it does not exist.

    Each event is in the table exactly once, however often this runs or is killed.

    Args:
        spark: A session.
        url: The URL of the log.
        identifier: The name of the table, `namespace.name`.
        catalog: The properties of the catalog as pyiceberg takes them, such as `type`, `uri` and
            `warehouse`; `name` is the name of the catalog.
        until: The last position to export; by default the head.
        file_events: The number of events in a file.
        accept_epoch: Continue although the log was restored or promoted since the last export,
            because the table was checked to be the past of this log.
        progress: Called after each commit with the exported position and the target.

    Raises:
        InvalidArgument: The identifier has no namespace.
        LogIdentityChanged: The table belongs to another log, or the log was restored.
        BackendFailure: The database, Spark or a commit failed.

    Example:
        catalog = {"type": "sql", "uri": "sqlite:////lake/catalog.db", "warehouse": "file:///lake"}
        report = export_iceberg(spark, "sqlite:///app.db", "events.log", catalog)
    """
    return export(
        spark,
        url,
        _IcebergTable(identifier, dict(catalog)),
        until=until,
        file_events=file_events,
        accept_epoch=accept_epoch,
        progress=progress,
    )


class _IcebergTable:
    """An Iceberg table as the target of an export."""

    def __init__(self, identifier: str, properties: dict[str, str]) -> None:
        namespace, _, name = identifier.rpartition(".")
        if not namespace or not name:
            msg = f"an Iceberg table must be named namespace.name, not {identifier!r:.80}"
            raise InvalidArgument(msg, details={"argument": "identifier"})
        self._identifier = identifier
        self._namespace = namespace
        self._catalog: Catalog = load_catalog(properties.pop("name", "seriatim"), **properties)
        self._table: Table | None = None

    def read_state(self, identity: LogIdentity) -> ExportState:
        """Return the progress of the table; create the table if it does not exist.

        Raises:
            LogIdentityChanged: The table belongs to another log.
        """
        table = self._open(identity)
        position = int(table.properties.get(_POSITION, 0))
        return ExportState(
            position, int(table.properties.get(_EPOCH, 0)), _find_event_id(table, position)
        )

    def _open(self, identity: LogIdentity) -> Table:
        self._catalog.create_namespace_if_not_exists(self._namespace)
        table = self._table = self._catalog.create_table_if_not_exists(
            self._identifier,
            EVENT_SCHEMA,
            properties={_LOG_ID: identity.log_id, _POSITION: "0", "format-version": "2"},
        )
        stored = table.properties.get(_LOG_ID)
        if stored != identity.log_id:
            owner = f"log {stored}" if stored else "no log"
            msg = f"the Iceberg table belongs to {owner}, not to log {identity.log_id}"
            raise LogIdentityChanged(msg, details={"table": self._identifier, "kept": stored})
        return table

    def make_file_opener(
        self,
    ) -> Callable[[PositionRange], tuple[str, AbstractContextManager[IO[bytes]]]]:
        """Return a function that opens a new file at the table's location by its FileIO."""
        assert self._table is not None  # noqa: S101 - `read_state` was called before
        return partial(_open_new_file, dict(self._table.io.properties), self._table.location())

    def commit(self, files: Sequence[ExportedFile], identity: LogIdentity) -> bool:
        """Commit files and their position, unless another exporter committed first.

        Returns:
            Whether the commit was made.

        Raises:
            BackendFailure: The catalog did not report the outcome of the commit.
        """
        # Loaded again: a commit of another exporter moves the position after `read_state`.
        table = self._open(identity)
        if int(table.properties.get(_POSITION, 0)) + 1 != files[0].first:
            return False
        # A commit that lost a race must fail: a retry on top of the other commit would add its
        # events a second time. The property is set in this object only, not in the table.
        table.metadata.properties[_RETRIES] = "0"
        position = {_POSITION: str(files[-1].last), _EPOCH: str(identity.epoch)}
        try:
            with table.transaction() as transaction:
                transaction.add_files([file.name for file in files], position)
                transaction.set_properties(position)
        except _COMMIT_CONFLICTS:
            return False
        except problems.CommitStateUnknownException as error:
            msg = (
                "the catalog did not report the outcome of the commit: run the export again; "
                "no event is lost"
            )
            raise BackendFailure(msg) from error
        return True


def _find_event_id(table: Table, position: int) -> str | None:
    if not position:
        return None
    table_rows = table.scan(f"position == {position}", selected_fields=("event_id",)).to_arrow()
    return str(table_rows.column(0)[0]) if table_rows.num_rows else ""


def _open_new_file(
    properties: dict[str, Any], location: str, span: PositionRange
) -> tuple[str, AbstractContextManager[IO[bytes]]]:
    name = f"{location}/data/{span.first:020d}-{uuid.uuid4().hex}.parquet"
    return name, _open_output(properties, name)


@contextmanager
def _open_output(properties: dict[str, Any], name: str) -> Iterator[IO[bytes]]:
    with load_file_io(properties, name).new_output(name).create() as sink:
        yield sink  # type: ignore[misc] # pyiceberg's own file type
