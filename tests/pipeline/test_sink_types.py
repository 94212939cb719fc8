"""DataFrames that cannot become events are refused by schema or row, never altered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from seriatim import InvalidArgument, SeriatimError
from seriatim.pipeline.scan.scanner import read_head
from seriatim.pipeline.sink.frame_writer import append_frame
from seriatim.spark import register
from tests.pipeline.event_samples import read_stored_events


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture
def log_url(tmp_path: Any) -> str:
    """The URL of an empty log."""
    import seriatim

    url = f"sqlite:///{tmp_path}/log.db"
    seriatim.open(url).close()
    return url


@pytest.mark.parametrize(
    ("column", "expression", "words"),
    [
        ("tags", "'red,blue'", "array<string>"),
        ("tags", "array(1, 2)", "array<string>"),
        ("tags", "map('a', 'b')", "array<string>"),
        ("metadata", "'a=b'", "map<string,string>"),
        ("metadata", "map('a', 1)", "map<string,string>"),
        ("metadata", "named_struct('a', 'b')", "map<string,string>"),
        ("payload", "1", "JSON text, a VARIANT, a struct"),
        ("payload", "array(current_date())", "cast it to text"),
        ("payload", "named_struct('at', current_timestamp())", "cast it to text"),
        ("payload", "named_struct('at', cast(1.5 as decimal(5,2)))", "cast it to text"),
        ("payload", "named_struct('x', array(named_struct('b', cast('a' as binary))))", "binary"),
        ("payload", "map(1, 'a')", "JSON keys are texts"),
        ("payload", "named_struct('a', 1, 'a', 2)", "same name twice"),
        ("event_version", "'2'", "whole number"),
        ("event_version", "2.0", "whole number"),
        ("occurred_at", "current_date()", "timestamp with a time zone"),
        ("occurred_at", "timestamp_ntz'2024-01-01 00:00:00'", "timestamp with a time zone"),
        ("occurred_at", "20240101", "timestamp with a time zone"),
        ("event_id", "7", "must be text"),
        ("stream_id", "7", "must be text"),
        ("actor_id", "cast('a' as binary)", "must be text"),
        ("correlation_id", "array('a')", "must be text"),
    ],
)
def test_columns_of_another_type_are_refused_at_once(
    spark: SparkSession, log_url: str, column: str, expression: str, words: str
) -> None:
    """A2, B2: a column of a type that an event cannot have is refused before any append."""
    frame = spark.range(3).select(f.lit("a").alias("event_type"), f.expr(expression).alias(column))
    with pytest.raises(InvalidArgument, match=column) as caught:
        append_frame(frame, log_url)
    assert words in caught.value.message
    with pytest.raises(PySparkException, match=column):
        frame.write.format("seriatim").option("url", log_url).mode("append").save()
    assert read_head(log_url) == 0


def test_columns_without_a_type_are_accepted(spark: SparkSession, log_url: str) -> None:
    """A1: columns of Spark's null type are accepted and set nothing."""
    frame = spark.range(1).selectExpr("'a' as event_type", "null as tags", "null as actor_id")
    assert append_frame(frame, log_url).appended == 1


def nest_json(levels: int) -> str:
    """Return JSON with this many levels."""
    return '{"a":' * levels + "1" + "}" * levels


@pytest.mark.parametrize("as_variant", [False, True])
def test_invalid_rows_are_refused_one_by_one(
    spark: SparkSession, log_url: str, tmp_path: Any, as_variant: bool
) -> None:
    """A2, A4, K3: each invalid row is refused with its reason, and all others are appended."""
    good = [("one", '{"n": 1}'), ("two", '{ "n" : 1.50, "é": "\\u00e9" }')]
    bad = [("", '{"n": 2}'), ("deep", nest_json(400))]
    if not as_variant:
        bad += [
            ("twice", '{"a": 1, "a": 2}'),
            ("inner", '{"x": [{"b": {}, "b": {}}]}'),
            ("deepest", nest_json(5000)),
            ("torn", '{"a":'),
            ("nan", '{"a": NaN}'),
        ]
    rows = spark.createDataFrame([*good, *bad], "event_id string, payload string")
    rows = rows.withColumn("event_type", f.lit("a")).coalesce(1)
    if as_variant:
        rows = rows.withColumn("payload", f.parse_json("payload"))

    report = append_frame(rows, log_url, refused=str(tmp_path / "refused"))

    assert (report.appended, report.refused) == (2, len(bad)), report
    assert {event.event_id for event in read_stored_events(log_url)} == {"one", "two"}
    lines = [
        json.loads(line)
        for path in (tmp_path / "refused").iterdir()
        for line in path.read_text().splitlines()
    ]
    assert {line["row"]["event_id"] for line in lines} == {event_id for event_id, _ in bad}
    reasons = {line["row"]["event_id"]: line["message"] for line in lines}
    assert "event_id" in reasons[""]
    if not as_variant:
        assert "twice" in reasons["twice"]
        assert "twice" in reasons["inner"]
        assert "deep" in reasons["deepest"]


@pytest.mark.parametrize(
    ("column", "expression"),
    [
        ("occurred_at", "timestamp'+12000-01-01 00:00:00Z'"),
        ("occurred_at", "timestamp'-0044-03-15 00:00:00Z'"),
        ("payload", "cast(x'7b2261223a22ff227d' as string)"),
        ("payload", "named_struct('a', cast(x'ff' as string))"),
        ("event_type", "cast(x'61ff' as string)"),
        ("tags", "array(cast(x'ff' as string))"),
        ("metadata", "map('a', cast(x'ff' as string))"),
        ("source", "date'+12000-01-01'"),
    ],
)
def test_values_python_cannot_read_refuse_their_row(
    spark: SparkSession, log_url: str, tmp_path: Any, column: str, expression: str
) -> None:
    """A2, B2: a time or a text that Python cannot read refuses its row and no other."""
    rows = spark.range(3).withColumn("event_type", f.lit("a"))
    bad = f.when(f.col("id") == 1, f.expr(expression))
    rows = rows.withColumn(column, f.coalesce(bad, f.lit("b")) if column == "event_type" else bad)
    options = {"idColumns": ["id", "source"] if column == "source" else ["id"]}

    report = append_frame(rows.coalesce(1), log_url, refused=str(tmp_path / "refused"), **options)

    assert (report.appended, report.refused) == (2, 1), report
    assert f"{column} cannot be read" in report.reasons[0].message
    [kept] = (tmp_path / "refused").iterdir()
    assert json.loads(kept.read_text())["row"]["id"] == 1


def test_a_refused_frame_raises_a_seriatim_error(spark: SparkSession, log_url: str) -> None:
    """L1: a refusal in the driver is raised as a Seriatim error with its code."""
    frame = spark.range(1).selectExpr("'a' as event_type", "'x' as hat")
    with pytest.raises(SeriatimError, match="no column 'hat'") as caught:
        append_frame(frame, log_url)
    assert caught.value.code == "invalid_argument"
