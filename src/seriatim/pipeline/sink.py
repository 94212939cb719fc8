"""A DataFrame appended to the log: `df.write.format("seriatim").mode("append")`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import datasource as ds
from pyspark.sql import types as t

from seriatim.core.errors import InvalidArgument, InvalidEvent
from seriatim.core.event import DEFAULT_TENANT
from seriatim.core.guard import BUILT_IN, DEFAULT
from seriatim.core.ids import id_problem
from seriatim.core.tenants import check_tenant
from seriatim.opening import absolute_url
from seriatim.pipeline.failures import noted_errors, translated
from seriatim.pipeline.options import bad, known_options, listed
from seriatim.pipeline.refused import Reason, RefusedRows, keep_files
from seriatim.pipeline.rows import Maker, Shape, check_columns
from seriatim.pipeline.submitting import Counts, append_rows

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
_REASONS = 10


class AppendReport(msgspec.Struct, frozen=True):
    """What became of the rows: stored, known already, or refused with a reason."""

    appended: int
    reused: int
    refused: int
    reasons: tuple[Reason, ...] = ()  # the first ones; all are in the folder, if one was given


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a write was asked for."""

    url: str
    shape: Shape
    tenant: str = DEFAULT_TENANT
    refused: str | None = None  # a folder; None: a refused row fails the job in the end
    drop_refused: bool = False
    report: str | None = None
    guard: str = DEFAULT.name


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write."""
    found = known_options(given, SINK_OPTIONS)
    if not found.get("url"):
        raise bad("url", "is needed: the log's address, such as sqlite:///app.db")
    if "backfill" in found and (problem := id_problem(found["backfill"])):
        raise bad("backfill", problem)
    if "tenant" in found:
        check_tenant(found["tenant"], "tenant")
    if found.get("guard", DEFAULT.name) not in BUILT_IN:
        raise bad("guard", f"must be one of {', '.join(sorted(BUILT_IN))}")
    committed = found.get("committed", "refuse")
    if committed not in ("refuse", _DROP):
        raise bad("committed", "must be refuse or drop")
    return SinkOptions(
        url=found["url"],
        shape=Shape(
            name=found.get("name", ""),
            id_columns=tuple(listed(found.get("idColumns", ""))),
            drop_committed=committed == _DROP,
            backfill=found.get("backfill"),
        ),
        tenant=found.get("tenant", DEFAULT_TENANT),
        refused=_folder(found.get("refused")),
        drop_refused=found.get("refused") == _DROP,
        report=found.get("report"),
        guard=found.get("guard", DEFAULT.name),
    )


def _folder(text: str | None) -> str | None:
    if text is None or text == _DROP:
        return None
    path = text.removeprefix("file://")
    if "://" in path:
        raise bad("refused", "must be drop, or a folder that driver and executors share")
    return str(Path(path).absolute())


class Written(ds.WriterCommitMessage):
    """What one task tells of its rows."""

    def __init__(self, counts: Counts, reasons: Sequence[Reason], file: str | None) -> None:
        self.counts = counts
        self.reasons = reasons
        self.file = file


class SinkWriter(ds.DataSourceArrowWriter):
    """Appends each row by itself, in the order of its partition, many sharing a commit."""

    def __init__(self, options: SinkOptions, schema: t.StructType, overwrite: bool) -> None:
        if overwrite:
            msg = 'a log is only appended to: say mode("append")'
            raise InvalidArgument(msg, details={"option": "mode"})
        check_columns(schema, options.shape)
        self._options = options
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append the rows of one task; a failed database fails it, and Spark tries again."""
        options = self._options
        maker = Maker(self._schema, options.shape)
        with noted_errors(), RefusedRows(options.refused) as refused:
            rows = (row for batch in iterator for row in maker.rows(batch))
            counts = append_rows(
                options.url, maker, rows, refused, tenant_id=options.tenant, guard=options.guard
            )
            return Written(counts, refused.first, refused.file)

    def commit(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        """Add up what the tasks tell, keep the refused rows, and write the report."""
        told = [one for one in messages if isinstance(one, Written)]
        report = AppendReport(
            appended=sum(one.counts.appended for one in told),
            reused=sum(one.counts.reused for one in told),
            refused=sum(one.counts.refused for one in told),
            reasons=tuple(reason for one in told for reason in one.reasons)[:_REASONS],
        )
        keep_files([one.file for one in told if one.file is not None])
        if self._options.report is not None:
            Path(self._options.report).write_bytes(msgspec.json.encode(report))
        kept = self._options.refused is not None or self._options.drop_refused
        if report.refused and not kept:
            raise refusal(report)

    def abort(self, messages: list[ds.WriterCommitMessage | None]) -> None:
        """Leave what was stored, which the next run will find: its ids are the same."""


def refusal(report: AppendReport) -> InvalidEvent:
    """Make the error of a write whose refused rows nobody asked to keep."""
    reasons = "; ".join(f"{one.code}: {one.message}" for one in report.reasons[:3])
    msg = (
        f"{report.refused} rows were refused, {report.appended} appended, {report.reused} known "
        f"already; the first reasons: {reasons}. Keep refused rows by the option refused"
    )
    return InvalidEvent(msg, details={"refused": report.refused})


def append_frame(frame: DataFrame, url: str, **options: Any) -> AppendReport:
    """Append the rows of a frame and return what became of them; options as of the format.

    Refused rows are no error here: the report has their number and first reasons, and they are
    kept if the option `refused` names a folder.
    """
    given = {key: ",".join(v) if isinstance(v, list | tuple) else v for key, v in options.items()}
    with tempfile.TemporaryDirectory(prefix="seriatim-") as folder:
        address = absolute_url(url)
        own = {"url": address, "report": f"{folder}/report", "refused": _DROP, **given}
        with translated():
            frame.write.format("seriatim").options(**own).mode("append").save()
        return msgspec.json.decode(Path(own["report"]).read_bytes(), type=AppendReport)
