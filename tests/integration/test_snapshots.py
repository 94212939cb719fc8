"""Snapshots of aggregates in the default read model of a log, and in transactions of callers."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import Aggregate, EventSequenceInvalid, Log

REQUEST: dict[str, Any] = {"actor_type": "user", "actor_id": "u-1", "request_id": "r-1"}


class Counter(Aggregate[dict[str, int]], stream_type="counter", snapshot_every=4):
    """A counter with a snapshot after every fourth event."""

    def apply(self, event: Any) -> None:
        """Add a number."""
        self.state["n"] = self.state.get("n", 0) + event.payload["by"]

    def add(self, by: int = 1) -> None:
        """Add a number."""
        self.record("added", {"by": by})


@pytest.fixture(params=["sqlite", "postgres"])
def log_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty log that several processes can open."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/log.db"


def add_many(log: Log, count: int, org_id: str = "acme") -> None:
    """Add 1 several times."""
    counters = log.aggregates.for_request(org_id=org_id, **REQUEST)
    for _ in range(count):
        counters.execute(Counter, "c", Counter.add)


def test_snapshots_are_in_the_default_read_model(log_url: str) -> None:
    """F8, K2: each organisation has its snapshots, which equal the fold, in its read model."""
    with seriatim.open(log_url) as log:
        add_many(log, 9)
        add_many(log, 5, "globex")

        for org_id, count, seq in (("acme", 9, 8), ("globex", 5, 4)):
            proof = log.aggregates.verify_snapshot(Counter, "c", org_id=org_id)
            assert (proof.equal, proof.problem, proof.stream_seq) == (True, "", seq)
            assert log.aggregates.load(Counter, "c", org_id=org_id).state == {"n": count}


def test_a_snapshot_is_used_by_other_processes(log_url: str) -> None:
    """F7, F8: a log that is opened again begins at the snapshot."""
    with seriatim.open(log_url) as log:
        add_many(log, 9)
    with seriatim.open(log_url) as log:
        counts: list[float] = []
        log.telemetry.subscribe(lambda event: counts.append(event.measurements["count"]))
        counter = log.aggregates.load(Counter, "c", org_id="acme")

    assert (counter.state, sum(counts)) == ({"n": 9}, 2)


def test_concurrent_writers_keep_one_snapshot(log_url: str) -> None:
    """B9, F8: commands of several processes all win, and the snapshot equals the fold."""
    with seriatim.open(log_url) as log:
        add_many(log, 1)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=run_writer, args=(log_url, 12)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)

    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    with seriatim.open(log_url) as log:
        assert log.aggregates.load(Counter, "c", org_id="acme").state == {"n": 37}
        proof = log.aggregates.verify_snapshot(Counter, "c", org_id="acme")
        assert (proof.equal, proof.problem, proof.stream_seq) == (True, "", 36)


def run_writer(url: str, count: int) -> None:
    """Add 1 several times, against concurrent writers; the body of a process."""
    with seriatim.open(url) as log:
        counters = log.aggregates.for_request(org_id="acme", **REQUEST)
        for _ in range(count):
            counters.execute(Counter, "c", Counter.add, attempts=1000)


def test_a_save_commits_with_the_callers_state(postgres_url: str) -> None:
    """B12: a save in a transaction of the caller is committed or rolled back with it."""
    with seriatim.open(postgres_url) as log, psycopg.connect(postgres_url) as connection:
        counters = log.aggregates.for_request(org_id="acme", **REQUEST)
        lost = Counter("c")
        lost.add(5)
        counters.save(lost, connection=connection)
        connection.rollback()
        assert counters.load(Counter, "c").aggregate_seq is None

        kept = Counter("c")
        for by in range(5):
            kept.add(by)
        counters.save(kept, connection=connection)
        connection.commit()
        assert counters.load(Counter, "c").state == {"n": 10}
        lost.add()
        with pytest.raises(EventSequenceInvalid):  # it was rolled back: load it again
            counters.save(lost)
        # An uncommitted save has no snapshot: the next one stores it.
        with pytest.raises(seriatim.NotFound):
            counters.verify_snapshot(Counter, "c")


async def test_an_awaited_save_commits_with_the_callers_state(postgres_url: str) -> None:
    """B12: the same with an asynchronous connection."""
    connection = await psycopg.AsyncConnection.connect(postgres_url)
    with seriatim.open(postgres_url) as log:
        counters = log.aggregates.aio.for_request(org_id="acme", **REQUEST)
        counter = Counter("c")
        counter.add(5)
        async with connection:
            await counters.save(counter, connection=connection)
        assert (await counters.load(Counter, "c")).state == {"n": 5}


def test_a_restored_log_ignores_snapshots_of_its_future(tmp_path: Path) -> None:
    """F8: after a restore to an earlier state a snapshot of lost events is not used."""
    url = f"sqlite:///{tmp_path}/log.db"
    with seriatim.open(url) as log:
        add_many(log, 2)
    copy = (tmp_path / "log.db").read_bytes()
    with seriatim.open(url) as log:
        add_many(log, 4)
        assert log.aggregates.verify_snapshot(Counter, "c", org_id="acme").stream_seq == 4
    for file in tmp_path.glob("log.db*"):
        file.unlink()
    (tmp_path / "log.db").write_bytes(copy)
    with seriatim.open(url) as log:
        log.store.raise_epoch()
        assert log.aggregates.load(Counter, "c", org_id="acme").state == {"n": 2}
        for _ in range(3):  # other events than those that were lost, at the same numbers
            log.aggregates.execute(Counter, "c", lambda one: one.add(10), org_id="acme", **REQUEST)
        assert log.aggregates.load(Counter, "c", org_id="acme").state == {"n": 32}
        proof = log.aggregates.verify_snapshot(Counter, "c", org_id="acme")
        assert (proof.equal, proof.problem) == (True, "")
