"""What every benchmark does with its sections: runs them, prints the table, keeps the results."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bench.harness import RESULTS, Figure, Stopwatch, carried_over, table, write_results
from bench.limits import what_limits
from bench.plan import GROWTH, Run, in_words
from bench.plot import ASSETS, draw

PARTIAL = Path(__file__).parent.parent / "build" / "bench"

S = TypeVar("S")


def show(conditions: Mapping[str, Any], indent: str = "") -> None:
    """Print what a run is taken under."""
    for name, value in conditions.items():
        if isinstance(value, dict):
            print(f"{indent}{name}:")
            show(value, indent + "  ")
        else:
            print(f"{indent}{name}: {value}")


def measure(
    plan: Run, sections: Mapping[str, Callable[[S], list[Figure]]], stage: S, watch: Stopwatch
) -> list[Figure]:
    """Run the sections that are asked for, one after the other."""
    figures: list[Figure] = []
    for name, section in sections.items():
        if name in plan.only and (plan.large or name != GROWTH):
            print(f"{name} ({watch.seconds:.0f} s so far)")
            gc.collect()
            figures += section(stage)
    return figures


def report(
    name: str, title: str, plan: Run, conditions: Mapping[str, Any], figures: Sequence[Figure]
) -> None:
    """Print the table and write the files; only a whole run replaces the kept ones."""
    told = list(figures)
    if plan.whole and not plan.large:
        told += carried_over(name, told, lambda words: in_words(plan.large_events) in words)
    told = [replace(figure, limited_by=what_limits(figure.name)) for figure in told]
    print()
    print(table(told))
    print()
    if plan.large_events and not plan.large:
        print(f"Figures at {in_words(plan.large_events)} events are taken only with --large.")
    path = write_results(name, conditions, told, RESULTS if plan.whole else PARTIAL)
    drawn = draw(f"bench-{name}", title, told, ASSETS if plan.whole else PARTIAL)
    print(f"{path}\n{drawn}\n{conditions['seconds']} s in all")
