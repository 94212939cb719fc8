"""Workers on each engine and source: each effect once, in order."""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import seriatim
from seriatim import NewEvent
from seriatim.config.delivery import RegistrySettings
from seriatim.core.errors import (
    BackendFailure,
    Conflict,
    InvalidArgument,
    LogIdentityChanged,
)
from seriatim.core.handler import Handler
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.handler_loop import Counts
from seriatim.factory import open_registry, registry_url
from seriatim.pipeline.kafka.address import parse_target
from seriatim.pipeline.publish.checkpoint import CHECKPOINT_FOLDER
from seriatim.pipeline.work.worker import Worker
from seriatim.telemetry.metrics import JobMetrics, Metrics, MetricsServer
from tests.fixtures.kafka_broker import KafkaBroker
from tests.fixtures.postgres_server import PostgresServer
from tests.pipeline.delivery.conftest import Workers
from tests.pipeline.delivery.counting_server import CountingServer
from tests.pipeline.delivery.effects import (
    make_noting_handler,
    make_posting_handler,
    make_transactional_handler,
    read_notes,
)
from tests.pipeline.delivery.support import (
    append_events,
    create_topic,
    decode_headers,
    read_messages,
    wait_until,
)
from tests.pipeline.delivery.test_publish import publish
from tests.pipeline.event_samples import read_stored_events


def work(spark: SparkSession, handler: Handler, url: str | None, **more: Any) -> Counts:
    """Run a handler up to the end of its source."""
    with Worker(spark, handler, url=url, **more) as worker:
        return worker.run()


def is_in_order(found: list[tuple[str, str, str]]) -> bool:
    """Return whether the effects of every stream are in order and unique."""
    streams = defaultdict(list)
    for event_id, stream, seq in found:
        streams[stream if seq != "None" else event_id].append(0 if seq == "None" else int(seq))
    return all(stream == sorted(set(stream)) for stream in streams.values())


def test_a_worker_on_the_log(workers: Workers, log_url: str, tmp_path: Path) -> None:
    """G7: every event has one effect, in order, and a second run has none."""
    count = append_events(log_url)
    noter = make_noting_handler(tmp_path)
    first, second = workers.run(noter, log_url), workers.run(noter, log_url)

    assert (first.done, second.done) == (count, 0)
    assert sorted(note[0] for note in read_notes(tmp_path)) == sorted(
        e.event_id for e in read_stored_events(log_url)
    )
    assert is_in_order(read_notes(tmp_path))


def test_a_transactional_worker(workers: Workers, log_url: str, tmp_path: Path) -> None:
    """G7: a transactional effect writes one row per event in the registry's database."""
    count = append_events(log_url, each=4)
    place = registry_url(log_url)
    registry = open_registry(place)
    ledger = make_transactional_handler()
    with registry.engine.transaction() as session:
        table = "effects" if log_url.startswith("sqlite") else "public.effects"
        session.run(f"create table {table} (event_id text, stream_id text, seq bigint, pid bigint)")
    workers.run(ledger, log_url)
    with registry.engine.transaction() as session:
        assert session.run(f"select count(*), count(distinct event_id) from {table}") == [
            (count, count)
        ]
    registry.close()


def test_a_filter_and_a_start(workers: Workers, log_url: str, tmp_path: Path) -> None:
    """G4: a handler with a type filter and a start in mid-log handles its events in order."""
    with seriatim.open(log_url) as log:
        for number in range(40):
            kind = "order.paid" if number % 3 else "order.seen"
            log.append([NewEvent(kind, {"n": number}, stream=("order", f"o-{number % 4}"))])
    noter = make_noting_handler(tmp_path, events=["order.paid"], start=17)
    workers.run(noter, log_url)

    wanted = [
        e for e in read_stored_events(log_url) if e.position > 17 and e.event_type == "order.paid"
    ]
    assert sorted(note[0] for note in read_notes(tmp_path)) == sorted(
        one.event_id for one in wanted
    )
    assert is_in_order(read_notes(tmp_path))


def test_a_stream_from_zero(workers: Workers, log_url: str, tmp_path: Path) -> None:
    """G4: events of a stream numbered from 0 are handled in order."""
    with seriatim.open(log_url) as log:
        log.declare(seriatim.StreamKind(name="case", first_seq=0))
        for _ in range(3):
            log.append([NewEvent("case.moved", stream=("case", "1"))])
    workers.run(make_noting_handler(tmp_path), log_url)

    assert [note[2] for note in read_notes(tmp_path)] == ["0", "1", "2"]


def test_poison_and_a_retry(workers: Workers, log_url: str, tmp_path: Path) -> None:
    """G5: a poison event parks its stream; after a retry its stream continues."""
    count = append_events(log_url, each=5)
    bad = next(event for event in read_stored_events(log_url) if event.stream_id == "o-2")
    (tmp_path / "poison").write_text(bad.event_id)
    noter = make_noting_handler(tmp_path)
    workers.run(noter, log_url)
    workers.run_until_settled(noter, log_url)
    registry = open_registry(registry_url(log_url))

    assert len(read_notes(tmp_path)) == count - 5
    [letter] = registry.entries(EntryFilter(status="dead"))
    assert (letter.event_id, letter.attempts, letter.event["event_id"]) == (
        bad.event_id,
        3,
        bad.event_id,
    )
    (tmp_path / "poison").unlink()
    assert registry.retry(EntryFilter(status="dead")) == 1
    registry.close()
    workers.run_until_settled(noter, log_url)
    assert len(read_notes(tmp_path)) == count
    assert is_in_order(read_notes(tmp_path))


def test_a_worker_on_kafka(
    spark: SparkSession, log_url: str, topic_url: str, tmp_path: Path
) -> None:
    """G7: 003 §6.1: a log published twice after a lost checkpoint has one effect per event."""
    count = append_events(log_url, each=6)
    target = create_topic(topic_url)
    for _ in range(2):
        publish(spark, log_url, topic_url, tmp_path / "c")
        for file in (tmp_path / "c" / CHECKPOINT_FOLDER).iterdir():
            file.unlink()
    noter = make_noting_handler(tmp_path)
    place = f"sqlite:///{tmp_path}/registry.db"
    counts = work(spark, noter, None, source=target, registry=place)

    assert len(read_messages(target)) == 2 * count
    assert (counts.done, counts.duplicate) == (count, count)
    assert is_in_order(read_notes(tmp_path))
    assert work(spark, noter, None, source=target, registry=place) == Counts()


def test_a_topic_of_a_restored_log(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """G9: messages with another log or epoch in their headers, or without, are refused."""
    from confluent_kafka import Producer

    append_events(postgres_url, streams=1, each=1)
    target = create_topic(topic_url, partitions=1)
    publish(spark, postgres_url, topic_url, tmp_path / "c")
    place = f"sqlite:///{tmp_path}/registry.db"
    assert work(spark, make_noting_handler(tmp_path), None, source=target, registry=place).done == 2
    [first, _] = read_messages(target)
    given: Any = first.headers()
    for nth, (name, value) in enumerate([("epoch", b"77"), ("log", b"another"), ("log", None)]):
        other = create_topic(f"{topic_url}-{nth}", partitions=1)
        changed = [(one, value if one == f"seriatim-{name}" else text) for one, text in given]
        producer = Producer(other.client_settings)
        kept = [(one, text) for one, text in changed if text is not None]
        producer.produce(other.single_topic or "", first.value(), first.key(), headers=kept)
        producer.flush()
        with pytest.raises(LogIdentityChanged, match="noter"):
            work(spark, make_noting_handler(tmp_path), None, source=other, registry=place)

    assert len(read_notes(tmp_path)) == 2


def test_a_worker_after_a_restore(workers: Workers, tmp_path: Path) -> None:
    """G9: a restored log stops a worker; after a reset it handles new events once."""
    url = f"sqlite:///{tmp_path}/log.db"
    append_events(url, streams=1, each=1)
    shutil.copy(tmp_path / "log.db", tmp_path / "copy.db")
    append_events(url, streams=1, each=1)
    assert workers.run(make_noting_handler(tmp_path), url).done == 4
    shutil.copy(tmp_path / "copy.db", tmp_path / "log.db")
    with seriatim.open(url) as log:
        log.store.raise_epoch()
    append_events(url, streams=1, each=2)
    with pytest.raises(LogIdentityChanged):
        workers.run(make_noting_handler(tmp_path), url)
    registry = open_registry(registry_url(url))
    with seriatim.open(url) as log:
        [report] = registry.reset("noter", log, reason="restored")
    registry.close()

    assert (report.position, report.forgotten) == (2, {"done": 2})
    assert workers.run(make_noting_handler(tmp_path), url).done == 4
    assert len(read_notes(tmp_path)) == 8


def test_an_effect_that_fails_at_commit(workers: Workers, postgres_url: str) -> None:
    """G10: a deferred constraint that fails at commit fails its event alone."""
    count = append_events(postgres_url, streams=3, each=2)
    registry = open_registry(registry_url(postgres_url))
    with registry.engine.transaction() as session:
        session.run("create table public.known (n bigint primary key)")
        session.run(
            "create table public.effects (event_id text, stream_id text, seq bigint references "
            "public.known (n) deferrable initially deferred, pid bigint)"
        )
        session.run("insert into public.known values (1)")
    counts = workers.run(make_transactional_handler(), postgres_url)
    failed = registry.entries(EntryFilter(status=("failed", "dead")))
    registry.close()

    # The second event of each stream requires a sequence number that the registry does not have.
    assert counts.done == count - 3
    assert [(one.stream_seq, "known" in one.error) for one in failed] == [(2, True)] * 3


def test_foreign_messages_become_dead_letters(
    spark: SparkSession, topic_url: str, tmp_path: Path
) -> None:
    """G5: a message that is no event becomes a dead letter, and the others are handled."""
    from confluent_kafka import Producer

    url = f"sqlite:///{tmp_path}/log.db"
    append_events(url, each=2)
    target = create_topic(topic_url, partitions=1)
    producer = Producer(target.client_settings)
    producer.produce(target.single_topic or "", b"\xff what is this", b"k")
    producer.produce(target.single_topic or "", None, b"k")
    producer.flush()
    publish(spark, url, topic_url, tmp_path / "c")
    place = f"sqlite:///{tmp_path}/registry.db"
    counts = work(spark, make_noting_handler(tmp_path), None, source=target, registry=place)
    registry = open_registry(place)

    assert (counts.dead, counts.done) == (2, 12)
    dead_letters = registry.entries(EntryFilter(status="dead"))
    assert {letter.event_id for letter in dead_letters} == {
        f"{target.single_topic}/0/{n}" for n in (0, 1)
    }
    registry.close()


def test_a_keyed_worker_over_http(workers: Workers, postgres_url: str) -> None:
    """G7: a keyed effect reaches its target once per event."""
    count = append_events(postgres_url, each=4)
    with CountingServer(keyed=True) as server:
        workers.run(make_posting_handler(server.url), postgres_url)

        assert len(server.counts) == count
        assert set(server.counts.values()) == {1}


def test_dead_letters_as_a_topic(
    workers: Workers, spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """G5: dead letters are sent to a topic, from which a worker can read them."""
    append_events(postgres_url, each=1)
    bad = read_stored_events(postgres_url)[0]
    (tmp_path / "poison").write_text(bad.event_id)
    dead_letters = create_topic(topic_url)
    noter = make_noting_handler(tmp_path, mode="latest_wins")
    workers.run(noter, postgres_url, dead_letters=dead_letters)
    workers.run_until_settled(noter, postgres_url, dead_letters=dead_letters)
    [letter] = read_messages(dead_letters)

    assert decode_headers(letter)["seriatim-handler"] == "noter"
    assert decode_headers(letter)["seriatim-error"] == "ValueError: poison"
    assert decode_headers(letter)["seriatim-attempts"] == "3"
    (tmp_path / "poison").unlink()
    again = make_noting_handler(tmp_path, name="again")
    counts = work(
        spark, again, None, source=dead_letters, registry=f"sqlite:///{tmp_path}/dead_letters.db"
    )
    assert counts.done == 1
    assert read_notes(tmp_path)[-1][0] == bad.event_id


def test_stop_on_poison(workers: Workers, postgres_url: str, tmp_path: Path) -> None:
    """G5: with on_poison=stop a poison event stops the worker until an operator intervenes."""
    append_events(postgres_url, each=3)
    (tmp_path / "poison").write_text(read_stored_events(postgres_url)[0].event_id)
    from seriatim.core.handler import RetryPolicy

    noter = make_noting_handler(tmp_path, on_poison="stop", retry=RetryPolicy(attempts=1))
    for _ in range(2):
        with pytest.raises(Conflict, match="stopped"):
            workers.run(noter, postgres_url)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "name the log"),
        ({"source": parse_target("kafka://a:1/t")}, "registry must be named"),
        ({"url": "x", "settings": RegistrySettings(on_outage="dlq")}, "dead-letter topic"),
        ({"url": "x", "settings": RegistrySettings(enabled=False)}, "transactional"),
    ],
    ids=["no source", "no registry", "no dead_letters", "off"],
)
def test_inconsistent_options_are_refused(
    spark: SparkSession, more: dict[str, Any], words: str
) -> None:
    """G6: inconsistent options of a worker are refused."""
    with pytest.raises(InvalidArgument, match=words):
        Worker(spark, make_transactional_handler(), **more)


def test_a_strict_start_needs_the_log(spark: SparkSession, tmp_path: Path) -> None:
    """G4: a strict handler with a start needs the log in addition to a topic."""
    with pytest.raises(InvalidArgument, match="must see the log"):
        Worker(
            spark,
            make_noting_handler(tmp_path, start=5),
            source=parse_target("kafka://a:1/t"),
            registry=f"sqlite:///{tmp_path}/r.db",
        )


def test_a_worker_with_a_disabled_registry(
    workers: Workers, postgres_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """G6: with a disabled registry every delivery has its effect, and a warning is logged."""
    count = append_events(postgres_url, each=2)
    settings = RegistrySettings(enabled=False)
    for _ in range(2):
        workers.run(make_noting_handler(tmp_path), postgres_url, settings=settings)

    assert len(read_notes(tmp_path)) == 2 * count
    assert any("registry is OFF" in record.message for record in caplog.records)


def test_an_outage_fails_fast(workers: Workers, postgres_url: str, tmp_path: Path) -> None:
    """G6: with fail_fast a registry outage is raised, and a later run handles all events."""
    count = append_events(postgres_url, each=1)
    settings = RegistrySettings(on_outage="fail_fast")
    nowhere = postgres_url.replace("127.0.0.1", "127.0.0.1").rsplit("@", 1)
    url = f"{nowhere[0]}@127.0.0.1:1/nothing" if len(nowhere) == 2 else "postgresql://127.0.0.1:1/x"
    with pytest.raises(BackendFailure):
        workers.run(make_noting_handler(tmp_path), postgres_url, settings=settings, registry=url)
    assert workers.run(make_noting_handler(tmp_path), postgres_url).done == count


@pytest.mark.slow
def test_metrics_of_an_outage(
    workers: Workers, own_postgres: Callable[..., PostgresServer], tmp_path: Path
) -> None:
    """M2: 003 §6.8: metrics report an outage of the registry, and no event is lost."""
    url = f"sqlite:///{tmp_path}/log.db"
    append_events(url, each=2)
    server = own_postgres()
    place = server.create_database("registry")
    metrics = Metrics()
    shown_at = MetricsServer(metrics, "127.0.0.1:0")
    ended = threading.Event()
    settings = RegistrySettings(lease_s=2.0, heartbeat_s=0.5)
    with workers.open(
        make_noting_handler(tmp_path),
        url,
        registry=place,
        settings=settings,
        metrics=JobMetrics(metrics),
    ) as worker:
        thread = threading.Thread(
            target=lambda: worker.run(live=True, until=ended.is_set), daemon=True
        )
        thread.start()
        wait_until(lambda: len(read_notes(tmp_path)) == 12)
        server.stop(immediate=True)
        append_events(url, each=2)
        wait_until(lambda: 'seriatim_registry_outage{handler="noter"} 1.0' in scrape(shown_at))
        server.start()
        wait_until(lambda: len({note[0] for note in read_notes(tmp_path)}) == 24)
        wait_until(lambda: 'seriatim_registry_outage{handler="noter"} 0.0' in scrape(shown_at))
        ended.set()
        thread.join(60)
        assert not thread.is_alive()
    shown_at.close()
    assert is_in_order(read_notes(tmp_path))


def scrape(metrics: MetricsServer) -> str:
    """Return the metrics over HTTP."""
    connection = HTTPConnection("127.0.0.1", metrics.port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def test_the_kafka_fixture(kafka: KafkaBroker) -> None:
    """The broker of the tests accepts a new topic."""
    assert create_topic(f"kafka://{kafka.servers}/probe").single_topic == "probe"
