"""Audit of a whole log on Spark: checks of its consistency, and statistics of its event types.

The audit covers what `seriatim verify` checks in one process, except for the canonical form of
payloads, lookup keys and checks of the database itself. In addition it checks that event ids are
unique, and computes the digest of the log. Tasks that read ranges in order check positions and
appends; Spark expressions select the events that may violate other rules. The rules and their
messages are those of verify (`seriatim.core.consistency`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import msgspec
from pyspark.sql import DataFrame, SparkSession

from seriatim.config import Settings
from seriatim.factory import open_store
from seriatim.pipeline.archive.segment_tasks import run_tasks
from seriatim.pipeline.archive.verification import verify_archive
from seriatim.pipeline.audit import checks
from seriatim.pipeline.audit.checks import (
    OrderProblems,
    make_order_check,
    read_log_frame,
    split_log,
)
from seriatim.pipeline.digest import combine_word_sums, format_digest
from seriatim.pipeline.object_storage import ObjectStorage
from seriatim.pipeline.source.spark_session import create_job_session
from seriatim.pipeline.spark_errors import translate_spark_errors
from seriatim.store.port import Finding

MAX_REPORTED_EXAMPLES = 20
MAX_REPORTED_TYPES = 200

_CURE = "find the cause before appending more; restore an archive or a backup"

Progress = Callable[[str], None]


class TypeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one event type."""

    event_type: str
    events: int
    payload_bytes: int
    first_position: int
    last_position: int
    first_recorded_at: str
    last_recorded_at: str


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an audit.

    Attributes:
        findings: One finding per check, or two for streams if there are warnings.
        head: The last position that was audited.
        events: The number of events.
        digest: The digest of all events.
        types: Statistics of the most frequent event types.
        type_count: The number of event types.
        seconds: The duration of the audit.
    """

    findings: list[Finding]
    head: int
    events: int
    digest: str
    types: list[TypeStatistics]
    type_count: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether no finding is an error; warnings do not count."""
        return all(finding.level != "error" for finding in self.findings)


def audit(
    spark: SparkSession,
    url: str,
    *,
    archive: str | ObjectStorage | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Audit a log up to its present head and, on request, its archive.

    Args:
        spark: A session.
        url: The URL of the log.
        archive: The location of an archive to verify too.
        progress: Called with the name of each step before it starts.

    Raises:
        BackendFailure: The database or Spark failed.

    Example:
        report = audit(spark, "sqlite:///app.db")
        assert report.ok, report.findings
    """
    with translate_spark_errors():
        return _run_audit(create_job_session(spark), url, archive, progress or (lambda _: None))


def _run_audit(
    spark: SparkSession, url: str, archive: str | ObjectStorage | None, report_step: Progress
) -> AuditReport:
    started = time.perf_counter()
    with closing(open_store(url, Settings(), create=False)) as store:
        head = store.head()
        rules = store.rules()
    findings: list[Finding] = []
    report_step("positions and appends")
    findings += _report_order(spark, url, head)
    report_step("payloads, envelopes and types")
    rows = read_log_frame(spark, url, head)
    totals, types, type_count = checks.summarize_types(rows, MAX_REPORTED_TYPES)
    findings += _report_rows(rows, totals)
    report_step("event ids")
    repeated = checks.find_repeated_ids(read_log_frame(spark, url, head, checks.ID_COLUMNS))
    findings.append(_report_frame("event ids", repeated, "no tenant has an event id twice"))
    report_step("streams")
    steps = read_log_frame(spark, url, head, checks.STREAM_COLUMNS)
    findings += _report_streams(checks.find_stream_violations(steps, rules))
    if archive is not None:
        report_step("archive")
        findings += _report_archive(spark, url, archive)
    return AuditReport(
        findings=findings,
        head=head,
        events=totals.events,
        digest=format_digest(combine_word_sums(totals.words)),
        types=[TypeStatistics(**row) for row in types],
        type_count=type_count,
        seconds=time.perf_counter() - started,
    )


def _report_check(check: str, examples: Iterable[str], total: int, ok_message: str) -> Finding:
    """Return the finding of a check.

    Args:
        check: The name of the check.
        examples: Messages of the first problems.
        total: The number of problems.
        ok_message: The message if there is none.
    """
    if not total:
        return Finding("ok", check, ok_message)
    listed = [*examples][:MAX_REPORTED_EXAMPLES]
    suffix = f"; and {total - len(listed)} more" if total > len(listed) else ""
    return Finding("error", check, "; ".join(listed) + suffix, _CURE)


def _report_order(spark: SparkSession, url: str, head: int) -> Iterator[Finding]:
    problems = OrderProblems()
    for part in run_tasks(spark, make_order_check(url), split_log(spark, head)):
        problems.add(part)
    ok_message = f"{head:,} positions from 1, in order, without a gap"
    yield _report_check(
        "positions", problems.position_problems, problems.position_count, ok_message
    )
    ok_message = f"{problems.appends:,} appends, each one consecutive range of one tenant"
    yield _report_check("appends", problems.append_problems, problems.append_count, ok_message)


def _report_rows(rows: DataFrame, totals: checks.EventTotals) -> Iterator[Finding]:
    """Report invalid events; the log is read again for examples only if there are any."""
    for check, ok_message in (
        ("payloads", "every payload matches its SHA-256"),
        ("envelopes", "ids, keys, numbers and times are well-formed"),
    ):
        count = totals.problems[check]
        examples = checks.find_row_examples(rows, check, MAX_REPORTED_EXAMPLES) if count else []
        yield _report_check(check, examples, count, ok_message)


def _report_frame(check: str, problems: DataFrame, ok_message: str) -> Finding:
    """Return the finding of a frame of problems with the columns position and message."""
    # Persisted, because examples and count are two queries.
    problems = problems.persist()
    try:
        examples = problems.orderBy("position").limit(MAX_REPORTED_EXAMPLES).collect()
        total = problems.count() if examples else 0
        return _report_check(check, [row["message"] for row in examples], total, ok_message)
    finally:
        problems.unpersist()


def _report_streams(problems: DataFrame) -> Iterator[Finding]:
    """Yield errors and warnings: a kind may have been declared after its streams began."""
    ok_message = (
        "every stream is numbered without a gap, and none continues after its closing event"
    )
    problems = problems.persist()
    try:
        yield _report_frame("streams", problems.where("level = 'error'"), ok_message)
        warning = _report_frame("streams", problems.where("level = 'warning'"), ok_message)
        if warning.level == "error":
            cure = "no action is needed if the kind was declared after the stream started"
            yield msgspec.structs.replace(warning, level="warning", cure=cure)
    finally:
        problems.unpersist()


def _report_archive(spark: SparkSession, url: str, at: str | ObjectStorage) -> Iterator[Finding]:
    report = verify_archive(spark, url, at)
    ok_message = (
        f"{report.segments} segments up to position {report.end} match their seals and the log"
    )
    messages = [problem.message for problem in report.problems]
    yield _report_check("archive", messages, len(messages), ok_message)
