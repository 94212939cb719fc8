"""The checks of an audit as Spark expressions: on single events, on ids and on streams."""

from __future__ import annotations

from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from seriatim.core.canonical import HASH_PREFIX
from seriatim.core.ids import ID_BYTES_MAX, KEY_BYTES_MAX
from seriatim.core.kinds import AGGREGATE, TRACE_KIND, Rules
from seriatim.pipeline.digest import event_hash, word_sums

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
_ODD = "^[ \\t\\n\\r\\x0b\\x0c]|[ \\t\\n\\r\\x0b\\x0c]$|[\\x00-\\x1f\\x7f-\\x9f]"
_WORDS = 8


class Totals(msgspec.Struct, frozen=True):
    """The sums over all events: how many, how many broken in which way, and their digest."""

    events: int
    words: list[int]
    problems: dict[str, int]


def _odd_id(name: str) -> Column:
    column = f.col(name)
    return (
        (f.octet_length(column) == 0) | (f.octet_length(column) > ID_BYTES_MAX) | column.rlike(_ODD)
    )


def _row_problems() -> dict[str, Column]:
    """Return what is wrong with an event by itself: a text for each check, null if nothing is."""
    where = f.concat(f.lit("position "), f.col("position"), f.lit(": "))

    def told(*flaws: tuple[Column, str]) -> Column:
        texts = [f.when(flaw, f.concat(where, f.lit(text))) for flaw, text in flaws]
        return f.coalesce(*texts)

    hashed = f.concat(f.lit(HASH_PREFIX), f.sha2("payload", 256))
    stream = [f.col(name).isNull() for name in ("stream_type", "stream_id", "stream_seq")]
    key_bytes = f.octet_length("idempotency_key")
    return {
        "payloads": told((hashed != f.col("payload_hash"), "the payload does not have its hash")),
        "envelopes": told(
            *((_odd_id(n), f"{n} is no id") for n in ("event_id", "tenant_id", "event_type")),
            *((_odd_id(n), f"{n} is no id") for n in ("stream_type", "stream_id")),
            ((stream[0] != stream[1]) | (stream[0] != stream[2]), "it has half a stream"),
            ((key_bytes < 1) | (key_bytes > KEY_BYTES_MAX), "idempotency_key has a wrong length"),
            (f.col("event_version") < 1, "event_version is below 1"),
            (~f.col("append_position").between(1, f.col("position")), "its append begins later"),
            (
                f.col("occurred_text").isNull() & (f.col("occurred_at") != f.col("recorded_at")),
                "occurred_at is neither given nor recorded_at",
            ),
        ),
    }


def type_table(rows: DataFrame, limit: int) -> tuple[Totals, list[dict[str, Any]], int]:
    """Return the totals of all events, the table of the commonest types, and how many there are."""
    problems = _row_problems()
    words = word_sums(f.col("hash"))
    table = (
        rows.select(
            "position",
            "event_type",
            f.date_format("recorded_at", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'").alias("recorded_at"),
            f.octet_length("payload").alias("bytes"),
            event_hash().alias("hash"),
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
        [summed] = table.agg(f.count("*"), *(f.sum(name).alias(name) for name in names)).collect()
        top = table.orderBy(f.desc("events"), "event_type").limit(limit).collect()
    finally:
        table.unpersist()
    totals = Totals(
        summed["events"] or 0,
        [summed[f"word_{nth}"] or 0 for nth in range(_WORDS)],
        {name: summed[name] or 0 for name in problems},
    )
    drop = {*problems, *(f"word_{nth}" for nth in range(_WORDS))}
    shown = [{k: v for k, v in row.asDict().items() if k not in drop} for row in top]
    return totals, shown, summed[0]


def row_examples(rows: DataFrame, check: str, limit: int) -> list[str]:
    """Return what is wrong with the first events that a check refuses."""
    told = rows.select("position", _row_problems()[check].alias("message"))
    bad = told.where(f.col("message").isNotNull()).orderBy("position").limit(limit)
    return [row["message"] for row in bad.collect()]


def repeated_ids(rows: DataFrame) -> DataFrame:
    """Return the event ids that a tenant has more than once: position and message."""
    again = (
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
    return again.select("position", text.alias("message"))


def stream_problems(rows: DataFrame, rules: Rules) -> DataFrame:
    """Return the steps of streams that their rules do not allow: position, level and message."""
    stream = ("tenant_id", "stream_type", "stream_id")
    before = Window.partitionBy(*stream).orderBy("position")
    steps = rows.where("stream_id is not null").select(
        "*",
        f.lag("stream_seq").over(before).alias("prior"),
        f.lag("event_type").over(before).alias("prior_type"),
    )
    begins = f.col("prior").isNull()
    seq, event_type, prior_type = f.col("stream_seq"), f.col("event_type"), f.col("prior_type")
    opening, closing, first = _kind_columns(rules)
    rule = f.when(f.col("stream_type") == TRACE_KIND, "error").otherwise("warning")
    odd = f.when(seq.isin(0, 1), rule).otherwise("error")
    flaws = [
        (begins & (seq != first), odd, f.concat(f.lit(" begins with number "), seq)),
        (
            begins & opening.isNotNull() & (event_type != opening),
            rule,
            f.concat(f.lit(" does not open with "), opening),
        ),
        (
            ~begins & (seq != f.col("prior") + 1),
            f.lit("error"),
            f.concat(f.lit(" has number "), seq, f.lit(" after "), f.col("prior")),
        ),
        (
            ~begins & f.array_contains(closing, prior_type),
            rule,
            f.concat(f.lit(" goes on after it was closed by "), prior_type),
        ),
        (~begins & (event_type == opening), rule, f.lit(" opens a second time")),
    ]
    where = f.format_string("position %d: stream (%s, %s)", "position", *stream[1:])
    told = f.array(
        *(
            f.when(flaw, f.struct(level.alias("level"), f.concat(where, text).alias("message")))
            for flaw, level, text in flaws
        )
    )
    found = steps.select("position", f.explode(f.array_compact(told)).alias("problem"))
    return found.select("position", "problem.level", "problem.message")


def _kind_columns(rules: Rules) -> tuple[Column, Column, Column]:
    """Return the opening type, the closing types and the first number of an event's kind."""
    opening: Column = f.lit(AGGREGATE.opening_type).cast("string")
    closing: Column = f.lit([]).cast("array<string>")
    first: Column = f.lit(AGGREGATE.first_seq)
    for kind in rules.kinds.values():
        mine = f.col("stream_type") == kind.name
        opening = f.when(mine, f.lit(kind.opening_type)).otherwise(opening)
        closed = f.array(*map(f.lit, kind.closing_types)).cast("array<string>")
        closing = f.when(mine, closed).otherwise(closing)
        first = f.when(mine, f.lit(kind.first_seq)).otherwise(first)
    return opening, closing, first
