"""Runs the sections of a suite, prints their table and writes the results."""

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bench.bottlenecks import find_bottleneck
from bench.chart import ASSETS, draw
from bench.measurement import RESULTS, Figure, Stopwatch, carry_over_figures, table, write_results
from bench.plan import GROWTH, BenchmarkPlan, format_count

PARTIAL = Path(__file__).parent.parent / "build" / "bench"

P = TypeVar("P", bound=BenchmarkPlan)
S = TypeVar("S")


def run_suite(
    name: str,
    title: str,
    plan: P,
    *,
    set_up: Callable[[P], AbstractContextManager[S]],
    sections: Mapping[str, Callable[[S], list[Figure]]],
    describe: Callable[[S], dict[str, Any]],
) -> int:
    """Run a suite and return 0, also if a figure misses its goal.

    Args:
        name: The name of the suite, of its results and of its chart.
        title: The title of the chart.
        plan: What to run, and at which size.
        set_up: Starts the servers and fills the logs.
        sections: The sections by name, in their order.
        describe: Returns the conditions of the run.
    """
    watch = Stopwatch()
    with set_up(plan) as environment:
        conditions = describe(environment)
        print_conditions(conditions)
        figures = measure(plan, sections, environment, watch)
    conditions["seconds"] = round(watch.seconds)
    publish_results(name, title, plan, conditions, figures)
    return 0


def print_conditions(conditions: Mapping[str, Any], indent: str = "") -> None:
    """Print the conditions of a run: machine, versions, settings, sizes."""
    for name, value in conditions.items():
        if isinstance(value, dict):
            print(f"{indent}{name}:")
            print_conditions(value, indent + "  ")
        else:
            print(f"{indent}{name}: {value}")


def measure(
    plan: BenchmarkPlan,
    sections: Mapping[str, Callable[[S], list[Figure]]],
    environment: S,
    watch: Stopwatch,
) -> list[Figure]:
    """Run the planned sections and return their figures."""
    figures: list[Figure] = []
    for name, section in sections.items():
        if name in plan.only and (plan.large or name != GROWTH):
            print(f"{name} ({watch.seconds:.0f} s so far)")
            gc.collect()
            figures += section(environment)
    return figures


def publish_results(
    name: str,
    title: str,
    plan: BenchmarkPlan,
    conditions: Mapping[str, Any],
    figures: Sequence[Figure],
) -> None:
    """Print the table and write the results; only a full run replaces the published ones."""
    published = list(figures)
    if plan.is_publishable and not plan.large:
        published += carry_over_figures(
            name, published, lambda figure: format_count(plan.large_events) in figure
        )
    published = [replace(figure, limited_by=find_bottleneck(figure.name)) for figure in published]
    print()
    print(table(published))
    print()
    if plan.large_events and not plan.large:
        print(
            f"Figures at {format_count(plan.large_events)} events are measured only with --large."
        )
    path = write_results(name, conditions, published, RESULTS if plan.is_publishable else PARTIAL)
    chart = draw(f"bench-{name}", title, published, ASSETS if plan.is_publishable else PARTIAL)
    print("\n".join(str(file) for file in (path, chart) if file is not None))
    print(f"{conditions['seconds']} s in total")
