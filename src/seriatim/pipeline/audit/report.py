"""Auditing a whole log on Spark, to prove that it is what it says, and to tell what it holds.

The same is proved as by `seriatim verify` in one process, except for canonical spelling, look-ups
and what a database knows of itself; beyond it, event ids are compared, and the log is digested.
Order is checked by tasks that read ranges in order, everything else by Spark's own expressions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import msgspec
from pyspark.sql import DataFrame, SparkSession

from seriatim.config import Settings
from seriatim.opening import open_store
from seriatim.pipeline.archive.comparing import verify_archive
from seriatim.pipeline.archive.place import Place
from seriatim.pipeline.archive.tasks import on_spark
from seriatim.pipeline.audit import checks
from seriatim.pipeline.audit.order import Disorder, check_order
from seriatim.pipeline.audit.rows import rows_of_log, spans_of
from seriatim.pipeline.digest import digest_of_words, digest_text
from seriatim.pipeline.failures import translated
from seriatim.pipeline.session import own_session
from seriatim.store.port import Finding

SHOWN_MAX = 20
TYPES_MAX = 200

_CURE = "find out why before appending more; restore an archive or a backup"

Progress = Callable[[str], None]


class TypeStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a log holds of one event type."""

    event_type: str
    events: int
    payload_bytes: int
    first_position: int
    last_position: int
    first_recorded_at: str
    last_recorded_at: str


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit found: a finding for each check, and the commonest event types."""

    findings: list[Finding]
    head: int
    events: int
    digest: str
    types: list[TypeStatistics]
    type_count: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong; warnings do not count."""
        return all(finding.level != "error" for finding in self.findings)


def audit(
    spark: SparkSession,
    url: str,
    *,
    archive: str | Place | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Audit the log up to its head as it is now, and with a place its archive too."""
    with translated():
        return _audited(own_session(spark), url, archive, progress or (lambda _: None))


def _audited(
    spark: SparkSession, url: str, archive: str | Place | None, tell: Progress
) -> AuditReport:
    started = time.perf_counter()
    with closing(open_store(url, Settings(), create=False)) as store:
        head = store.head()
        rules = store.rules()
    findings: list[Finding] = []
    tell("positions and appends")
    findings += _order_findings(spark, url, head)
    tell("payloads, envelopes and types")
    rows = rows_of_log(spark, url, head)
    totals, types, type_count = checks.type_table(rows, TYPES_MAX)
    findings += _row_findings(rows, totals)
    tell("event ids")
    repeated = checks.repeated_ids(rows_of_log(spark, url, head, checks.ID_COLUMNS))
    findings.append(_of_frame("event ids", repeated, "no tenant has an event id twice"))
    tell("streams")
    steps = rows_of_log(spark, url, head, checks.STREAM_COLUMNS)
    findings += _stream_findings(checks.stream_problems(steps, rules))
    if archive is not None:
        tell("archive")
        findings += _archive_findings(spark, url, archive)
    return AuditReport(
        findings=findings,
        head=head,
        events=totals.events,
        digest=digest_text(digest_of_words(totals.words)),
        types=[TypeStatistics(**row) for row in types],
        type_count=type_count,
        seconds=time.perf_counter() - started,
    )


def _finding(check: str, examples: Iterable[str], total: int, good: str) -> Finding:
    """Make the finding of a check: what holds, or how often it does not and where first."""
    if not total:
        return Finding("ok", check, good)
    shown = [*examples][:SHOWN_MAX]
    more = f"; and {total - len(shown)} more" if total > len(shown) else ""
    return Finding("error", check, "; ".join(shown) + more, _CURE)


def _order_findings(spark: SparkSession, url: str, head: int) -> Iterator[Finding]:
    found = Disorder()
    for part in on_spark(spark, check_order(url), spans_of(spark, head)):
        found.add(part)
    good = f"{head:,} positions from 1, in order, without a gap"
    yield _finding("positions", found.positions, found.position_count, good)
    good = f"{found.appends:,} appends, each one consecutive range of one tenant"
    yield _finding("appends", found.append_problems, found.append_count, good)


def _row_findings(rows: DataFrame, totals: checks.Totals) -> Iterator[Finding]:
    """Count what is wrong with single events, and read the log again only to name it."""
    for check, good in (
        ("payloads", "every payload has its SHA-256"),
        ("envelopes", "ids, keys, numbers and times are well-formed"),
    ):
        count = totals.problems[check]
        examples = checks.row_examples(rows, check, SHOWN_MAX) if count else []
        yield _finding(check, examples, count, good)


def _of_frame(check: str, problems: DataFrame, good: str) -> Finding:
    """Make the finding of a frame of problems: position and message."""
    problems = problems.persist()
    try:
        shown = problems.orderBy("position").limit(SHOWN_MAX).collect()
        total = problems.count() if shown else 0
        return _finding(check, [row["message"] for row in shown], total, good)
    finally:
        problems.unpersist()


def _stream_findings(problems: DataFrame) -> Iterator[Finding]:
    """Yield errors and warnings: a kind may have been declared after its streams began."""
    good = "every stream is numbered without a gap, none goes on after its end"
    problems = problems.persist()
    try:
        yield _of_frame("streams", problems.where("level = 'error'"), good)
        warned = _of_frame("streams", problems.where("level = 'warning'"), good)
        if warned.level == "error":
            cure = "nothing, if its kind was declared later"
            yield msgspec.structs.replace(warned, level="warning", cure=cure)
    finally:
        problems.unpersist()


def _archive_findings(spark: SparkSession, url: str, at: str | Place) -> Iterator[Finding]:
    report = verify_archive(spark, url, at)
    good = f"{report.segments} segments up to position {report.end} are as sealed and as the log"
    messages = [problem.message for problem in report.problems]
    yield _finding("archive", messages, len(messages), good)
