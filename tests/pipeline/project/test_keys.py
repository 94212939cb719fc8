"""Every code path on Spark computes the same keys as core (I1)."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from seriatim import EventRecord, Log, NewEvent, Projection, projection
from seriatim.pipeline.archive.archiver import archive
from seriatim.pipeline.project.projector import Projector
from tests.pipeline.project.support import digest_in_python, rows_of, stored_digest

Start = Callable[..., Projector]

KEYS = [
    ("sqlite", "payload.at"),
    ("sqlite", "payload.it's"),
    ("sqlite", "payload.*"),
    ("sqlite", 'payload["a.b"]'),
    ("sqlite", "payload.deep.at"),
    ("sqlite", "recorded_at"),
    ("sqlite", "stream_seq"),
    ("sqlite", "event_version"),
    ("postgres", "payload.at"),
    ("postgres", "occurred_at"),
    ("postgres", "source_system"),
    ("postgres", "stream"),
]


def count(state: dict[str, Any] | None, _event: EventRecord) -> dict[str, Any]:
    """Count the events of a key."""
    return {"events": (state["events"] if state else 0) + 1}


def declare_count(key: Any, **options: Any) -> Projection:
    """Declare a count of events by a key; an event whose key fails is skipped and recorded."""
    columns = {"events": int}
    options = {"on_failure": "skip", **options}
    return projection("counted", key=key, columns=columns, **options)(count)


def make_value(chance: random.Random, depth: int = 0) -> Any:
    """Make a JSON value, often one that engines format differently."""
    kinds: list[Callable[[], Any]] = [
        lambda: chance.choice([1e16, 1.0, -0.0, 0.1, 1e-7, 1e22, 5e-324, 1.7976931348623157e308]),
        lambda: chance.uniform(-1e20, 1e20),
        lambda: chance.choice([0, -1, 2**53 + 1, 10**30, int("9" * 1200)]),
        lambda: chance.choice(["", " ", "1e16", "1.0E16", "null", "true", '"', "'", "\\", "é\n😀"]),
        lambda: "".join(chance.choices(string.printable, k=chance.randrange(1, 9))),
        lambda: chance.choice([True, False, None]),
        lambda: chance.choice(["2026-01-01T00:00:00Z", "2026-07-01T02:00:00+02:00"]),
    ]
    if depth < 2:
        kinds += [
            lambda: [make_value(chance, depth + 1) for _ in range(chance.randrange(3))],
            lambda: {name: make_value(chance, depth + 1) for name in chance.sample("abc", 2)},
        ]
    return chance.choice(kinds)()


def generate_events(chance: random.Random, size: int) -> Iterator[NewEvent]:
    """Generate events with all kinds of values in the fields used as keys."""
    for number in range(size):
        payload = {
            name: make_value(chance)
            for name in ("0", "at", "it's", "*", "a.b")
            if chance.random() > 0.1
        }
        payload["deep"] = chance.choice(
            [{"at": make_value(chance)}, make_value(chance), {"a.b": 1}]
        )
        yield NewEvent(
            "thing",
            payload,
            stream=("a:b", f"s%{number % 5}") if number % 3 else None,
            event_version=number % 3 + 1,
            occurred_at=chance.choice([None, "2026-03-29T02:30:00+01:00", "2026-01-01T00:00:00Z"]),
            source_system=chance.choice([None, "", "shop"]),
        )


@pytest.fixture
def filled(log: Log) -> Log:
    """A log of generated events."""
    chance = random.Random(43)
    for event in generate_events(chance, 120):
        log.append([event])
    return log


@pytest.fixture
def other_zone_session(spark: SparkSession) -> Iterator[None]:
    """A session with a time zone other than UTC."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    yield
    spark.conf.set("spark.sql.session.timeZone", str(before))


@pytest.mark.usefixtures("other_zone_session")
@pytest.mark.parametrize(("url", "key"), KEYS, indirect=["url"])
def test_run_and_rebuild_compute_the_keys_of_core(start: Start, filled: Log, key: str) -> None:
    """I1, I3: run and verify compute the keys of core in any time zone of the session."""
    declared = declare_count(key)
    expected = digest_in_python(filled.read(), declared)
    job = start(declared)

    job.run()
    assert stored_digest(job) == expected
    proof = job.verify()

    assert proof.equal, proof.difference
    assert proof.digest == expected


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_archive_reads_compute_the_keys_of_core(
    start_on_spark: Start, filled: Log, url: str, fold_location: str, tmp_path: Any
) -> None:
    """I1: runs and verifications with an archive compute the keys of core."""
    place = str(tmp_path / "archive")
    for key in ("payload.at", "occurred_at", "source_system", "stream"):
        declared = declare_count(key)
        expected = digest_in_python(filled.read(), declared)
        job = start_on_spark(declared, target=f"sqlite:///{tmp_path}/{key}.db")
        archive(job.spark, url, place, segment_events=50)
        job.run()
        assert stored_digest(job) == expected, (key, fold_location)
        from_archive = start_on_spark(
            declared, target=f"sqlite:///{tmp_path}/{key}.db", archive=place
        )
        assert from_archive.verify().digest == expected, (key, fold_location)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("key", ["payload.at", "source_system", lambda event: event.payload["at"]])
def test_an_empty_key_fails_its_event(start: Start, log: Log, fold_location: str, key: Any) -> None:
    """I7: an event with an empty key fails by policy and is recorded, not lost."""
    log.append([NewEvent("thing", {"at": "a"}, source_system="a")])
    log.append([NewEvent("thing", {"at": ""}, source_system="")])
    log.append([NewEvent("thing", {"at": "a"}, source_system="a")])
    job = start(declare_count(key))

    job.run()

    [failed] = job.failures()
    assert (failed.failure.position, failed.status) == (2, "skipped"), fold_location
    assert "empty" in failed.failure.reason
    [row] = rows_of(job).values()
    assert row["events"] == 2
