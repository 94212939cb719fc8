"""Projections that move between engines, with crashes: the tables equal a plain fold (I2, I3, I10).

Hypothesis chooses the events, the engine and batch size of each run, and where a run crashes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import seriatim
from seriatim import EventRecord, Log, NewEvent, Projection, Table, projection
from seriatim.pipeline.project.projector import Projector
from seriatim.spark import register
from tests.pipeline.project.local_job import LocalJob
from tests.pipeline.project.support import digest_in_python, stored_digest


class _CrashError(Exception):
    """Ends a run at a commit, as a lost process does."""


class _Visits(msgspec.Struct):
    rooms: list[str] = []


def _count(row: dict[str, Any] | None, event: EventRecord) -> dict[str, Any] | None:
    if event.event_type == "guest.gone":
        return None
    if event.event_type == "guest.bad":
        raise ValueError("a bad guest")
    nights = event.payload.get("nights", 0)
    return {"nights": (row["nights"] if row else 0) + nights, "last": event.event_id[:1]}


def _visit(
    state: _Visits | None, event: EventRecord
) -> tuple[_Visits, dict[str, list[dict[str, Any]]]]:
    if event.event_type == "guest.bad":
        raise ValueError("a bad guest")
    rooms = [*(state.rooms if state else []), event.payload["room"]][-3:]
    row = {"room": event.payload["room"], "guest": event.stream_id, "seen": len(rooms)}
    return _Visits(rooms), {"first": [row], "last": [row]}


COLUMNS = {"nights": int, "last": str}
ROOM = {"guest": str, "seen": int}
DECLARED: list[Projection] = [
    projection("by_stream", key="stream", columns=COLUMNS, on_failure="skip")(_count),
    projection("by_path", key="payload.room", columns=COLUMNS, on_failure="park")(_count),
    projection("by_tenant", key="tenant_id", events=["guest.came"], columns=COLUMNS)(_count),
    projection(
        "with_state",
        key="stream_id",
        state=_Visits,
        tables=[
            Table("first", {"room": str}, ROOM, keep="first"),
            Table("last", {"room": str}, ROOM),
        ],
        on_failure="park",
    )(_visit),
]

EVENT = st.builds(
    lambda kind, guest, room, nights: NewEvent(
        f"guest.{kind}", {"room": room, "nights": nights}, stream=("guest", guest)
    ),
    st.sampled_from(["came", "came", "came", "gone", "bad"]),
    st.sampled_from("abcde"),
    st.sampled_from(["r1", "r2", "r:3"]),
    st.integers(0, 9),
)
APPEND = st.lists(EVENT, min_size=1, max_size=12)
CRASH = st.none() | st.tuples(st.integers(1, 3), st.sampled_from(["before", "inside", "after"]))


def runs(*engines: str) -> st.SearchStrategy[Any]:
    """Generate steps: an append, then a run on an engine that may crash at a commit."""
    run = st.tuples(APPEND, st.sampled_from(engines), st.integers(1, 9), CRASH)
    return st.lists(run, min_size=1, max_size=5)


@contextmanager
def crash_at(job: LocalJob | Projector, crash: tuple[int, str] | None) -> Iterator[None]:
    """Crash before, inside or after the n-th commit of a block."""
    if crash is None:
        yield
        return
    nth, point = crash
    model: Any = job.model
    name = "write" if point == "inside" else "commit"
    original: Callable[..., Any] = getattr(model, name)
    calls = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and point == "before":
            raise _CrashError
        result = original(*arguments, **options)
        if calls == nth:
            raise _CrashError
        return result

    setattr(model, name, counted)
    try:
        yield
    except _CrashError:
        pass
    finally:
        delattr(model, name)


def check_runs(
    log: Log, url: str, declared: Projection, steps: list[Any], spark: SparkSession | None
) -> None:
    """Run the steps; after each the tables must equal a plain fold up to the cursor."""

    def open_job(engine: str, batch_events: int) -> LocalJob | Projector:
        if engine == "local" or spark is None:
            return LocalJob(declared, url, batch_events=batch_events)
        return Projector(spark, declared, url, batch_events=batch_events)

    for events, engine, batch_events, crash in steps:
        log.append(events)
        with open_job(engine, batch_events) as job:
            with crash_at(job, crash):
                job.run()
            progress = job.status()
            position = 0 if progress is None else progress.position
            records = [record for record in log.read() if record.position <= position]
            assert stored_digest(job) == digest_in_python(records, declared)
    for engine in ("local", "spark") if spark else ("local",):
        with open_job(engine, 1000) as job:
            assert job.run().position == log.head()
            proof = job.verify()
            assert proof.equal
            assert proof.digest == digest_in_python(log.read(), declared)


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.name)
@given(steps=runs("local"))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_local_runs_equal_a_plain_fold(declared: Projection, steps: list[Any]) -> None:
    """I2, I3: random logs, batch sizes and crashes on the local engine end in the same tables."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder)}/log.db"
        with seriatim.open(url) as log:
            check_runs(log, url, declared, steps, None)


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.name)
@given(steps=runs("local", "spark"))
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_moves_between_engines_equal_a_plain_fold(
    spark: SparkSession, declared: Projection, steps: list[Any]
) -> None:
    """I10: a projection that moves between engines, with crashes, equals a plain fold."""
    register(spark)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder)}/log.db"
        with seriatim.open(url) as log:
            check_runs(log, url, declared, steps, spark)
