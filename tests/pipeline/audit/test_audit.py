"""An audit passes an intact log and reports the damage of another."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

import seriatim
from seriatim import BackendFailure, NewEvent, StreamKind
from seriatim.pipeline.archive.archiver import archive
from seriatim.pipeline.audit import checks
from seriatim.pipeline.audit.report import MAX_REPORTED_EXAMPLES, AuditReport, audit
from tests.pipeline.archive.support import fill, fill_every_shape, records

Break = Callable[..., None]


@pytest.fixture
def break_log(log_url: str, tmp_path: Path) -> Break:
    """Return a function that runs SQL on a log without its triggers and unique indexes."""

    def on_sqlite(*statements: str) -> None:
        connection = sqlite3.connect(tmp_path / "log.db")
        objects = "select type, name from sqlite_master where tbl_name = 'events'"
        objects += " and sql is not null and type <> 'table'"
        for kind, name in connection.execute(objects).fetchall():
            connection.execute(f"drop {kind} {name}")
        connection.execute("pragma ignore_check_constraints = on")
        for statement in statements:
            connection.execute(statement)
        connection.commit()
        connection.close()

    def on_postgres(*statements: str) -> None:
        with psycopg.connect(log_url, options="-c search_path=seriatim") as connection:
            connection.execute("alter table events disable trigger all")
            connection.execute("alter table events drop constraint events_shape")
            connection.execute("alter table events drop constraint events_position")
            connection.execute("drop index events_id, events_stream")
            for statement in statements:
                connection.execute(statement.encode())

    return on_sqlite if log_url.startswith("sqlite") else on_postgres


def messages_by_check(report: AuditReport) -> dict[str, str]:
    """Return the error messages by check."""
    return {
        finding.check: finding.message for finding in report.findings if finding.level == "error"
    }


def test_an_intact_log_passes(spark: SparkSession, log_url: str, tmp_path: Path) -> None:
    """J2: an intact log passes every check, with its types counted and the archive's digest."""
    last = fill_every_shape(log_url)
    at = str(tmp_path / "archive")
    sealed = archive(spark, log_url, at, segment_events=10, seal_tail=True)

    report = audit(spark, log_url, archive=at)

    assert report.ok, report.findings
    assert (report.head, report.events) == (last, last)
    assert report.digest == sealed.digest
    kept = records(log_url)
    of_type = {type_.event_type: type_ for type_ in report.types}
    assert len(of_type) == report.type_count == len({one.event_type for one in kept})
    for name, counted in of_type.items():
        matching = [one for one in kept if one.event_type == name]
        assert counted.events == len(matching)
        assert counted.payload_bytes == sum(len(one.payload_json.encode()) for one in matching)
        assert (counted.first_position, counted.last_position) == (
            matching[0].position,
            matching[-1].position,
        )
        assert counted.first_recorded_at == matching[0].recorded_at
        assert counted.last_recorded_at == matching[-1].recorded_at
    assert {finding.check for finding in report.findings} == {
        "positions",
        "appends",
        "payloads",
        "envelopes",
        "event ids",
        "streams",
        "archive",
    }


def test_an_empty_log_passes(spark: SparkSession, log_url: str) -> None:
    """J2: an audit of an empty log passes."""
    seriatim.open(log_url).close()

    report = audit(spark, log_url)

    assert report.ok, report.findings
    assert (report.events, report.types) == (0, [])


# What is done to a log of 60 events, one append in 7 streams, and what the audit says of it.
LOST = [
    ("delete from events where position = 1", "positions", "position 1 is missing"),
    ("delete from events where position = 7", "positions", "position 7 is missing"),
    (
        "delete from events where position between 24 and 27",
        "positions",
        "positions 24 to 27 are missing",
    ),
    ("select 1", "appends", "position 2 has the append position 1, but no append starts before it"),
    ("select 1", "streams", "stream (s, 0) begins with number 2"),
]
CHANGED = [
    (
        "update events set append_position = 6 where position = 9",
        "appends",
        "position 9 has the append position 6, but its append starts at 1",
    ),
    (
        "update events set tenant_id = 'other' where position = 11",
        "appends",
        "position 11 has another tenant than the rest of its append",
    ),
    (
        "update events set payload = '{}' where position = 13",
        "payloads",
        "position 13: the payload does not match its hash",
    ),
    (
        "update events set event_type = ' x' where position = 15",
        "envelopes",
        "position 15: event_type must not start or end with white space",
    ),
    (
        "update events set event_version = 0 where position = 16",
        "envelopes",
        "position 16: event_version is below 1",
    ),
    (
        "update events set idempotency_key = '' where position = 17",
        "envelopes",
        "position 17: idempotency_key must have 1 to 200 bytes",
    ),
    (
        "update events set stream_type = null where position = 18",
        "envelopes",
        "position 18: stream_type must be a string",
    ),
    (
        "update events set event_id = 'twice' where position in (3, 19)",
        "event ids",
        "tenant default has event id twice 2 times, at positions 3 to 19",
    ),
    (
        "update events set stream_seq = 9 where position = 23",
        "streams",
        "position 23: stream (s, 1) has number 9 after 3",
    ),
    (
        "update events set stream_seq = 7 where position = 2",
        "streams",
        "position 2: stream (s, 1) begins with number 7",
    ),
]


@pytest.mark.parametrize("damage", [LOST, CHANGED], ids=["lost", "changed"])
def test_damage_is_reported_by_its_check(
    spark: SparkSession, log_url: str, break_log: Break, damage: list[tuple[str, str, str]]
) -> None:
    """B3: each kind of damage is an error of its check with the position."""
    fill(log_url, 60)
    break_log(*(sql for sql, _, _ in damage))

    report = audit(spark, log_url)

    assert not report.ok
    found = messages_by_check(report)
    for _, check, message in damage:
        assert message in found[check], found
    assert set(found) == {check for _, check, _ in damage}


def test_a_lost_tail_is_only_visible_in_the_count(
    spark: SparkSession, log_url: str, break_log: Break
) -> None:
    """B3: a log without its last events passes, with their number missing in the count."""
    fill(log_url, 20)
    break_log("delete from events where position > 15")

    assert audit(spark, log_url).events == 15


def test_a_position_that_occurs_twice_is_reported(spark: SparkSession, postgres_url: str) -> None:
    """B3: a position that occurs twice is reported."""
    fill(postgres_url, 20)
    with psycopg.connect(postgres_url, options="-c search_path=seriatim") as connection:
        connection.execute("alter table events disable trigger all")
        connection.execute("alter table events drop constraint events_position")
        connection.execute("drop index events_id, events_stream")
        connection.execute("insert into events select * from events where position = 8")

    found = messages_by_check(audit(spark, postgres_url))

    assert found["positions"] == "position 8 occurs twice"
    assert "2 times, at positions 8 to 8" in found["event ids"]


def test_boundaries_of_tasks_are_checked(
    spark: SparkSession, log_url: str, break_log: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J2: gaps at the boundaries of tasks are found in positions and streams."""
    monkeypatch.setattr(checks, "TASK_EVENTS", 5)
    fill(log_url, 40)
    assert audit(spark, log_url).ok
    break_log("delete from events where position in (10, 11, 20, 26)")

    found = messages_by_check(audit(spark, log_url))

    for text in ("position 10 is", "position 11 is", "position 20 is", "position 26 is"):
        assert text in found["positions"]
    assert "has number" in found["streams"]


def test_reported_problems_are_bounded(spark: SparkSession, log_url: str, break_log: Break) -> None:
    """J2: an audit lists a bounded number of problems and counts the others."""
    fill(log_url, 100)
    break_log("update events set payload = '[]', stream_seq = 50")

    found = messages_by_check(audit(spark, log_url))

    assert found["payloads"].endswith(f"and {100 - MAX_REPORTED_EXAMPLES} more")
    assert found["streams"].endswith(f"and {100 - MAX_REPORTED_EXAMPLES} more")


def test_rules_of_kinds_declared_later_are_warnings(spark: SparkSession, log_url: str) -> None:
    """A8: events that break a kind declared after them are warnings."""
    with closing(seriatim.open(log_url)) as log:
        case = ("case", "a")
        log.append([NewEvent("closed", stream=case), NewEvent("noted", stream=case)])
        log.declare(StreamKind(name="case", first_seq=0, closing_types=("closed",)))

    report = audit(spark, log_url)

    assert report.ok
    [warned] = [finding for finding in report.findings if finding.level == "warning"]
    assert "begins with number 1" in warned.message
    assert "continues after it was closed by closed" in warned.message


def test_a_damaged_archive_is_a_finding(spark: SparkSession, log_url: str, tmp_path: Path) -> None:
    """J1: an audit reports the problems of an archive."""
    fill(log_url, 20)
    at = tmp_path / "archive"
    archive(spark, log_url, str(at), segment_events=10)
    next(at.glob("segments/*-00000000000000000020-*")).unlink()

    assert "is missing" in messages_by_check(audit(spark, log_url, archive=str(at)))["archive"]


def test_missing_log_is_a_failure(spark: SparkSession, tmp_path: Path) -> None:
    """L2: an audit of a missing log is a failure, not an empty report."""
    with pytest.raises(BackendFailure):
        audit(spark, f"sqlite:///{tmp_path}/none.db")
