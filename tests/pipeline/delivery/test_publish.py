"""The publisher with a broker: the log in Kafka, at least once, in order per stream."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import seriatim
from seriatim import NewEvent
from seriatim.config.delivery import PublisherSettings
from seriatim.core.errors import BackendFailure, LogIdentityChanged
from seriatim.pipeline.kafka.address import parse_target
from seriatim.pipeline.publish.checkpoint import CHECKPOINT_FOLDER
from seriatim.pipeline.publish.publisher import Publisher, PublishReport
from seriatim.pipeline.publish.reconciliation import reconcile
from seriatim.pipeline.work.worker import Worker
from seriatim.runs.job_loop import RunReport
from tests.fixtures.kafka_broker import PASSWORD, USER, KafkaBroker
from tests.pipeline.delivery.effects import make_noting_handler
from tests.pipeline.delivery.support import (
    append_events,
    create_topic,
    decode_headers,
    read_messages,
    read_records,
    wait_until,
)
from tests.pipeline.event_samples import read_stored_events


def publish(spark: SparkSession, url: str, to: str, place: object, **more: object) -> PublishReport:
    """Publish up to the head of the log."""
    with Publisher(spark, url, parse_target(to), str(place), **more) as publisher:  # type: ignore[arg-type]
        return publisher.run()


def test_the_log_is_published(
    spark: SparkSession, log_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H1: every event is published once, each stream in order in one partition, with headers."""
    count = append_events(log_url)
    target = create_topic(topic_url)
    done = publish(spark, log_url, topic_url, tmp_path / "c")
    found = read_messages(target)

    assert (done.sent, done.position) == (count, count)
    assert sorted(record.position for record in read_records(target)) == list(range(1, count + 1))
    partitions = defaultdict(list)
    for message, record in zip(found, read_records(target), strict=True):
        partitions[record.stream or record.event_id].append((message.partition(), record.position))
    for seen in partitions.values():
        assert len({partition for partition, _ in seen}) == 1
        assert seen == sorted(seen)
    by_position = {event.position: event for event in read_stored_events(log_url)}
    assert {record.position: record for record in read_records(target)} == by_position
    notes = [
        decode_headers(one)
        for one in found
        if decode_headers(one)["seriatim-event-type"] == "note.made"
    ]
    assert {note["traceparent"] for note in notes} == {f"t-{number}" for number in range(20)}
    assert reconcile(spark, log_url, target).equal


def test_a_publisher_continues_at_its_checkpoint(
    spark: SparkSession, log_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H2: a publisher that starts again sends new events only."""
    first = append_events(log_url, each=3)
    target = create_topic(topic_url)
    publish(spark, log_url, topic_url, tmp_path / "c")
    again = publish(spark, log_url, topic_url, tmp_path / "c")
    append_events(log_url, each=2)
    more = publish(spark, log_url, topic_url, tmp_path / "c")

    assert (again.sent, again.position) == (0, first)
    assert len(read_messages(target)) == first + more.sent


def test_a_checkpoint_in_a_bucket(
    spark: SparkSession, postgres_url: str, topic_url: str, s3_url: str
) -> None:
    """H2: a publisher continues at its checkpoint in an S3 bucket."""
    append_events(postgres_url, each=2)
    create_topic(topic_url)
    publish(spark, postgres_url, topic_url, s3_url)

    assert publish(spark, postgres_url, topic_url, s3_url).sent == 0


def test_a_lost_checkpoint_repeats_the_publication(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H2: without its checkpoint everything is published again; reconcile counts duplicates."""
    count = append_events(postgres_url, each=2)
    target = create_topic(topic_url)
    publish(spark, postgres_url, topic_url, tmp_path / "c")
    for file in (tmp_path / "c" / CHECKPOINT_FOLDER).iterdir():
        file.unlink()
    publish(spark, postgres_url, topic_url, tmp_path / "c")
    report = reconcile(spark, postgres_url, target)

    assert report.equal
    assert report.findings["duplicates"].count == count


def test_a_checkpoint_of_another_log(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H2: a checkpoint of another log is refused, and nothing is sent."""
    append_events(postgres_url, each=2)
    target = create_topic(topic_url)
    publish(spark, postgres_url, topic_url, tmp_path / "c")
    other = f"sqlite:///{tmp_path}/other.db"
    count = len(read_messages(target))
    append_events(other, each=2)

    with pytest.raises(LogIdentityChanged, match="another log"):
        publish(spark, other, topic_url, tmp_path / "c")
    assert len(read_messages(target)) == count


def test_topics_by_template(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path, postgres_url: str
) -> None:
    """H1: a template gives each tenant and stream type its own topic, created on request."""
    with seriatim.open(postgres_url) as log:
        log.append([NewEvent("a", stream=("order", "1")), NewEvent("b", stream=("Order", "1"))])
    with seriatim.open(postgres_url, tenant_id="a b") as log:
        log.append([NewEvent("c")])
    url = f"kafka://{kafka.servers}/{tmp_path.name}.%7Btenant%7D.%7Bstream_type%7D"
    publish(spark, postgres_url, url, tmp_path / "c", create_topics=(1, 1))
    target = parse_target(url)

    kinds = {
        topic: [record.event_type for record in read_records(target, topic)]
        for topic in (
            target.topic_for("default", "order"),
            target.topic_for("default", "Order"),
            target.topic_for("a b", None),
        )
    }
    assert sorted(map(tuple, kinds.values())) == [("a",), ("b",), ("c",)]
    assert reconcile(spark, postgres_url, target).equal


def test_lookback_sends_no_duplicates(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H3: a lookback omits events that are known to be delivered, also after a restart."""
    settings = PublisherSettings(lookback_s=600, lookback_max_keys=10, step_events=7)
    count = append_events(postgres_url, each=3)
    target = create_topic(topic_url)
    publish(spark, postgres_url, topic_url, tmp_path / "c", settings=settings)
    append_events(postgres_url, each=1)
    more = publish(spark, postgres_url, topic_url, tmp_path / "c", settings=settings)

    assert more.skipped == 10
    assert len(read_messages(target)) == count + more.sent
    none = PublisherSettings(lookback_s=600, lookback_max_keys=10, dedup_max_events=0)
    append_events(postgres_url, each=1)
    repeated = publish(spark, postgres_url, topic_url, tmp_path / "c", settings=none)
    assert (repeated.sent, repeated.skipped) == (6 + 10, 0)


def test_lookback_distinguishes_tenants(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H3: an event id that another tenant has used is not known to be delivered."""
    settings = PublisherSettings(lookback_s=600, lookback_max_keys=10, step_events=1)

    def append(tenant: str, *names: str) -> None:
        with seriatim.open(postgres_url, tenant_id=tenant) as log:
            for name in names:
                log.append([NewEvent("order.placed", event_id=name)])

    target = create_topic(topic_url)
    only_b = create_topic(f"{topic_url}-b")
    append("a", "order-1", "order-2")
    append("b", "order-1")
    publish(spark, postgres_url, topic_url, tmp_path / "c", settings=settings)
    append("b", "order-2")
    publish(spark, postgres_url, topic_url, tmp_path / "c", settings=settings)
    for _ in range(2):
        publish(spark, postgres_url, str(only_b), tmp_path / "b", settings=settings, tenant_id="b")

    sent = [(record.tenant_id, record.event_id) for record in read_records(target)]
    assert sorted(sent) == [(t, f"order-{n}") for t in ("a", "b") for n in (1, 2)]
    assert sorted(record.event_id for record in read_records(only_b)) == ["order-1", "order-2"]


def test_concurrent_publishers(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H1: of two publishers of a log and target one works, and the other waits.

    The lease and the flush have long timeouts, so that a slow machine does not end them.
    """
    count = append_events(postgres_url, each=4)
    target = create_topic(topic_url)
    place = str(tmp_path / "c")
    patient = PublisherSettings(flush_timeout_s=600)
    ended = threading.Event()
    activities: list[str] = []

    def watch(report: RunReport) -> None:
        activities.append(report.activity)
        ended.set()  # the first one ends when the second one waits

    with (
        Publisher(spark, postgres_url, target, place, settings=patient, lease_s=600) as first,
        Publisher(
            spark, postgres_url, target, place, settings=patient, on_progress=watch
        ) as second,
    ):
        follower = threading.Thread(target=lambda: first.run(live=True, until=ended.is_set))
        follower.start()
        try:
            wait_until(lambda: first.report.position == count or not follower.is_alive())
            second.run()
        finally:
            ended.set()  # also after a failure: a running publisher would disturb later tests
            follower.join()
    assert activities[:1] == ["waiting for another publisher"]
    assert (first.report.sent, first.report.position) == (count, count)
    assert (second.report.sent, second.report.position) == (0, count)
    assert len(read_messages(target)) == count


def test_live_publisher_sends_new_events(
    spark: SparkSession, log_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H1: a live publisher sends new events."""
    append_events(log_url, each=1)
    target = create_topic(topic_url)
    ended = threading.Event()
    with Publisher(spark, log_url, target, str(tmp_path / "c")) as publisher:
        thread = threading.Thread(
            target=lambda: publisher.run(live=True, until=ended.is_set), daemon=True
        )
        thread.start()
        append_events(log_url, each=1)
        wait_until(lambda: len(read_messages(target)) == 12)
        ended.set()
        thread.join(60)
    assert not thread.is_alive()


def test_a_broker_killed_during_publication(
    spark: SparkSession, postgres_url: str, tmp_path: Path
) -> None:
    """H1: after the broker was killed and restarted, no event is missing."""
    with KafkaBroker() as broker:
        url = f"kafka://{broker.servers}/killed"
        target = create_topic(url)
        count = append_events(postgres_url, streams=20, each=60)
        ended = threading.Event()
        settings = PublisherSettings(step_events=150, batch_size=50, flush_timeout_s=3)
        with Publisher(
            spark, postgres_url, target, str(tmp_path / "c"), settings=settings
        ) as publisher:
            thread = threading.Thread(
                target=lambda: publisher.run(live=True, until=ended.is_set), daemon=True
            )
            thread.start()
            wait_until(lambda: publisher.report.position > 0)
            broker.kill()
            time.sleep(1)
            broker.start()
            wait_until(lambda: publisher.report.position == count)
            ended.set()
            thread.join(60)
        report = reconcile(spark, postgres_url, target)

    assert report.equal, report


def test_a_broker_with_sasl_and_tls(spark: SparkSession, postgres_url: str, tmp_path: Path) -> None:
    """H1: with SASL and TLS events are published, reconciled and handled."""
    count = append_events(postgres_url, each=2)
    with KafkaBroker(guarded=True) as broker:
        create_topic(f"kafka://{broker.servers}/guarded")
        settings = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(broker.authority),
        }
        url = f"kafka://127.0.0.1:{broker.guarded_port}/guarded"
        target = parse_target(url, settings)
        with Publisher(spark, postgres_url, target, str(tmp_path / "c")) as publisher:
            assert publisher.run().sent == count
        assert reconcile(spark, postgres_url, target).equal
        place = f"sqlite:///{tmp_path}/registry.db"
        with Worker(spark, make_noting_handler(tmp_path), source=target, registry=place) as worker:
            assert worker.run().done == count
        wrong = parse_target(url, settings | {"sasl.password": "wrong"})
        with (
            Publisher(spark, postgres_url, wrong, str(tmp_path / "d")) as refused,
            pytest.raises(BackendFailure) as raised,
        ):
            refused.run()
    assert PASSWORD not in str(raised.value)


def test_an_unreachable_broker(spark: SparkSession, postgres_url: str, tmp_path: Path) -> None:
    """H1: an unreachable broker is an error, and no checkpoint is written."""
    append_events(postgres_url, each=1)
    settings = PublisherSettings(flush_timeout_s=0.5)
    with pytest.raises(BackendFailure, match="Kafka"):
        publish(
            spark, postgres_url, "kafka://127.0.0.1:1/nowhere", tmp_path / "c", settings=settings
        )
    assert not (tmp_path / "c" / CHECKPOINT_FOLDER).exists()


def test_reconcile_reports_differences(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """H5: missing, repeated, reordered, changed and foreign messages are reported."""
    from confluent_kafka import Producer

    count = append_events(postgres_url, each=2)
    target = create_topic(topic_url, partitions=1)
    publish(spark, postgres_url, topic_url, tmp_path / "c")
    source = read_messages(target)
    other = create_topic(f"{topic_url}-other", partitions=1)
    producer = Producer(other.client_settings)

    def send(message: Any, value: bytes | None = None, **changed: bytes) -> None:
        known = [(n, changed.get(n.removeprefix("seriatim-"), v)) for n, v in message.headers()]
        content = value or message.value()
        producer.produce(other.single_topic or "", content, message.key(), headers=known)

    by_position = {int(decode_headers(one)["seriatim-position"]): one for one in source}
    order = [
        7,
        1,
        2,
        2,
        3,
        *range(8, count + 1),
    ]  # position 7 follows 1 in its stream; 4 to 6 are missing
    for position in order:
        send(by_position[position])
    send(
        by_position[8], (by_position[8].value() or b"").replace(b"order.changed", b"order.chanced")
    )
    producer.produce(other.single_topic or "", b"what is this", b"key")
    send(by_position[9], log=b"another")
    producer.flush()
    report = reconcile(spark, postgres_url, other)

    assert not report.equal
    counts = {name: found.count for name, found in report.findings.items()}
    assert {name: count for name, count in counts.items() if count} == {
        "missing": 3,
        "duplicates": 2,
        "reordered": 1,
        "changed": 1,
        "foreign": 2,
    }
    assert report.findings["missing"].examples == ("4", "5", "6")
    assert report.findings["reordered"].examples == ("7",)
