"""Reconcile reports every difference between a topic and its log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from pyspark.sql import SparkSession

import seriatim
from seriatim import NewEvent
from seriatim.pipeline.kafka.address import Target, parse_target
from seriatim.pipeline.kafka.client import create_topics
from seriatim.pipeline.publish.reconciliation import ReconciliationReport, reconcile
from seriatim.pipeline.publish.storage_report import read_storage
from tests.fixtures.kafka_broker import KafkaBroker
from tests.pipeline.delivery.support import (
    append_events,
    create_topic,
    decode_headers,
    read_messages,
)
from tests.pipeline.delivery.test_publish import publish

Send = Callable[..., None]


class Topic:
    """A topic with the whole log, and a producer of changed copies of its last message."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._producer = Producer(target.client_settings)
        of_streams = [
            message
            for message in read_messages(target)
            if "seriatim-first-seq" in decode_headers(message)
        ]
        self.last: Message = of_streams[-1]

    def send(self, *, value: Any = ..., key: Any = ..., place: Any = ..., **changed: str) -> None:
        """Send the last message of a stream again, with other parts."""
        given: Any = self.last.headers()
        known = [
            (name, changed.get(name.removeprefix("seriatim-"), text.decode()).encode())
            for name, text in given
        ]
        self._producer.produce(
            self.target.single_topic or "",
            self.last.value() if value is ... else value,
            self.last.key() if key is ... else key,
            partition=(self.last.partition() or 0) if place is ... else place,
            headers=known,
        )
        self._producer.flush()


@pytest.fixture
def topic(spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path) -> Topic:
    """A topic of two partitions that equals its log."""
    append_events(postgres_url, streams=2, each=2)
    target = create_topic(topic_url, partitions=2)
    publish(spark, postgres_url, topic_url, tmp_path / "c")
    return Topic(target)


def finding_counts(report: ReconciliationReport) -> dict[str, int]:
    """Return the counts of findings."""
    return {name: one.count for name, one in report.findings.items() if one.count}


CASES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "phantom": ({"position": "7"}, {"beyond_end": 1}),
    "far phantom": ({"position": str(2**62)}, {"beyond_end": 1}),
    "epoch": ({"epoch": "77"}, {"other_epoch": 1}),
    "no epoch": ({"epoch": "one"}, {"other_epoch": 1}),
    "null": ({"value": None}, {"nulls": 1}),
    "key": ({"key": b"another"}, {"duplicates": 1, "wrong_keys": 1}),
    "no key": ({"key": None}, {"duplicates": 1, "wrong_keys": 1}),
    "tenant": ({"tenant": "acme"}, {"duplicates": 1, "changed": 1}),
    "type": ({"event-type": "order.chanced"}, {"duplicates": 1, "changed": 1}),
    "hash": ({"hash": "sha256:0"}, {"duplicates": 1, "changed": 1}),
    "first number": ({"first-seq": "0"}, {"duplicates": 1, "changed": 1}),
    "schema": ({"schema": "seriatim.event/2"}, {"duplicates": 1, "changed": 1}),
    "position": ({"position": "one"}, {"foreign": 1}),
    "log": ({"log": "another"}, {"foreign": 1}),
    "repeat": ({}, {"duplicates": 1}),
}


def test_each_difference_is_reported(
    spark: SparkSession, postgres_url: str, topic: Topic, tmp_path: Path
) -> None:
    """H5: each kind of difference is counted under its name, and the last result is kept."""
    place = str(tmp_path / "c")
    expected: dict[str, int] = {}
    before = reconcile(spark, postgres_url, topic.target, checkpoints=place)
    assert (finding_counts(before), before.equal) == ({}, True)
    [status] = read_storage([place], []).publishers
    assert status.reconciliation is not None
    assert (status.reconciliation.equal, status.reconciliation.target) == (True, status.target)
    for changed, more in CASES.values():
        topic.send(**changed)
        for name, count in more.items():
            expected[name] = expected.get(name, 0) + count
    report = reconcile(spark, postgres_url, topic.target, checkpoints=place)

    assert finding_counts(report) == expected
    assert not report.equal
    [status] = read_storage([place], []).publishers
    assert status.reconciliation is not None
    assert (status.reconciliation.equal, status.reconciliation.findings) == (False, expected)


@pytest.mark.parametrize("case", ["phantom", "epoch", "null", "key", "type"])
def test_one_difference_is_enough(
    spark: SparkSession, postgres_url: str, topic: Topic, case: str
) -> None:
    """H5: a single difference makes the topic unequal."""
    changed, expected = CASES[case]
    topic.send(**changed)
    report = reconcile(spark, postgres_url, topic.target)

    assert finding_counts(report) == expected
    assert not report.equal


def test_a_stream_over_two_partitions(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H5: a stream with events in several partitions is reported as spread."""
    append_events(postgres_url, streams=1, each=3)
    target = create_topic(topic_url, partitions=1)
    publish(spark, postgres_url, topic_url, tmp_path / "c")
    other = create_topic(f"{topic_url}-spread", partitions=2)
    producer = Producer(other.client_settings)
    for nth, message in enumerate(read_messages(target)):
        given: Any = message.headers()
        producer.produce(
            other.single_topic or "",
            message.value(),
            message.key(),
            partition=nth // 2 % 2,
            headers=given,
        )
    producer.flush()
    report = reconcile(spark, postgres_url, other)

    assert finding_counts(report) == {"spread": 1}
    assert report.findings["spread"].examples == ("default/order/o-0",)
    assert not report.equal


def test_topics_of_a_template(
    spark: SparkSession, postgres_url: str, kafka: KafkaBroker, tmp_path: Path
) -> None:
    """H5: an event in another tenant's topic, or in a topic of no tenant, is found."""
    for tenant in ("a", "b"):
        with seriatim.open(postgres_url, tenant_id=tenant) as log:
            log.append([NewEvent("x", stream=("order", "1"))])
    prefix = tmp_path.name
    target = parse_target(f"kafka://{kafka.servers}/{prefix}.%7Btenant%7D")
    publish(spark, postgres_url, str(target), tmp_path / "c", create_topics=(1, 1))
    assert reconcile(spark, postgres_url, target).equal
    create_topics(target, [f"{prefix}.ghost", f"{prefix}.foreign"], 1, 1)
    [message] = read_messages(target, f"{prefix}.a")
    given: Any = message.headers()
    producer = Producer(target.client_settings)
    producer.produce(f"{prefix}.b", message.value(), message.key(), headers=given)
    producer.produce(f"{prefix}.foreign", b"somebody else's", b"key")
    producer.flush()
    misplaced = reconcile(spark, postgres_url, target)
    ghost = [(name, b"9" if name.endswith("position") else text) for name, text in given]
    producer.produce(f"{prefix}.ghost", message.value(), message.key(), headers=ghost)
    producer.flush()

    assert finding_counts(misplaced) == {"duplicates": 1, "spread": 1, "misplaced": 1}
    assert finding_counts(reconcile(spark, postgres_url, target))["beyond_end"] == 1


def test_reconcile_up_to_a_position(spark: SparkSession, postgres_url: str, topic: Topic) -> None:
    """H5: with `until` events published after the position are no difference."""
    head = append_events(postgres_url, streams=1, each=1)
    report = reconcile(spark, postgres_url, topic.target, until=head - 3)

    assert report.equal
    assert report.messages > report.events
