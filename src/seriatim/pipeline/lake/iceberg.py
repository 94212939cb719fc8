"""Iceberg tables: the position is a property that changes in the commit of the snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import IO, Any

from pyspark.sql import SparkSession

from seriatim.core.errors import BackendFailure, InvalidArgument, LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.core.extras import explained
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
    from pyiceberg import exceptions as problems
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.io import load_file_io
    from pyiceberg.table import Table
except ModuleNotFoundError as error:
    raise explained(error) from error

_LOG_ID = "seriatim.log-id"
_EPOCH = "seriatim.epoch"
_POSITION = "seriatim.position"
_RETRIES = "commit.retry.num-retries"
_CHANGED = (problems.CommitFailedException, problems.ValidationException)


def export_iceberg(  # noqa: PLR0913 - what, where to, how much
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
    """Add the log's new events to an Iceberg table, `namespace.name`, of a catalog.

    The catalog is given by its properties, as pyiceberg takes them (`name` too). Each event is in
    the table once, however often this runs and whatever is killed. `accept_epoch` says that the
    table was found to be the past of a log that was restored or promoted since.
    """
    return export(
        spark,
        url,
        _Iceberg(identifier, dict(catalog)),
        until=until,
        file_events=file_events,
        accept_epoch=accept_epoch,
        progress=progress,
    )


class _Iceberg:
    """One Iceberg table."""

    def __init__(self, identifier: str, properties: dict[str, str]) -> None:
        namespace, _, name = identifier.rpartition(".")
        if not namespace or not name:
            msg = "an Iceberg table is named namespace.name"
            raise InvalidArgument(msg, details={"argument": "identifier"})
        self._identifier = identifier
        self._namespace = namespace
        self._catalog: Catalog = load_catalog(properties.pop("name", "seriatim"), **properties)
        self._table: Table | None = None

    def exported(self, identity: LogIdentity) -> Exported:
        """Look how far the table is, and make it where there is none."""
        table = self._opened(identity)
        position = int(table.properties.get(_POSITION, 0))
        return Exported(position, int(table.properties.get(_EPOCH, 0)), _tip(table, position))

    def _opened(self, identity: LogIdentity) -> Table:
        self._catalog.create_namespace_if_not_exists(self._namespace)
        table = self._table = self._catalog.create_table_if_not_exists(
            self._identifier,
            EVENTS,
            properties={_LOG_ID: identity.log_id, _POSITION: "0", "format-version": "2"},
        )
        kept = table.properties.get(_LOG_ID)
        if kept != identity.log_id:
            owner = f"log {kept}" if kept else "no log"
            msg = f"the Iceberg table holds the events of {owner}, not of {identity.log_id}"
            raise LogIdentityChanged(msg, details={"table": self._identifier, "kept": kept})
        return table

    def writer(self) -> Callable[[Span], tuple[str, AbstractContextManager[IO[bytes]]]]:
        """Return what makes a file at the table's place, by the table's own way to files."""
        assert self._table is not None  # noqa: S101 - it was looked at before
        return partial(_new_file, dict(self._table.io.properties), self._table.location())

    def commit(self, files: Sequence[Written], identity: LogIdentity) -> bool:
        """Add files with their position, unless the table was changed since it was looked at."""
        table = self._opened(identity)
        if int(table.properties.get(_POSITION, 0)) + 1 != files[0].first:
            return False
        # A commit that lost a race must not be tried again on the other's: here, for this one only.
        table.metadata.properties[_RETRIES] = "0"
        position = {_POSITION: str(files[-1].last), _EPOCH: str(identity.epoch)}
        try:
            with table.transaction() as transaction:
                transaction.add_files([file.name for file in files], position)
                transaction.set_properties(position)
        except _CHANGED:
            return False
        except problems.CommitStateUnknownException as error:
            msg = "the catalog did not say whether it took the commit: run again, nothing is lost"
            raise BackendFailure(msg) from error
        return True


def _tip(table: Table, position: int) -> str | None:
    if not position:
        return None
    found = table.scan(f"position == {position}", selected_fields=("event_id",)).to_arrow()
    return str(found.column(0)[0]) if found.num_rows else ""


def _new_file(
    properties: dict[str, Any], location: str, span: Span
) -> tuple[str, AbstractContextManager[IO[bytes]]]:
    name = f"{location}/data/{span.first:020d}-{uuid.uuid4().hex}.parquet"
    return name, _writing(properties, name)


@contextmanager
def _writing(properties: dict[str, Any], name: str) -> Iterator[IO[bytes]]:
    with load_file_io(properties, name).new_output(name).create() as sink:
        yield sink  # type: ignore[misc] # pyiceberg's own word for a file
