"""Batch reads through Spark: typed columns, options, pushed-down filters."""

from collections.abc import Callable
from urllib.parse import urlsplit

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import seriatim
from seriatim import NewEvent
from seriatim.pipeline.columns import EVENT_SCHEMA, build_spark_schema
from seriatim.pipeline.record_batches import decode_records
from seriatim.spark import register
from seriatim.store.postgres.migrate import migrate
from tests.fixtures.postgres_server import PostgresServer
from tests.pipeline.event_samples import make_varied_events, read_stored_events

Fill = Callable[..., None]
Read = Callable[..., DataFrame]


def positions(frame: DataFrame) -> list[int]:
    """The positions of a frame, in order."""
    return sorted(row.position for row in frame.select("position").collect())


def test_spark_reads_the_records_of_the_log(read: Read, fill: Fill, log_url: str) -> None:
    """J1: a batch read returns all columns of all events, typed."""
    fill(*make_varied_events(100))
    frame = read(partitions=3)
    assert frame.schema == build_spark_schema()
    assert frame.rdd.getNumPartitions() == 3
    table = frame.orderBy("position").toArrow().cast(EVENT_SCHEMA)
    records = [record for batch in table.to_batches() for record in decode_records(batch)]
    assert records == read_stored_events(log_url)


def test_an_empty_log_and_one_event(read: Read, fill: Fill) -> None:
    """J1: an empty log gives no row, one event gives one row."""
    assert positions(read()) == []
    fill(NewEvent(event_type="a"))
    assert positions(read()) == [1]


def test_ranges_and_columns(read: Read, fill: Fill) -> None:
    """J1: startingPosition is exclusive, endingPosition inclusive; columns can be selected."""
    fill(*make_varied_events(50))
    assert positions(read(startingPosition=10, endingPosition=20)) == list(range(11, 21))
    assert positions(read(startingPosition="earliest", endingPosition=999)) == list(range(1, 51))
    assert positions(read(startingPosition=50)) == []
    frame = read(columns="payload, position")
    assert frame.columns == ["payload", "position"]
    assert frame.count() == 50


def test_a_given_schema_selects_columns(
    spark: SparkSession, read: Read, fill: Fill, log_url: str
) -> None:
    """J1: a given schema selects columns, and is refused if it is not one of events."""
    fill(*make_varied_events(5))
    reader = spark.read.format("seriatim").option("url", log_url)
    assert reader.schema(build_spark_schema(("event_type", "position"))).load().count() == 5
    with pytest.raises(
        PySparkException, match="'other' of type bigint, which is no column of events"
    ):
        reader.schema(StructType([StructField("other", LongType())])).load().count()


def test_options_filter_a_batch_read(read: Read, fill: Fill, log_url: str) -> None:
    """J1: options filter a batch read as the same condition on the records does."""
    fill(*make_varied_events(40))
    records = read_stored_events(log_url)
    for options, fits in (
        ({"types": "order.*,seat taken"}, lambda r: r.event_type[:6] in ("order.", "seat t")),
        ({"types": '["order.paid"]'}, lambda r: r.event_type == "order.paid"),
        ({"streamType": "order", "streamId": "o-4"}, lambda r: r.stream == ("order", "o-4")),
        ({"correlationId": "c"}, lambda r: r.correlation_id == "c"),
        ({"causationId": "none"}, lambda r: r.causation_id == "none"),
        (
            {"actorId": "ada", "types": "order.paid"},
            lambda r: (r.actor_id, r.event_type) == ("ada", "order.paid"),
        ),
        ({"types": "*"}, lambda r: r.event_type),
        ({"types": "order.\\*"}, lambda r: r.event_type == "order.*"),
        ({"tenant": "default"}, lambda r: r.tenant_id),
        ({"tenant": "other"}, lambda r: not r.tenant_id),
        ({"occurredUntil": "2024-02-05T10:00:00.5Z"}, lambda r: r.occurred_at < "2024-02-06"),
        ({"recordedAfter": "2100-01-01T00:00:00Z"}, lambda r: r.recorded_at > "21"),
    ):
        assert positions(read(**options)) == [r.position for r in records if fits(r)], options


_WHEN = "timestamp '2024-02-05T10:00:00.5Z'"
_FILTERS = [
    "position = 7",
    "position between 5 and 20",
    "position > 5 and position < 9",
    "position < 0",
    "position > 4611686018427387904",
    "position in (3, 4, 90)",
    "position <=> 3",
    "event_type = 'order.paid'",
    "event_type in ('order.paid', 'seat taken', 'none')",
    "event_type in ('order.paid', null)",
    "event_type like 'order%'",
    "event_type like 'o%' and event_type like 'order.%'",
    "event_type like '%paid'",
    "event_type <> 'order.paid'",
    "event_type > 'order.paid'",
    "stream_type = 'order' and stream_id = 'o-1'",
    "tenant_id = 'default' and stream_type = 'order' and stream_id = 'o-1'",
    "stream_id is null",
    "stream_id is not null",
    "stream_id <=> 'o-1'",
    "stream_id <=> null",
    "tenant_id = 'other'",
    "event_id = 'event/5'",
    "correlation_id = 'c' and event_type like 'order.%'",
    "causation_id = 'none'",
    "actor_id = 'ada'",
    "correlation_id is null",
    f"occurred_at > {_WHEN}",
    f"occurred_at >= {_WHEN}",
    f"occurred_at < {_WHEN}",
    f"occurred_at <= {_WHEN}",
    f"occurred_at = {_WHEN}",
    f"recorded_at > {_WHEN} and recorded_at < timestamp '2100-01-01T00:00:00Z'",
    "position = 1 or event_type = 'order.paid'",
    "position > 10 and event_version = 2 and event_type in ('order.paid', 'order.placed')",
]


def test_pushed_filters_equal_sparks_own(read: Read, fill: Fill) -> None:
    """J1: pushed-down filters return the same rows as Spark's own."""
    fill(*make_varied_events(60))
    whole = read().cache()  # cached, so that Spark filters it without push-down
    try:
        assert whole.count() == 60
        for filter_ in _FILTERS:
            assert positions(read().where(filter_)) == positions(whole.where(filter_)), filter_
    finally:
        whole.unpersist()


def test_pushed_filters_are_not_repeated(read: Read, fill: Fill) -> None:
    """J1: Spark does not repeat pushed-down filters, and fewer partitions are read."""
    fill(*make_varied_events(20))
    frame = read(partitions=4).where("position > 17 and event_type = 'order.paid'")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan
    assert frame.rdd.getNumPartitions() == 3
    kept = read().where("position > 17 and event_version = 2")
    assert "Filter (" in kept._jdf.queryExecution().executedPlan().toString()


def test_payloads_as_variants(read: Read, fill: Fill) -> None:
    """J1: payloads can be read as VARIANT on request."""
    fill(NewEvent(event_type="a", payload={"n": 7, "deep": {"list": [1, 2]}}))
    frame = read(payload="variant", columns="position,payload")
    assert frame.schema["payload"].dataType.simpleString() == "variant"
    row = frame.selectExpr("variant_get(payload, '$.deep.list[1]', 'int') as x").first()
    assert row is not None
    assert row.x == 2


def test_marker_rows_report_the_covered_range(read: Read, fill: Fill) -> None:
    """J1: with marks each partition reports the range of positions that it covered."""
    fill(*make_varied_events(30))
    rows = read(types="none", watermarks="true", partitions=3).orderBy("position").collect()
    assert [(r.append_position, r.position) for r in rows] == [(0, 10), (10, 20), (20, 30)]
    assert {(r.event_type, r.payload, r.stream_id, tuple(r.tags)) for r in rows} == {
        ("", "{}", None, ())
    }


def test_a_read_of_one_tenant_returns_only_its_events(read: Read, fill: Fill) -> None:
    """J1: a read of one tenant returns only its events; without a tenant, all events."""
    fill(NewEvent(event_type="a"), NewEvent(event_type="a"))
    fill(NewEvent(event_type="a"), tenant_id="other")
    assert positions(read(tenant="default")) == [1, 2]
    assert positions(read(tenant="other")) == [3]
    assert positions(read()) == [1, 2, 3]


def test_an_open_transaction_makes_no_gap(spark: SparkSession, postgres_url: str) -> None:
    """J1: events of an open transaction are not read, and are read after its commit."""
    register(spark)
    frame = spark.read.format("seriatim").option("url", postgres_url)
    with seriatim.open(postgres_url) as log, psycopg.connect(postgres_url) as connection:
        log.append([NewEvent(event_type="a")])
        log.append([NewEvent(event_type="late")], connection=connection)
        assert positions(frame.load()) == [1]
        connection.commit()
        log.append([NewEvent(event_type="b")])
    assert positions(frame.load()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"colums": "position"}, "colums is not an option"),
        ({"startingPosition": "latest"}, "only for streams"),
        ({"maxEventsPerBatch": "5"}, "is only valid for streams"),
        ({"url": "sqlite:////nowhere/x.db"}, "cannot open"),
        (
            {"url": "postgresql://u:hunter2@127.0.0.1:1/x"},
            "cannot connect to Postgres at 127.0.0.1:1",
        ),
    ],
    ids=str,
)
def test_spark_errors_keep_the_message(
    spark: SparkSession, options: dict[str, str], words: str
) -> None:
    """L: an error names the problem and contains no password."""
    register(spark)
    given = {"url": "sqlite:////nowhere/y.db", **options}
    with pytest.raises(PySparkException, match=words) as caught:
        spark.read.format("seriatim").options(**given).load().count()
    assert "hunter2" not in str(caught.value)


def test_a_database_without_a_log_is_named(
    spark: SparkSession, read: Read, empty_postgres_url: str
) -> None:
    """L: reading a database without a log is an error that names `seriatim init`."""
    with pytest.raises(PySparkException, match="seriatim init"):
        spark.read.format("seriatim").option("url", empty_postgres_url).load().count()


def test_a_read_only_role_can_read(
    spark: SparkSession, postgres_server: PostgresServer, postgres_url: str
) -> None:
    """K: Spark reads with a role that has only the right to select."""
    with seriatim.open(postgres_url) as log:
        log.append([NewEvent(event_type="a")])
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("create role spark_reader login")
        connection.execute("alter role spark_reader set default_transaction_read_only = on")
        connection.execute("grant usage on schema seriatim to spark_reader")
        connection.execute("grant select on seriatim.log, seriatim.events to spark_reader")
    try:
        url = postgres_url.replace("//postgres@", "//spark_reader@")
        assert urlsplit(url).username == "spark_reader"
        assert spark.read.format("seriatim").option("url", url).load().count() == 1
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("drop owned by spark_reader")
            connection.execute("drop role spark_reader")


def test_a_log_in_another_schema_is_read(
    spark: SparkSession, read: Read, empty_postgres_url: str
) -> None:
    """J1: Spark reads the log in the schema of the URL."""
    url = f"{empty_postgres_url}?schema=elsewhere"
    migrate(url)
    with seriatim.open(url) as log:
        log.append([NewEvent(event_type="a")])
    assert spark.read.format("seriatim").option("url", url).load().count() == 1
