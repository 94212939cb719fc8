"""Writer of the Spark data source: `df.write.format("seriatim").mode("append")`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from seriatim.core.errors import InvalidArgument, InvalidEvent
from seriatim.core.event import DEFAULT_TENANT
from seriatim.core.guard import BUILT_IN_GUARDS, DEFAULT_GUARD
from seriatim.core.ids import id_problem
from seriatim.core.tenants import check_tenant
from seriatim.factory import absolute_url
from seriatim.pipeline.scan.options import normalize_options, option_error, split_list
from seriatim.pipeline.sink.row_appender import (
    AppendCounts,
    RefusalReason,
    RefusedRows,
    append_rows,
    finalize_files,
)
from seriatim.pipeline.sink.row_events import EventBuilder, RowMapping, check_columns
from seriatim.pipeline.spark_errors import annotate_errors, translate_spark_errors

SINK_OPTIONS = (
    "url",
    "tenant",
    "name",
    "idColumns",
    "committed",
    "backfill",
    "refused",
    "report",
    "guard",
)
_DROP = "drop"
_REPORTED_REASONS = 10


class AppendReport(msgspec.Struct, frozen=True):
    """The result of a write.

    Attributes:
        appended: The number of rows that were appended.
        reused: The number of rows that were stored already.
        refused: The number of rows that the log refused.
        reasons: The first reasons. All are in the folder for refused rows, if one was given.
    """

    appended: int
    reused: int
    refused: int
    reasons: tuple[RefusalReason, ...] = ()


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Validated options of a write.

    Attributes:
        url: The URL of the log.
        mapping: How rows become events.
        tenant: The tenant of rows that name none.
        refused_folder: A folder for refused rows. If it is None, and `drop_refused` is not set, the
            job fails at its end when a row was refused.
        drop_refused: Whether refused rows are counted and otherwise ignored.
        report_path: A file for the report of the write.
        guard: The name of the guard policy.
    """

    url: str
    mapping: RowMapping
    tenant: str = DEFAULT_TENANT
    refused_folder: str | None = None
    drop_refused: bool = False
    report_path: str | None = None
    guard: str = DEFAULT_GUARD.name


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Parse and validate the options of a write.

    Args:
        raw: Options as Spark passes them; names are case-insensitive.

    Raises:
        InvalidArgument: An option is unknown, or its value is invalid.
    """
    options = normalize_options(raw, SINK_OPTIONS)
    if not options.get("url"):
        raise option_error("url", "is required: the URL of the log, such as sqlite:///app.db")
    if "backfill" in options and (problem := id_problem(options["backfill"])):
        raise option_error("backfill", problem)
    if "tenant" in options:
        check_tenant(options["tenant"], "tenant")
    if options.get("guard", DEFAULT_GUARD.name) not in BUILT_IN_GUARDS:
        raise option_error("guard", f"must be one of {', '.join(sorted(BUILT_IN_GUARDS))}")
    committed = options.get("committed", "refuse")
    if committed not in ("refuse", _DROP):
        raise option_error("committed", "must be refuse or drop")
    return SinkOptions(
        url=options["url"],
        mapping=RowMapping(
            name=options.get("name", ""),
            id_columns=tuple(split_list(options.get("idColumns", ""))),
            drop_committed=committed == _DROP,
            backfill=options.get("backfill"),
        ),
        tenant=options.get("tenant", DEFAULT_TENANT),
        refused_folder=_parse_folder(options.get("refused")),
        drop_refused=options.get("refused") == _DROP,
        report_path=options.get("report"),
        guard=options.get("guard", DEFAULT_GUARD.name),
    )


def _parse_folder(text: str | None) -> str | None:
    if text is None or text == _DROP:
        return None
    path = text.removeprefix("file://")
    if "://" in path:
        raise option_error(
            "refused", "must be drop, or a folder that the driver and all executors share"
        )
    return str(Path(path).absolute())


class SinkCommitMessage(ds.WriterCommitMessage):
    """The result of one task, which Spark sends to the driver."""

    def __init__(
        self, counts: AppendCounts, reasons: Sequence[RefusalReason], file: str | None
    ) -> None:
        self.counts = counts
        self.reasons = reasons
        self.file = file


class SinkWriter(ds.DataSourceArrowWriter):
    """Appends every row as an append of its own, in the order of its partition.

    Appends share group commits.
    """

    def __init__(self, options: SinkOptions, schema: t.StructType, overwrite: bool) -> None:
        if overwrite:
            msg = 'a log cannot be overwritten: use mode("append")'
            raise InvalidArgument(msg, details={"option": "mode"})
        check_columns(schema, options.mapping)
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Append the rows of one task.

        Raises:
            SeriatimError: The database failed; Spark then runs the task again.
        """
        # Spark may run a task again, or twice at once. The rows have the same event ids each time,
        # so that the log recognizes those it has.
        options = self._options
        builder = EventBuilder(self._schema, options.mapping)
        with annotate_errors(), RefusedRows(options.refused_folder) as refused:
            rows = (row for batch in iterator for row in builder.decode_rows(batch))
            counts = append_rows(
                options.url, builder, rows, refused, tenant_id=options.tenant, guard=options.guard
            )
            return SinkCommitMessage(counts, refused.first_reasons, refused.file)

    def commit(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        """Sum the results of the tasks, keep the files of refused rows, and write the report.

        Raises:
            InvalidEvent: Rows were refused and the options do not say where to keep them.
        """
        results = [message for message in messages if isinstance(message, SinkCommitMessage)]
        reasons = (reason for result in results for reason in result.reasons)
        report = AppendReport(
            appended=sum(result.counts.appended for result in results),
            reused=sum(result.counts.reused for result in results),
            refused=sum(result.counts.refused for result in results),
            reasons=tuple(reasons)[:_REPORTED_REASONS],
        )
        # Spark passes the results of one attempt per task: the files of others keep `.part`.
        finalize_files([result.file for result in results if result.file is not None])
        if self._options.report_path is not None:
            Path(self._options.report_path).write_bytes(msgspec.json.encode(report))
        allowed = self._options.refused_folder is not None or self._options.drop_refused
        # Only now: the accepted rows are stored and reported, whatever happens to the others.
        if report.refused and not allowed:
            raise refused_rows_error(report)

    def abort(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        """Do nothing: stored events stay, and the next run finds them by their event ids."""


def refused_rows_error(report: AppendReport) -> InvalidEvent:
    """Return the error of a write with refused rows, for options that do not keep them."""
    reasons = "; ".join(f"{reason.code}: {reason.message}" for reason in report.reasons[:3])
    msg = (
        f"{report.refused} rows were refused, {report.appended} appended, {report.reused} stored "
        f"before; first reasons: {reasons}. To keep refused rows, set option refused to a folder"
    )
    return InvalidEvent(msg, details={"refused": report.refused})


def append_frame(
    frame: DataFrame, url: str, **options: str | list[str] | tuple[str, ...]
) -> AppendReport:
    """Append the rows of a DataFrame to a log.

    Refused rows do not raise here: the report has their number and the first reasons, and they
    are kept if the option `refused` names a folder.

    Args:
        frame: Rows with the columns of events.
        url: The URL of an existing log.
        options: Options of the format `seriatim` for writes, such as `tenant`, `name`,
            `idColumns` or `backfill`; a list is joined by commas.

    Returns:
        How many rows were appended, were stored already, or were refused.

    Raises:
        InvalidArgument: A column or an option is invalid; nothing was stored.
        BackendFailure: Spark or the database failed; a rerun recognizes the rows already stored.

    Example:
        report = append_frame(frame, "sqlite:///app.db", name="import", idColumns=["row_id"])
    """
    encoded = {
        name: ",".join(value) if isinstance(value, list | tuple) else value
        for name, value in options.items()
    }
    # Spark returns nothing from a write, so the driver's part of it leaves its report in a file.
    with tempfile.TemporaryDirectory(prefix="seriatim-") as folder:
        write_options = {
            "url": absolute_url(url),
            "report": f"{folder}/report",
            "refused": _DROP,
            **encoded,
        }
        with translate_spark_errors():
            frame.write.format("seriatim").options(**write_options).mode("append").save()
        return msgspec.json.decode(Path(write_options["report"]).read_bytes(), type=AppendReport)
