"""Audit checks of single events, of event ids and of streams.

Spark expressions select the events that may violate a rule, because the JVM evaluates them many
times faster than Python. The rules themselves are those of `verify` (`seriatim.core.consistency`):
they describe the selected events, and decide about streams. So both provers report the same
problems in the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from seriatim.core.canonical import HASH_PREFIX
from seriatim.core.consistency import (
    find_envelope_problems,
    find_payload_problems,
    find_stream_problems,
)
from seriatim.core.ids import ID_BYTES_MAX, KEY_BYTES_MAX
from seriatim.core.kinds import AGGREGATE_STREAM_KIND, Rules, StreamKind
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
    others = [f.when(flag, f.lit(text)) for text, flag in _build_column_flags().items()]
    failed = (
        rows.where(_build_row_flags()[check])
        .select("position", f.coalesce(*others).alias("other"), *columns)
        .orderBy("position")
        .limit(limit)
    )
    describe = find_payload_problems if check == "payloads" else find_envelope_problems
    messages = []
    for row in failed.collect():
        problems = describe(**{name: row[name] for name in columns})
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
    before = Window.partitionBy(*stream).orderBy("position")
    steps = rows.where("stream_id is not null").select(
        "*",
        f.lag("stream_seq").over(before).alias("prior"),
        f.lag("event_type").over(before).alias("prior_type"),
    )
    starts = f.col("prior").isNull()
    seq, event_type, prior_type = f.col("stream_seq"), f.col("event_type"), f.col("prior_type")
    opening, closing, first = _build_kind_columns(rules)
    suspicious = f.when(starts, (seq != first) | (event_type != opening)).otherwise(
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
        kind = self.kinds.get(stream_type, AGGREGATE_STREAM_KIND)
        last = None if row["prior"] is None else (row["prior"], row["prior_type"])
        for level, text in find_stream_problems(row["stream_seq"], row["event_type"], last, kind):
            message = f"position {position}: stream ({stream_type}, {row['stream_id']}) {text}"
            yield {"position": position, "level": level, "message": message}


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
