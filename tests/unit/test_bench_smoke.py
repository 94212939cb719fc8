"""The harness of the benchmarks, mostly on a log in memory."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.append.contexts import contexts
from bench.append.memory import MemoryWatch, export, read
from bench.append.plan import SECTIONS, AppendPlan, parse_plan
from bench.bottlenecks import find_bottleneck
from bench.callers import alone, tasks, threads
from bench.chart import draw
from bench.measurement import (
    Figure,
    Sample,
    Series,
    carry_over_figures,
    interleave,
    ratio,
    reference,
    table,
    write_results,
)
from bench.plan import format_count
from bench.seriatim_log import SeriatimLog
from bench.workload import Orders, make_prefill_event, payload_bytes

EVENTS = 400
BRIEF = 0.02


@pytest.fixture
def prefilled_log() -> Iterator[SeriatimLog]:
    """A small prefilled log."""
    with SeriatimLog("memory:") as log:
        log.fill(EVENTS)
        yield log


def test_callers_count_their_appends(prefilled_log: SeriatimLog) -> None:
    """Threads, tasks and a single caller store exactly the events that they count."""
    orders = Orders(streams=10)
    counted = EVENTS
    for subject in (
        prefilled_log.alone(orders),
        prefilled_log.thread_singles(4, orders),
        prefilled_log.task_singles(4, orders),
        prefilled_log.batches(2, orders, 10, 3),
        prefilled_log.task_batches(2, orders, 10, 3),
    ):
        counted += subject(BRIEF).events

    assert counted == prefilled_log.log.head()


def test_a_failing_caller_fails_the_run() -> None:
    """An error in a thread of a run is raised."""

    def fail(_: int) -> int:
        raise LookupError

    with pytest.raises(LookupError):
        threads(2, fail)(BRIEF)


def test_rounds_are_interleaved() -> None:
    """Each round runs every subject once, after a warm-up of each."""
    order: list[str] = []

    def subject(name: str) -> Sample:
        order.append(name)
        return Sample(10, 0.5, [0.001, 0.002, 0.003])

    found = interleave(
        {"a": lambda _: subject("a"), "b": lambda _: subject("b")},
        rounds=3,
        seconds=BRIEF,
        report=lambda _: None,
    )

    assert order == ["a", "b"] * 4
    assert found["a"].rates == (20.0, 20.0, 20.0)
    assert found["a"].p50_ms == 2.0


def test_results_are_written_with_their_verdict(tmp_path: Path) -> None:
    """The table and the JSON have verdict, goal, percentiles and rate of each figure."""
    fast, slow = Series((30.0, 10.0, 20.0), (1.0,), (2.0,)), Series((10.0, 10.0, 10.0))
    figures = [
        ratio("fast / slow", fast, slow, against="slow", goal=1.5, aim=3.0),
        ratio("slow / fast", slow, fast, against="fast", goal=1.0),
        Figure(name="delay", measured=2.0, goal=3.0, unit="ms", at_most=True),
        reference("slow", slow),
    ]

    assert [figure.ok for figure in figures] == [True, False, True, None]
    assert [figure.verdict for figure in figures] == ["ok", "short", "ok", "-"]
    lines = table(figures).splitlines()
    assert len(lines) == 2 + len(figures)
    assert "2.00x" in lines[2]

    path = write_results("smoke", {"taken": "2025-11-15"}, figures, tmp_path)
    written = json.loads(path.read_text())
    assert written["conditions"] == {"taken": "2025-11-15"}
    assert [figure["measured"] for figure in written["figures"]] == [2.0, 0.5, 2.0, 10.0]
    assert written["figures"][1]["ok"] is False

    (kept,) = carry_over_figures("smoke", figures[1:], lambda name: "/" in name, tmp_path)
    assert kept.taken == "2025-11-15"
    assert kept.measured == 2.0
    assert carry_over_figures("none", figures, lambda _: True, tmp_path) == []

    chart = draw("smoke", "a title", figures, tmp_path)
    assert chart is not None
    assert chart.read_text().startswith("<?xml")
    assert draw("empty", "a title", figures[2:3], tmp_path) is None


def test_contexts_are_measured_without_conflicts(postgres_url: str) -> None:
    """The contexts of the benchmark do not match its own appends."""
    plan = AppendPlan(events=EVENTS, rounds=1, seconds=BRIEF, context_calls=2)

    with SeriatimLog(postgres_url) as prefilled_log:
        prefilled_log.fill(EVENTS)
        figures = contexts(prefilled_log, plan, plan.size, Orders(streams=10))

    assert len(figures) == 12
    assert all(figure.at_most for figure in figures)


def test_memory_is_measured_while_reading_and_exporting(prefilled_log: SeriatimLog) -> None:
    """Export and read process the requested events, and growth of memory is measured."""
    seen: list[int] = []
    export(prefilled_log.log, EVENTS, seen.append)
    read(prefilled_log.log, EVENTS, seen.append)
    watch = MemoryWatch(EVENTS)
    watch(1)
    held = b"x" * (64 << 20)
    watch(EVENTS)
    del held

    assert seen[-1] == EVENTS
    assert watch.growth_mib > 32.0


def test_prefilled_events_match_the_stated_conditions() -> None:
    """Payloads have about 325 bytes, and events have the label of their year alone."""
    assert 300 < payload_bytes() < 350
    assert "year:2024" in make_prefill_event(0, EVENTS).tags
    assert "year:2025" in make_prefill_event(EVENTS - 2, EVENTS).tags
    assert "year:2025" not in make_prefill_event(0, EVENTS).tags


def test_partial_runs_are_marked() -> None:
    """Quick runs and single sections are not whole runs, whose results are kept."""
    assert parse_plan([]).is_publishable
    assert parse_plan(["--large"]).is_publishable
    assert not parse_plan(["--quick"]).is_publishable
    assert not parse_plan(["--only", SECTIONS[0]]).is_publishable
    with pytest.raises(SystemExit):
        parse_plan(["--rounds", "2"])
    assert format_count(1_000_000) == "1 M"
    assert format_count(10) == "10"


def test_callers_stop_in_time() -> None:
    """A run lasts at least the requested time."""
    started = time.perf_counter()
    alone(lambda: 1)(BRIEF)

    async def act(_: int) -> int:
        return 1

    assert tasks(1, act)(BRIEF).events >= 1
    assert time.perf_counter() - started >= 2 * BRIEF
    assert find_bottleneck("a figure nobody knows") is None
