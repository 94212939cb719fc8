"""The checks of the audit, run inside Spark tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from itertools import pairwise
from operator import or_
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from seriatim.core.canonical import HASH_PREFIX
from seriatim.core.consistency import (
    find_append_problem,
    find_envelope_problems,
    find_payload_problems,
    find_stream_problems,
)
from seriatim.core.ids import ID_BYTES_MAX, KEY_BYTES_MAX
from seriatim.core.kinds import DEFAULT_STREAM_KIND, Rules, StreamKind
from seriatim.pipeline.archive.segment_tasks import PositionRange
from seriatim.pipeline.columns import EVENT_COLUMNS, build_spark_schema
from seriatim.pipeline.digest import build_event_hash, build_word_sums
from seriatim.pipeline.scan.scanner import Interval, ScanSpec, scan

ID_COLUMNS = ("position", "tenant_id", "event_id")
STREAM_COLUMNS = (
    "position",
    "tenant_id",
    "stream_type",
    "stream_id",
    "stream_seq",
    "event_type",
)

_PAYLOAD_COLUMNS = ("payload", "payload_hash")
_ENVELOPE_COLUMNS = (
    "event_id",
    "tenant_id",
    "event_type",
    "event_version",
    "stream_type",
    "stream_id",
    "stream_seq",
    "idempotency_key",
)
_PROBLEM_SCHEMA = "position bigint, level string, message string"
_PROBLEM_ARROW_SCHEMA = pa.schema(
    [("position", pa.int64()), ("level", pa.string()), ("message", pa.string())]
)

# White space around an id, or a control character in it.
_INVALID_ID = "^[ \\t\\n\\r\\x0b\\x0c]|[ \\t\\n\\r\\x0b\\x0c]$|[\\x00-\\x1f\\x7f-\\x9f]"
_WORDS = 8


class EventTotals(msgspec.Struct, frozen=True):
    """Sums over all events.

    Attributes:
        events: The number of events.
        words: The sums of the 32-bit words of their hashes, for the digest.
        problems: The number of invalid events by check.
    """

    events: int
    words: list[int]
    problems: dict[str, int]


def _is_invalid_id(name: str) -> Column:
    column = f.col(name)
    return (
        (f.octet_length(column) == 0)
        | (f.octet_length(column) > ID_BYTES_MAX)
        | column.rlike(_INVALID_ID)
    )


def _build_row_flags() -> dict[str, Column]:
    """Return an expression per check: whether an event violates it."""
    hashed = f.concat(f.lit(HASH_PREFIX), f.sha2("payload", 256))
    stream = [f.col(name).isNull() for name in ("stream_type", "stream_id", "stream_seq")]
    key_bytes = f.octet_length("idempotency_key")
    envelope = [
        *(_is_invalid_id(n) for n in ("event_id", "tenant_id", "event_type")),
        *(_is_invalid_id(n) for n in ("stream_type", "stream_id")),
        (stream[0] != stream[1]) | (stream[0] != stream[2]),
        (key_bytes < 1) | (key_bytes > KEY_BYTES_MAX),
        f.col("event_version") < 1,
        *_build_column_flags().values(),
    ]
    return {
        "payloads": hashed != f.col("payload_hash"),
        # A comparison with null is null, which is no violation.
        "envelopes": reduce(or_, (f.coalesce(flag, f.lit(False)) for flag in envelope)),
    }


def _build_column_flags() -> dict[str, Column]:
    """Return the checks of columns that records do not have, by message."""
    return {
        "append_position is not between 1 and the position": ~f.col("append_position").between(
            1, f.col("position")
        ),
        "occurred_at differs from recorded_at, but no occurred_text is stored": (
            f.col("occurred_text").isNull() & (f.col("occurred_at") != f.col("recorded_at"))
        ),
    }


def summarize_types(rows: DataFrame, limit: int) -> tuple[EventTotals, list[dict[str, Any]], int]:
    """Sum up all events by type.

    Args:
        rows: All columns of all events.
        limit: The number of types to return.

    Returns:
        The totals of all events, the rows of the most frequent types, and the number of types.
    """
    problems = _build_row_flags()
    words = build_word_sums(f.col("hash"))
    table = (
        rows.select(
            "position",
            "event_type",
            f.date_format("recorded_at", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").alias("recorded_at"),
            f.octet_length("payload").alias("bytes"),
            build_event_hash().alias("hash"),
            *(flag.cast("bigint").alias(name) for name, flag in problems.items()),
        )
        .groupBy("event_type")
        .agg(
            f.count("*").alias("events"),
            f.sum("bytes").alias("payload_bytes"),
            f.min("position").alias("first_position"),
            f.max("position").alias("last_position"),
            f.min("recorded_at").alias("first_recorded_at"),
            f.max("recorded_at").alias("last_recorded_at"),
            *(f.sum(name).alias(name) for name in problems),
            *(word.alias(f"word_{nth}") for nth, word in enumerate(words)),
        )
        .persist()
    )
    try:
        names = ["events", *problems, *(f"word_{nth}" for nth in range(_WORDS))]
        [sums] = table.agg(f.count("*"), *(f.sum(name).alias(name) for name in names)).collect()
        top = table.orderBy(f.desc("events"), "event_type").limit(limit).collect()
    finally:
        table.unpersist()
    totals = EventTotals(
        sums["events"] or 0,
        [sums[f"word_{nth}"] or 0 for nth in range(_WORDS)],
        {name: sums[name] or 0 for name in problems},
    )
    hidden = {*problems, *(f"word_{nth}" for nth in range(_WORDS))}
    types = [
        {name: value for name, value in row.asDict().items() if name not in hidden} for row in top
    ]
    return totals, types, sums[0]


def find_row_examples(rows: DataFrame, check: str, limit: int) -> list[str]:
    """Return the problems of the first events that fail a check."""
    columns = _PAYLOAD_COLUMNS if check == "payloads" else _ENVELOPE_COLUMNS
    column_problems = [f.when(flag, f.lit(text)) for text, flag in _build_column_flags().items()]
    failed = (
        rows.where(_build_row_flags()[check])
        .select("position", f.coalesce(*column_problems).alias("other"), *columns)
        .orderBy("position")
        .limit(limit)
    )
    find_problems = find_payload_problems if check == "payloads" else find_envelope_problems
    messages = []
    for row in failed.collect():
        problems = find_problems(**{name: row[name] for name in columns})
        # An expression may be stricter than the rule, such as about white space.
        problem = next(problems, None) or row["other"] or "an id or a key is malformed"
        messages.append(f"position {row['position']}: {problem}")
    return messages


def find_repeated_ids(rows: DataFrame) -> DataFrame:
    """Return the event ids that occur more than once in a tenant, as position and message."""
    repeated = (
        rows.groupBy("tenant_id", "event_id")
        .agg(
            f.count("*").alias("times"),
            f.min("position").alias("position"),
            f.max("position").alias("last"),
        )
        .where("times > 1")
    )
    text = f.format_string(
        "tenant %s has event id %s %d times, at positions %d to %d",
        "tenant_id",
        "event_id",
        "times",
        "position",
        "last",
    )
    return repeated.select("position", text.alias("message"))


def find_stream_violations(rows: DataFrame, rules: Rules) -> DataFrame:
    """Return the events that violate the rules of their streams: position, level and message.

    Args:
        rows: The `STREAM_COLUMNS` of all events.
        rules: The declarations of the log.
    """
    stream = ("tenant_id", "stream_type", "stream_id")
    window = Window.partitionBy(*stream).orderBy("position")
    steps = rows.where("stream_id is not null").select(
        "*",
        f.lag("stream_seq").over(window).alias("prior"),
        f.lag("event_type").over(window).alias("prior_type"),
    )
    is_first = f.col("prior").isNull()
    seq, event_type, prior_type = f.col("stream_seq"), f.col("event_type"), f.col("prior_type")
    opening, closing, first = _build_kind_columns(rules)
    # Expressions select few events, quickly; only for these the rules run in Python.
    suspicious = f.when(is_first, (seq != first) | (event_type != opening)).otherwise(
        (seq != f.col("prior") + 1)
        | f.array_contains(closing, prior_type)
        | (event_type == opening)
    )
    return steps.where(suspicious).mapInArrow(_StreamCheck(rules.kinds), _PROBLEM_SCHEMA)


class _StreamCheck(msgspec.Struct, frozen=True):
    """Describes the problems of suspicious events in tasks; `kinds` are those of the log."""

    kinds: dict[str, StreamKind]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield position, level and message of each problem."""
        for batch in batches:
            problems = [problem for row in batch.to_pylist() for problem in self._check(row)]
            yield pa.RecordBatch.from_pylist(problems, schema=_PROBLEM_ARROW_SCHEMA)

    def _check(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        stream_type, position = row["stream_type"], row["position"]
        kind = self.kinds.get(stream_type, DEFAULT_STREAM_KIND)
        last = None if row["prior"] is None else (row["prior"], row["prior_type"])
        for level, text in find_stream_problems(row["stream_seq"], row["event_type"], last, kind):
            message = f"position {position}: stream ({stream_type}, {row['stream_id']}) {text}"
            yield {"position": position, "level": level, "message": message}


def _build_kind_columns(rules: Rules) -> tuple[Column, Column, Column]:
    """Return expressions for opening type, closing types and first number of an event's kind."""
    opening: Column = f.lit(DEFAULT_STREAM_KIND.opening_type).cast("string")
    closing: Column = f.lit([]).cast("array<string>")
    first: Column = f.lit(DEFAULT_STREAM_KIND.first_seq)
    for kind in rules.kinds.values():
        matches = f.col("stream_type") == kind.name
        opening = f.when(matches, f.lit(kind.opening_type)).otherwise(opening)
        closed = f.array(*map(f.lit, kind.closing_types)).cast("array<string>")
        closing = f.when(matches, closed).otherwise(closing)
        first = f.when(matches, f.lit(kind.first_seq)).otherwise(first)
    return opening, closing, first


TASK_EVENTS = 250_000

# Every event was recorded after this time. It filters out nothing, but a filtered scan does not
# require that every position of its range exists.
_ANY_TIME = Interval(after=-(1 << 62))


def read_log_frame(
    spark: SparkSession, url: str, head: int, columns: tuple[str, ...] = EVENT_COLUMNS
) -> DataFrame:
    """Return a DataFrame with columns of every event up to a position."""
    parts = max(1, -(-head // TASK_EVENTS))
    read = _make_reader(url, columns, head, parts)
    return spark.range(0, parts, 1, parts).mapInArrow(read, build_spark_schema(columns))


def _make_reader(
    url: str, columns: tuple[str, ...], head: int, parts: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column(0).to_pylist():
                after, until = head * part // parts, head * (part + 1) // parts
                yield from scan_leniently(url, columns, after, until)

    return read


def scan_leniently(
    url: str, columns: tuple[str, ...], after: int, until: int
) -> Iterator[pa.RecordBatch]:
    """Scan a range (after, until] without requiring that every position exists once."""
    return scan(url, ScanSpec(columns=columns, recorded=_ANY_TIME), after, until)


def split_log(spark: SparkSession, head: int) -> list[PositionRange]:
    """Split the positions up to the head into ranges, at least one per parallel task."""
    parts = max(spark.sparkContext.defaultParallelism, -(-head // TASK_EVENTS))
    bounds = [head * part // parts for part in range(parts + 1)]
    return [PositionRange(low + 1, high) for low, high in pairwise(bounds) if high > low]


ORDER_COLUMNS = ("position", "append_position", "tenant_id")
MAX_EXAMPLES = 20


class OrderProblems(msgspec.Struct):
    """Problems of positions and appends in a range: all are counted, the first are described.

    Attributes:
        appends: The number of appends that start in the range.
        position_count: The number of missing or repeated positions.
        append_count: The number of events with a wrong append.
        position_problems: Messages of the first problems of positions.
        append_problems: Messages of the first problems of appends.
    """

    appends: int = 0
    position_count: int = 0
    append_count: int = 0
    position_problems: list[str] = []
    append_problems: list[str] = []

    def add(self, later: OrderProblems) -> None:
        """Add the problems of the next range."""
        self.appends += later.appends
        self.position_count += later.position_count
        self.append_count += later.append_count
        self.position_problems = [*self.position_problems, *later.position_problems][:MAX_EXAMPLES]
        self.append_problems = [*self.append_problems, *later.append_problems][:MAX_EXAMPLES]


def make_order_check(url: str) -> Callable[[PositionRange], OrderProblems]:
    """Return the function with which a task checks a range of a log."""
    return partial(_check_range, url)


def _check_range(url: str, span: PositionRange) -> OrderProblems:
    problems = OrderProblems()
    # The last row before the range, later that of the previous batch: each row is compared with
    # the one before it, also across batches and tasks.
    previous: pa.RecordBatch | None = None
    for batch in scan_leniently(url, ORDER_COLUMNS, max(0, span.first - 2), span.last):
        rows = batch if previous is None else pa.concat_batches([previous, batch])
        if previous is None and rows.column(0)[0].as_py() >= span.first:
            _check_first_row(rows, span.first, problems)
        _check_pairs(rows, problems)
        previous = rows.slice(rows.num_rows - 1)
    last = None if previous is None else previous.column(0)[0].as_py()
    if last != span.last:
        _add_gap(problems, (last or span.first - 1) + 1, span.last)
    return problems


def _check_first_row(rows: pa.RecordBatch, first: int, problems: OrderProblems) -> None:
    """Check a first row without a predecessor: the log's first event, or one after a gap."""
    position, append_position = rows.column(0)[0].as_py(), rows.column(1)[0].as_py()
    if position > first:
        _add_gap(problems, first, position - 1)
    problems.appends += append_position == position
    tenant_id = rows.column(2)[0].as_py()
    _add_append_problem(problems, find_append_problem(position, append_position, tenant_id, None))


def _add_gap(problems: OrderProblems, first: int, last: int) -> None:
    problems.position_count += last - first + 1
    text = f"position {first} is" if first == last else f"positions {first} to {last} are"
    if len(problems.position_problems) < MAX_EXAMPLES:
        problems.position_problems.append(f"{text} missing")


def _add_append_problem(problems: OrderProblems, text: str | None) -> None:
    if text is None:
        return
    problems.append_count += 1
    if len(problems.append_problems) < MAX_EXAMPLES:
        problems.append_problems.append(text)


def _check_pairs(rows: pa.RecordBatch, problems: OrderProblems) -> None:
    """Compare each row with the one before it.

    Arrow compares whole columns, and only rows that differ are checked in Python: a Python check
    of every row would take longer than reading the log.
    """
    earlier, later = rows.slice(0, rows.num_rows - 1), rows.slice(1)
    position, append_position, tenant = later.columns
    begins = pc.equal(append_position, position)
    problems.appends += pc.sum(begins).as_py() or 0
    consecutive = pc.equal(position, pc.add(earlier.column(0), 1))
    for row in _find_false(consecutive):
        current, previous = position[row].as_py(), earlier.column(0)[row].as_py()
        if current == previous:
            problems.position_count += 1
            if len(problems.position_problems) < MAX_EXAMPLES:
                problems.position_problems.append(f"position {current} occurs twice")
        else:
            _add_gap(problems, previous + 1, current - 1)
    same_append = pc.equal(append_position, earlier.column(1))
    same_tenant = pc.equal(tenant, earlier.column(2))
    for row in _find_false(pc.or_(begins, pc.and_(same_append, same_tenant))):
        start = earlier.column(1)[row].as_py(), earlier.column(2)[row].as_py()
        fields = position[row].as_py(), append_position[row].as_py(), tenant[row].as_py()
        _add_append_problem(problems, find_append_problem(*fields, start))


def _find_false(mask: pa.Array) -> Iterator[int]:
    if not pc.all(mask).as_py() and len(mask):
        yield from pc.indices_nonzero(pc.invert(mask)).to_pylist()
