"""Events near the size limit of the log: delivered to Kafka, or reported as final errors."""

from __future__ import annotations

import random
import threading
from base64 import b64encode
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from pyspark.sql import SparkSession

import seriatim
from seriatim import NewEvent
from seriatim.core.errors import BackendFailure
from seriatim.core.handler import RetryPolicy
from seriatim.delivery.entries import EntryFilter
from seriatim.factory import open_registry, registry_url
from seriatim.pipeline.kafka.address import Target, parse_target
from seriatim.pipeline.publish.publisher import Publisher
from seriatim.pipeline.publish.reconciliation import reconcile
from tests.pipeline.delivery.conftest import Workers
from tests.pipeline.delivery.effects import make_noting_handler
from tests.pipeline.delivery.support import decode_headers, read_messages, read_records
from tests.pipeline.delivery.test_publish import publish

LARGE = 1_048_010
SET = AlterConfigOpType.SET
FULL = 1024 * 1024


def random_text(size: int) -> str:
    """Return a text of so many bytes that compression hardly shortens."""
    return b64encode(random.Random(size).randbytes(size)).decode()[:size]


def append_sizes(url: str, *sizes: int, before: int = 5, after: int = 5) -> None:
    """Append small events, one event of each payload size, and small events."""
    with seriatim.open(url) as log:
        for number in range(before):
            log.append([NewEvent("small", {"n": number}, stream=("order", "o-1"))])
        for size in sizes:
            payload = {"t": random_text(size - len('{"t":""}'))}
            log.append(
                [NewEvent("large", payload, stream=("order", "o-1"), event_id=f"big-{size}")]
            )
        for number in range(after):
            log.append([NewEvent("small", {"n": number}, stream=("order", "o-1"))])


def create_bounded_topic(url: str, limit: int) -> Target:
    """Create a topic with a maximum message size."""
    target = parse_target(url)
    wanted = NewTopic(target.single_topic or "", 1, 1, config={"max.message.bytes": str(limit)})
    admin = AdminClient({**target.client_settings})  # must exist until its futures are done
    for future in admin.create_topics([wanted]).values():
        future.result()
    return target


def test_the_largest_events_are_published(
    spark: SparkSession, log_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H1: topics that the publisher creates accept the largest event of a log."""
    append_sizes(log_url, LARGE, FULL)
    with seriatim.open(log_url) as log:  # JSON escapes lengthen the envelope
        tags = tuple('"' * 255 + chr(48 + nth) for nth in range(60))
        log.append([NewEvent("large", {"t": random_text(FULL - 8)}, tags=tags)])
    publish(spark, log_url, topic_url, tmp_path / "c", create_topics=(2, 1))
    target = parse_target(topic_url)

    assert len(read_records(target)) == 13
    assert reconcile(spark, log_url, target).equal


def test_a_refused_event_is_a_final_error(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H2: an event that the topic refuses is a final error with its id; others are not repeated."""
    append_sizes(postgres_url, LARGE)
    target = create_bounded_topic(topic_url, 1_000_000)
    for _ in range(3):
        with pytest.raises(BackendFailure, match="big-1048010 at position 6") as raised:
            publish(spark, postgres_url, topic_url, tmp_path / "c")
        assert not raised.value.retryable
        assert raised.value.details["position"] == 6
        assert raised.value.details["event_id"] == "big-1048010"
    assert [record.position for record in read_records(target)] == [1, 2, 3, 4, 5]

    wider = ConfigEntry("max.message.bytes", "4000000", incremental_operation=SET)
    resource = ConfigResource(
        ConfigResource.Type.TOPIC, target.single_topic or "", incremental_configs=[wider]
    )
    admin = AdminClient({**target.client_settings})
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result()
    done = publish(spark, postgres_url, topic_url, tmp_path / "c")

    assert (done.sent, done.position) == (6, 11)
    assert [record.position for record in read_records(target)] == list(range(1, 12))


def test_a_live_run_ends_at_a_refused_event(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H2: a live publisher ends at an event that the topic refuses."""
    append_sizes(postgres_url, 300_000, before=40, after=0)
    target = create_bounded_topic(topic_url, 100_000)
    ended = threading.Timer(120, lambda: None)
    ended.start()
    with (
        Publisher(spark, postgres_url, target, str(tmp_path / "c")) as publisher,
        pytest.raises(BackendFailure, match="big-300000 at position 41"),
    ):
        publisher.run(live=True, until=lambda: not ended.is_alive())
    ended.cancel()

    assert publisher.report.position == 40
    assert len(read_messages(target)) == 40


def test_an_event_over_a_low_limit_is_a_final_error(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H2: an event over a low limit of the topic is a final error with its id."""
    append_sizes(postgres_url, 20_000, before=3, after=0)
    create_bounded_topic(topic_url, 5_000)
    with pytest.raises(BackendFailure, match="big-20000 at position 4") as raised:
        publish(spark, postgres_url, topic_url, tmp_path / "c")
    assert not raised.value.retryable


def test_a_large_dead_letter(
    workers: Workers, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """G5: a large event reaches the dead-letter topic, or a message without its content does."""
    append_sizes(postgres_url, LARGE, before=0, after=0)
    (tmp_path / "poison").write_text(f"big-{LARGE}")
    for nth, limit in enumerate((1_000_000, 4_000_000)):
        dead_letters = create_bounded_topic(f"{topic_url}-{nth}", limit)
        noter = make_noting_handler(tmp_path, retry=RetryPolicy(attempts=1), name=f"noter-{nth}")
        assert workers.run(noter, postgres_url, dead_letters=dead_letters).dead == 1
        [message] = read_messages(dead_letters)
        assert decode_headers(message)["seriatim-event-id"] == f"big-{LARGE}"
        value = message.value() or b""
        assert (b"raise max.message.bytes" in value) == (limit < LARGE)
        assert (len(value) > LARGE) == (limit > LARGE)
    registry = open_registry(registry_url(postgres_url))
    dead = registry.entries(EntryFilter(status="dead"))
    registry.close()

    assert [one.event["event_id"] for one in dead] == [f"big-{LARGE}"] * 2
