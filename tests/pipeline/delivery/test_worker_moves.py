"""Handlers that move between engines, with crashes and stops: one effect for each event (G7, I10).

Hypothesis chooses the events, the engine and batch size of each run, and where a run ends.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import seriatim
from seriatim import EntryFilter, EventRecord, Handler, Log, NewEvent, RetryPolicy, handler
from seriatim.core.errors import BackendFailure
from seriatim.delivery.handler_loop import HandlerLoop
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry, registry_url
from seriatim.pipeline.work.worker import Worker
from tests.faults.handler_crash import HASTY, make_handler
from tests.faults.handler_target import Target, append, check_order, finish
from tests.faults.handler_target import kill_at as kill_process_at
from tests.pipeline.delivery.local_worker import LocalWorker
from tests.pipeline.delivery.test_worker_crashes import crashing

# Each failed attempt may be repeated at once, and a crash costs one.
PATIENT = RetryPolicy(attempts=1000, base_s=0.0, cap_s=0.0)


class _KilledError(BaseException):
    """Ends a run as SIGKILL does: the registry gets no further call."""


class Effects:
    """Effects in a database of their own, or in that of the registry if they are transactional."""

    def __init__(self, effect: str, folder: Path) -> None:
        self.effect = effect
        self._file = str(folder / "effects.db")
        self._registry_file = str(folder / "log.delivery.db")

    def create(self) -> None:
        """Create the table; with keys for effects that the target deduplicates."""
        constraint = "primary key" if self.effect == "keyed" else ""
        with closing(sqlite3.connect(self._path)) as target, target:
            target.execute(f"create table effects (key text {constraint}, stream text, seq int)")

    @property
    def _path(self) -> str:
        return self._registry_file if self.effect == "transactional" else self._file

    def make_handler(self, mode: str) -> Handler:
        """Return a handler whose first attempts fail for some events."""
        file, effect = self._file, self.effect

        def run(event: EventRecord, context: Any) -> None:
            if context.attempt <= event.payload["fails"]:
                raise ValueError("not yet")
            values = (event.event_id, event.stream_id, event.stream_seq)
            if effect == "transactional":
                context.connection.execute("insert into effects values (?, ?, ?)", values)
                return
            with closing(sqlite3.connect(file, timeout=30)) as target, target:
                target.execute("insert or ignore into effects values (?, ?, ?)", values)

        given: dict[str, Any] = {"effect": effect, "mode": mode, "retry": PATIENT}
        return handler("moving", events=["order.*"], **given)(run)

    def read(self) -> list[tuple[str, str | None, int | None]]:
        """Return the effects in order: event, stream and sequence number."""
        with closing(sqlite3.connect(self._path)) as target:
            return list(target.execute("select key, stream, seq from effects order by rowid"))


# -- where a run ends

POINTS: dict[str, tuple[Any, str]] = {
    "claim": (Registry, "claim_all"),
    "mark": (Registry, "mark_done"),
    "mark in": (Registry, "mark_done_in"),
    "commit": (HandlerLoop, "_run_in_one_transaction"),
    "failure": (Registry, "mark_failed"),
    "defer": (Registry, "defer"),
    "pass": (Registry, "pass_over"),
    "cursor": (Registry, "move_cursor"),
    "due": (Registry, "due"),
}


@contextmanager
def kill_at(point: str | None, nth: int, *, after: bool) -> Iterator[None]:
    """Kill the run at the n-th call of a point; from then on nothing reaches the registry."""
    if point is None:
        yield
        return
    killed = False
    calls = 0
    originals = {(owner, name): getattr(owner, name) for owner, name in POINTS.values()}
    originals[Registry, "release"] = Registry.release

    def make(place: tuple[Any, str]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls, killed
            if killed:
                raise _KilledError
            is_point = place == POINTS[point]
            calls += is_point
            killed = is_point and calls == nth and not after
            if killed:
                raise _KilledError
            result = originals[place](*arguments, **options)
            killed = is_point and calls == nth
            if killed:
                raise _KilledError
            return result

        return call

    for place in originals:
        setattr(*place, make(place))
    try:
        yield
    except _KilledError:
        pass
    finally:
        for place, original in originals.items():
            setattr(*place, original)


def expire_claims(registry: Registry) -> None:
    """Let the leases of killed runs expire."""
    with registry.engine.transaction() as session:
        session.run("update seriatim_handled set due_us = 0 where status = 'claimed'")


# -- random runs

EVENT = st.builds(
    lambda kind, stream, fails: NewEvent(
        kind, {"fails": fails}, stream=None if stream is None else ("order", stream)
    ),
    st.sampled_from(["order.placed", "order.placed", "order.paid", "note.made"]),
    st.sampled_from(["1", "2", "3", None]),
    st.sampled_from([0, 0, 0, 0, 1, 2]),
)
APPEND = st.lists(EVENT, min_size=1, max_size=12)
KILL = st.tuples(st.sampled_from(sorted(POINTS)), st.integers(1, 3), st.booleans())
STOP = st.integers(0, 15)


def runs(*engines: str) -> st.SearchStrategy[Any]:
    """Generate steps: an append, then a run that ends at the head, at a stop or at a kill."""
    run = st.tuples(APPEND, st.sampled_from(engines), st.integers(1, 9), st.none() | KILL | STOP)
    return st.lists(run, min_size=1, max_size=6)


def run_step(
    worker: Worker | LocalWorker, effects: Effects, ending: tuple[str, int, bool] | int | None
) -> None:
    """Run a worker up to its end."""
    point, nth, after = ending if isinstance(ending, tuple) else (None, 0, False)
    limit = len(effects.read()) + ending if isinstance(ending, int) else None
    with kill_at(point, nth, after=after):
        worker.run(until=lambda: limit is not None and len(effects.read()) >= limit)


def check_runs(
    folder: Path, effects: Effects, mode: str, steps: list[Any], spark: SparkSession | None
) -> None:
    """Run the steps, then handle the rest; each event must have one effect, in order."""
    place = f"sqlite:///{folder}/log.db"
    declared = effects.make_handler(mode)

    def open_worker(engine: str, batch_events: int) -> Worker | LocalWorker:
        if engine == "local" or spark is None:
            return LocalWorker(declared, url=place, batch_events=batch_events)
        return Worker(spark, declared, url=place, batch_events=batch_events)

    with seriatim.open(place) as log, closing(open_registry(registry_url(place))) as registry:
        effects.create()
        for events, engine, batch_events, ending in steps:
            log.append(events)
            with open_worker(engine, batch_events) as worker:
                # The process of a Spark task cannot be patched from here.
                run_step(worker, effects, ending if engine == "local" else None)
            expire_claims(registry)
        unknown = settle(registry, open_worker("local", 1000))
        check_effects(log, registry, effects, mode, unknown)


def settle(registry: Registry, worker: Worker | LocalWorker) -> set[str]:
    """Handle all events; skip and return those whose unsafe effect may have happened."""
    unknown: set[str] = set()
    with worker:
        for _ in range(20):
            worker.run()
            expire_claims(registry)
            found = {one.event_id for one in registry.entries(EntryFilter(status="unknown"))}
            if found:
                registry.skip(EntryFilter(status="unknown"), "looked up")
            unknown |= found
            open_ = EntryFilter(status=("claimed", "failed", "blocked", "unknown"))
            if not found and not registry.count_entries(open_):
                return unknown
    raise AssertionError(registry.counts())


def check_effects(
    log: Log, registry: Registry, effects: Effects, mode: str, unknown: set[str]
) -> None:
    """Check that each selected event had its effect once, each stream in order."""
    found = effects.read()
    selected = {one.event_id for one in log.read(types=["order.*"])}
    assert set(Counter(key for key, _, _ in found).values()) <= {1}
    assert {key for key, _, _ in found} <= selected
    missing = selected - {key for key, _, _ in found} - unknown
    for stream in ("1", "2", "3"):
        numbers = [seq or 0 for _, one, seq in found if one == stream]
        assert mode == "latest_wins" or numbers == sorted(numbers)
    statuses = {one.event_id: one.status for one in registry.entries(EntryFilter(), limit=1000)}
    if mode == "strict":
        assert not missing
    else:  # a later event of the stream was handled first
        assert {statuses.get(name) for name in missing} <= {"stale", None}


EXAMPLES = settings(
    max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.mark.parametrize("mode", ["strict", "latest_wins"])
@pytest.mark.parametrize("effect", ["transactional", "keyed", "unsafe"])
@given(steps=runs("local"))
@EXAMPLES
def test_random_local_runs_have_each_effect_once(effect: str, mode: str, steps: list[Any]) -> None:
    """G7, G10: after random kills and stops of local runs each event has had its effect once."""
    with tempfile.TemporaryDirectory() as folder:
        check_runs(Path(folder), Effects(effect, Path(folder)), mode, steps, None)


@pytest.mark.parametrize("effect", ["transactional", "keyed"])
@given(steps=runs("local", "spark"))
@settings(EXAMPLES, max_examples=3)
def test_random_moves_between_engines_have_each_effect_once(
    spark: SparkSession, effect: str, steps: list[Any]
) -> None:
    """I10: a handler that moves between engines, with kills, has each effect once."""
    with tempfile.TemporaryDirectory() as folder:
        check_runs(Path(folder), Effects(effect, Path(folder)), "strict", steps, spark)


@pytest.mark.parametrize("effect", ["transactional", "keyed"])
def test_moves_after_kills(spark: SparkSession, log_url: str, tmp_path: Path, effect: str) -> None:
    """I10: 003 §6.2: killed on one engine, a handler continues on the other, and back again."""
    with seriatim.open(log_url) as log, ExitStack() as stack:
        target = Target(effect, log_url, stack)
        declared = make_handler(effect, target.address)
        for number, (engine, point) in enumerate(
            [
                ("local", "after effect"),
                ("spark", "after effect"),
                ("local", "before cursor"),
                ("spark", "before mark"),
            ]
        ):
            append(log, 10)
            if engine == "local":
                kill_process_at(target, "run", point, 1)
            else:
                folder = tmp_path / str(number)
                folder.mkdir()
                doomed = crashing(declared, point, folder)
                with (
                    pytest.raises(BackendFailure),
                    Worker(spark, doomed, url=log_url, tenant_id="default", settings=HASTY) as one,
                ):
                    one.run()
                assert (folder / "died").exists()
            check_order(target)
            time.sleep(HASTY.lease_s)  # of the killed process: its events are free again
        assert finish(log, target) == set()
