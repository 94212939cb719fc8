"""Workers killed at four points: one effect per event."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from seriatim.config.delivery import RegistrySettings
from seriatim.core.errors import BackendFailure
from seriatim.core.handler import Handler
from seriatim.delivery.entries import EntryFilter
from seriatim.factory import open_registry, registry_url
from seriatim.pipeline.work.worker import Worker
from tests.pipeline.delivery.counting_server import CountingServer
from tests.pipeline.delivery.crash_points import POINTS, CrashPlan
from tests.pipeline.delivery.effects import make_posting_handler, make_transactional_handler
from tests.pipeline.delivery.support import append_events, create_topic
from tests.pipeline.delivery.test_publish import publish
from tests.pipeline.event_samples import read_stored_events

HASTY = RegistrySettings(lease_s=1.0, heartbeat_s=0.3)


def crashing(handler: Handler, point: str, folder: Path) -> Handler:
    """Return a handler that kills its process once at a point."""
    doom = CrashPlan(handler.name, point, folder / "died")
    return msgspec.structs.replace(handler, run=doom.around(handler.run))


def work_after_crash(spark: SparkSession, handler: Handler, folder: Path, **more: Any) -> None:
    """Run a handler until it is killed, and again until all events are settled."""
    with pytest.raises(BackendFailure), Worker(spark, handler, settings=HASTY, **more) as worker:
        worker.run()
    assert (folder / "died").exists()
    place = more.get("registry") or registry_url(more["url"])
    registry = open_registry(place)
    deadline = time.monotonic() + 60
    with Worker(spark, handler, settings=HASTY, **more) as worker:
        while True:
            worker.run()
            open_ = {count.status for count in registry.counts()}
            if not open_ & {"claimed", "expired", "failed"}:
                break
            assert time.monotonic() < deadline, registry.counts()
            time.sleep(0.2)
        worker.run()
    registry.close()


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_transactional_worker(
    spark: SparkSession, log_url: str, tmp_path: Path, point: str
) -> None:
    """G7: 003 §6.2: after a kill at each point there is one row per event."""
    count = append_events(log_url, streams=2, each=3)
    registry = open_registry(registry_url(log_url))
    table = "effects" if log_url.startswith("sqlite") else "public.effects"
    with registry.engine.transaction() as session:
        session.run(f"create table {table} (event_id text, stream_id text, seq bigint, pid bigint)")
    work_after_crash(
        spark, crashing(make_transactional_handler(), point, tmp_path), tmp_path, url=log_url
    )
    with registry.engine.transaction(write=False) as session:
        rows = session.run(f"select event_id, stream_id, seq from {table}")
    registry.close()

    assert Counter(row[0] for row in rows) == dict.fromkeys(
        (event.event_id for event in read_stored_events(log_url)), 1
    )
    assert len(rows) == count


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_keyed_worker(
    spark: SparkSession, postgres_url: str, tmp_path: Path, point: str
) -> None:
    """G7: 003 §6.2: after a kill at each point the target has each effect once, in order."""
    append_events(postgres_url, streams=2, each=3)
    with CountingServer(keyed=True) as server:
        work_after_crash(
            spark,
            crashing(make_posting_handler(server.url), point, tmp_path),
            tmp_path,
            url=postgres_url,
        )

        expected = dict.fromkeys((event.event_id for event in read_stored_events(postgres_url)), 1)
        assert server.counts == expected
        for stream in ("o-0", "o-1"):
            assert [e["seq"] for e in server.effects if e["stream"] == stream] == [1, 2, 3]


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_unsafe_worker(
    spark: SparkSession, postgres_url: str, tmp_path: Path, point: str
) -> None:
    """G7: 003 §6.2: after a kill at each point an effect happened at most once, and is unknown."""
    append_events(postgres_url, streams=1, each=3)
    with CountingServer(keyed=False) as server:
        poster = make_posting_handler(server.url, effect="unsafe")
        work_after_crash(spark, crashing(poster, point, tmp_path), tmp_path, url=postgres_url)
        registry = open_registry(registry_url(postgres_url))
        [unknown] = registry.entries(EntryFilter(status="unknown"))

        assert set(server.counts.values()) <= {1}
        happened = point in ("after effect", "before mark")
        assert (unknown.event_id in server.counts) == happened
        registry.skip(EntryFilter(status="unknown"), "looked it up at the target")
        registry.close()
        with Worker(spark, poster, url=postgres_url, settings=HASTY) as worker:
            worker.run()
        expected = {event.event_id for event in read_stored_events(postgres_url)}
        if not happened:
            expected -= {unknown.event_id}
        assert set(server.counts) == expected
        assert set(server.counts.values()) == {1}


@pytest.mark.parametrize("point", ["before effect", "after effect"])
def test_a_killed_worker_on_kafka(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path, point: str
) -> None:
    """G7: 003 §6.2: after a kill of a worker on a topic each effect happens once."""
    append_events(postgres_url, streams=2, each=3)
    target = create_topic(topic_url)
    publish(spark, postgres_url, topic_url, tmp_path / "c")
    place = f"sqlite:///{tmp_path}/registry.db"
    with CountingServer(keyed=True) as server:
        handler = crashing(make_posting_handler(server.url), point, tmp_path)
        work_after_crash(spark, handler, tmp_path, source=target, registry=place)

        assert server.counts == dict.fromkeys(
            (e.event_id for e in read_stored_events(postgres_url)), 1
        )
