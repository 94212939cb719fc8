"""Catch-up in batches of any size, a rebuild and a fold in Python are equal (I1, I3)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from seriatim import Log, Projection, projection
from seriatim.core.decision_graph import Graph
from seriatim.pipeline.archive.archiver import archive
from seriatim.pipeline.builtin_projections import aggregate_states, decision_graph
from seriatim.pipeline.project.projector import Projector
from seriatim.spark import compute_graph_digests
from tests.pipeline.project.support import (
    DEAL_DESK,
    SEAT,
    count_seats,
    digest_in_python,
    fill,
    fill_traces,
    rows_of,
    seats,
    stored_digest,
)

Start = Callable[..., Projector]

by_path = projection("by_path", key="payload.show", events=["seat.*"], columns=SEAT)(count_seats)
by_function = projection(
    "by_function", key=lambda event: event.payload.get("show"), columns=SEAT, events=["seat.*"]
)(count_seats)
whole_log = projection("whole_log", key="tenant_id", events=["seat.*"], columns=SEAT)(count_seats)


@pytest.mark.parametrize("declared", [seats, by_path, by_function, whole_log, aggregate_states])
def test_all_execution_modes_give_one_digest(start: Start, log: Log, declared: Projection) -> None:
    """I3: catch-up, rebuild and a plain fold have one digest, with the position in the proof."""
    fill(log, 120)
    job = start(declared, batch_events=50)
    job.run()
    fill(log, 31, start=120)
    progress = job.run()
    caught_up = stored_digest(job)
    proof = job.verify()

    assert progress.position == 151
    assert caught_up == digest_in_python(log.read(), declared)
    assert (proof.equal, proof.position, proof.digest) == (True, 151, caught_up)
    rebuilt = job.rebuild()
    assert (rebuilt.switched, rebuilt.digest, stored_digest(job)) == (True, caught_up, caught_up)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_batches_of_any_size(start: Start, log: Log, size: int, fold_location: str) -> None:
    """I3: the size of batches, and where they are folded, do not change the digest."""
    fill(log, 6 if size == 1 else 60)
    job = start(seats, batch_events=size)
    job.run()

    assert stored_digest(job) == digest_in_python(log.read(), seats)


def test_digests_do_not_depend_on_the_number_of_partitions(start_on_spark: Start, log: Log) -> None:
    """I3, I8: the number of partitions does not change the digest."""
    fill(log, 150, shows=11)
    job = start_on_spark(seats)
    found = set()
    before = job.spark.conf.get("spark.sql.shuffle.partitions", "2")
    assert before is not None
    try:
        for parts in ("1", "3", "8", "17"):  # with 17 parts the events are shuffled
            job.spark.conf.set("spark.sql.shuffle.partitions", parts)
            found.add(job.rebuild(accept=False).digest)
    finally:
        job.spark.conf.set("spark.sql.shuffle.partitions", before)

    assert found == {digest_in_python(log.read(), seats)}


def test_the_published_digests_of_the_decision_graph(start: Start, log: Log) -> None:
    """T3: caught up in small batches and rebuilt, the example trace has its published digests."""
    for envelope in DEAL_DESK["events"]:
        log.traces.append_event(envelope)
    job = start(decision_graph, batch_events=2)
    job.run()

    with job.model.snapshot() as moment:
        assert compute_graph_digests(moment, "dg-v1") == DEAL_DESK["digests"]
    job.rebuild()
    with job.model.snapshot() as moment:
        assert compute_graph_digests(moment, "dg-v1") == DEAL_DESK["digests"]
    assert len(rows_of(job, "nodes")) == 10
    assert len(rows_of(job, "edges")) == 8
    assert len(rows_of(job, "precedents")) == 2


def test_the_decision_graph_of_many_traces(start: Start, log: Log, fold_location: str) -> None:
    """T3: the decision graph of many traces equals the graph in memory."""
    fill_traces(log, 6)
    fill(log, 20)
    oracle = Graph()
    for record in log.read():
        if record.stream_type == "trace":
            oracle.add(record)
    job = start(decision_graph, batch_events=13)
    job.run()

    for recipe in ("dg-v1", "v2"):
        with job.model.snapshot() as moment:
            assert compute_graph_digests(moment, recipe) == oracle.digests(recipe)
    assert job.verify().equal
    assert job.rebuild().digest == digest_in_python(log.read(), decision_graph)


def test_from_the_archive_and_the_live_tail(
    start_on_spark: Start, log: Log, url: str, tmp_path: Path
) -> None:
    """I3, J1: catch-up and rebuild from archive and log have the same digest."""
    fill(log, 130)
    place = str(tmp_path / "sealed")
    job = start_on_spark(seats, archive=place, batch_events=60)
    assert archive(job.spark, url, place, segment_events=40).end == 120
    job.run()

    expected = digest_in_python(log.read(), seats)
    assert stored_digest(job) == expected
    assert job.rebuild().digest == expected
    assert start_on_spark(seats).verify().digest == expected
