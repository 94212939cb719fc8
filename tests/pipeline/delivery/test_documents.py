"""Documents outside the log's database are right after any crash."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import seriatim
from seriatim import NewEvent
from seriatim.core.handler import Handler
from seriatim.delivery.documents import document_id, documents
from seriatim.delivery.handler_loop import HandlerLoop
from seriatim.factory import open_registry
from tests.pipeline.delivery.crash_points import CrashPlan
from tests.pipeline.delivery.effects import QUICK
from tests.pipeline.delivery.index_server import HttpIndex, IndexServer
from tests.pipeline.delivery.support import append_events, create_topic
from tests.pipeline.delivery.test_publish import publish
from tests.pipeline.delivery.test_work import work
from tests.pipeline.delivery.test_worker_crashes import work_after_crash
from tests.pipeline.event_samples import read_stored_events

ROOT = Path(__file__).parents[3]

LOG = seriatim.LogIdentity("8a4f7d8e-2b58-4c6e-9d5b-000000000001", 1)


def index_of(port: int) -> Handler:
    """Make a projection whose documents have the last number of their stream."""
    declare = documents("orders", lambda: HttpIndex(port), stream_types=["order"], retry=QUICK)
    return declare(lambda event: {"n": event.payload["n"], "seq": event.stream_seq})


def expected(url: str) -> dict[str, tuple[int, Any]]:
    """Return the documents of a log's events."""
    found: dict[str, tuple[int, Any]] = {}
    for event in read_stored_events(url):
        if event.stream_seq is not None:
            document = {"n": event.payload["n"], "seq": event.stream_seq}
            found[document_id(event)] = (event.stream_seq, document)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_documents_keep_the_highest_version(tmp_path: Path, seed: int) -> None:
    """G8: after shuffled and repeated deliveries every document has its highest version."""
    url = f"sqlite:///{tmp_path}/log.db"
    append_events(url, streams=3, each=8)
    events = [event for event in read_stored_events(url) if event.stream_seq is not None] * 2
    random.Random(seed).shuffle(events)
    registry = open_registry(f"sqlite:///{tmp_path}/registry.db")
    with IndexServer() as index:
        handler = index_of(index.port)
        loop = HandlerLoop(registry, handler, chunk=5)
        loop.handle(seriatim.Delivery.of(event, log=LOG) for event in events)

        assert index.documents == expected(url)
        for key in index.documents:
            versions = [version for name, version in index.writes if name == key]
            assert versions == sorted(set(versions))
    registry.close()


def test_an_event_without_a_stream_has_no_document(tmp_path: Path) -> None:
    """G8: an event without a stream becomes a dead letter."""
    url = f"sqlite:///{tmp_path}/log.db"
    with seriatim.open(url) as log:
        log.append([NewEvent("a")])
    registry = open_registry(f"sqlite:///{tmp_path}/registry.db")
    declare = documents(
        "orders", lambda: HttpIndex(1), retry=msgspec.structs.replace(QUICK, attempts=1)
    )
    counts = HandlerLoop(registry, declare(lambda _: {})).handle(
        [seriatim.Delivery.of(event, log=LOG) for event in read_stored_events(url)]
    )
    registry.close()

    assert counts.dead == 1


@pytest.mark.parametrize("point", ["before effect", "after effect"])
def test_a_handler_killed_around_its_write(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path, point: str
) -> None:
    """G7: 003 §6.3: after a kill before or after the write every document is written once."""
    append_events(postgres_url, streams=2, each=3)
    target = create_topic(topic_url)
    publish(spark, postgres_url, topic_url, tmp_path / "c")
    with IndexServer() as index:
        handler = index_of(index.port)
        doom = CrashPlan(handler.name, point, tmp_path / "died")
        doomed = msgspec.structs.replace(handler, run=doom.around(handler.run))
        place = f"sqlite:///{tmp_path}/registry.db"
        work_after_crash(spark, doomed, tmp_path, source=target, registry=place)

        assert index.documents == expected(postgres_url)
        assert len(set(index.writes)) == len(index.writes)


@pytest.mark.slow
def test_a_driver_killed_before_the_offset_commit(
    spark: SparkSession, postgres_url: str, topic_url: str, tmp_path: Path
) -> None:
    """G7: 003 §6.3: after a kill before offsets are stored no document is written again."""
    append_events(postgres_url, streams=2, each=3)
    target = create_topic(topic_url)
    publish(spark, postgres_url, topic_url, tmp_path / "c")
    place = f"sqlite:///{tmp_path}/registry.db"
    with IndexServer() as index:
        arguments = json.dumps([index.port, str(target), place])
        command = [sys.executable, "-m", "tests.pipeline.jobs.offset_crash", arguments]
        process = subprocess.Popen(
            command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL
        )
        try:
            assert process.wait(180) == -signal.SIGKILL
        finally:
            os.killpg(process.pid, signal.SIGKILL)
        before = list(index.writes)
        counts = work(spark, index_of(index.port), None, source=target, registry=place)

        assert index.documents == expected(postgres_url)
        assert (index.writes, counts.done) == (before, 0)
        assert counts.duplicate > 0
