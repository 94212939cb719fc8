"""Audit checks as Spark expressions: of single events, of event ids and of streams."""

from __future__ import annotations

from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from seriatim.core.canonical import HASH_PREFIX
from seriatim.core.ids import ID_BYTES_MAX, KEY_BYTES_MAX
from seriatim.core.kinds import AGGREGATE_STREAM_KIND, TRACE_STREAM_TYPE, Rules
from seriatim.pipeline.digest import build_event_hash, build_word_sums

ID_COLUMNS = ("position", "tenant_id", "event_id")
STREAM_COLUMNS = (
    "position",
    "tenant_id",
    "stream_type",
    "stream_id",
    "stream_seq",
    "event_type",
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


def _build_row_problems() -> dict[str, Column]:
    """Return an expression per check: a message if the event is invalid, else null."""
    where = f.concat(f.lit("position "), f.col("position"), f.lit(": "))

    def first_of(*flaws: tuple[Column, str]) -> Column:
        messages = [f.when(flaw, f.concat(where, f.lit(text))) for flaw, text in flaws]
        return f.coalesce(*messages)

    hashed = f.concat(f.lit(HASH_PREFIX), f.sha2("payload", 256))
    stream = [f.col(name).isNull() for name in ("stream_type", "stream_id", "stream_seq")]
    key_bytes = f.octet_length("idempotency_key")
    return {
        "payloads": first_of(
            (hashed != f.col("payload_hash"), "the payload does not match its hash")
        ),
        "envelopes": first_of(
            *(
                (_is_invalid_id(n), f"{n} is not a valid id")
                for n in ("event_id", "tenant_id", "event_type")
            ),
            *((_is_invalid_id(n), f"{n} is not a valid id") for n in ("stream_type", "stream_id")),
            (
                (stream[0] != stream[1]) | (stream[0] != stream[2]),
                "stream_type, stream_id and stream_seq are only partly set",
            ),
            (
                (key_bytes < 1) | (key_bytes > KEY_BYTES_MAX),
                "idempotency_key has an invalid length",
            ),
            (f.col("event_version") < 1, "event_version is below 1"),
            (
                ~f.col("append_position").between(1, f.col("position")),
                "append_position is not between 1 and the position",
            ),
            (
                f.col("occurred_text").isNull() & (f.col("occurred_at") != f.col("recorded_at")),
                "occurred_at differs from recorded_at, but no occurred_text is stored",
            ),
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
    problems = _build_row_problems()
    words = build_word_sums(f.col("hash"))
    table = (
        rows.select(
            "position",
            "event_type",
            f.date_format("recorded_at", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").alias("recorded_at"),
            f.octet_length("payload").alias("bytes"),
            build_event_hash().alias("hash"),
            *(problem.isNotNull().cast("bigint").alias(name) for name, problem in problems.items()),
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
    """Return the messages of the first events that fail a check."""
    messages = rows.select("position", _build_row_problems()[check].alias("message"))
    failed = messages.where(f.col("message").isNotNull()).orderBy("position").limit(limit)
    return [row["message"] for row in failed.collect()]


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


def find_stream_problems(rows: DataFrame, rules: Rules) -> DataFrame:
    """Return the events that violate the rules of their streams: position, level and message.

    Args:
        rows: The `STREAM_COLUMNS` of all events.
        rules: The declarations of the log.
    """
    stream = ("tenant_id", "stream_type", "stream_id")
    before = Window.partitionBy(*stream).orderBy("position")
    steps = rows.where("stream_id is not null").select(
        "*",
        f.lag("stream_seq").over(before).alias("prior"),
        f.lag("event_type").over(before).alias("prior_type"),
    )
    starts = f.col("prior").isNull()
    seq, event_type, prior_type = f.col("stream_seq"), f.col("event_type"), f.col("prior_type")
    opening, closing, first = _build_kind_columns(rules)
    # A kind may have been declared after its streams were started, so violations of declared rules
    # are warnings; the kind of traces is built in.
    rule = f.when(f.col("stream_type") == TRACE_STREAM_TYPE, "error").otherwise("warning")
    first_level = f.when(seq.isin(0, 1), rule).otherwise("error")
    flaws = [
        (starts & (seq != first), first_level, f.concat(f.lit(" starts with number "), seq)),
        (
            starts & opening.isNotNull() & (event_type != opening),
            rule,
            f.concat(f.lit(" does not start with "), opening),
        ),
        (
            ~starts & (seq != f.col("prior") + 1),
            f.lit("error"),
            f.concat(f.lit(" has number "), seq, f.lit(" after "), f.col("prior")),
        ),
        (
            ~starts & f.array_contains(closing, prior_type),
            rule,
            f.concat(f.lit(" continues after it was closed by "), prior_type),
        ),
        (~starts & (event_type == opening), rule, f.lit(" is opened a second time")),
    ]
    where = f.format_string("position %d: stream (%s, %s)", "position", *stream[1:])
    problems = f.array(
        *(
            f.when(flaw, f.struct(level.alias("level"), f.concat(where, text).alias("message")))
            for flaw, level, text in flaws
        )
    )
    found = steps.select("position", f.explode(f.array_compact(problems)).alias("problem"))
    return found.select("position", "problem.level", "problem.message")


def _build_kind_columns(rules: Rules) -> tuple[Column, Column, Column]:
    """Return expressions for opening type, closing types and first number of an event's kind."""
    opening: Column = f.lit(AGGREGATE_STREAM_KIND.opening_type).cast("string")
    closing: Column = f.lit([]).cast("array<string>")
    first: Column = f.lit(AGGREGATE_STREAM_KIND.first_seq)
    for kind in rules.kinds.values():
        matches = f.col("stream_type") == kind.name
        opening = f.when(matches, f.lit(kind.opening_type)).otherwise(opening)
        closed = f.array(*map(f.lit, kind.closing_types)).cast("array<string>")
        closing = f.when(matches, closed).otherwise(closing)
        first = f.when(matches, f.lit(kind.first_seq)).otherwise(first)
    return opening, closing, first
