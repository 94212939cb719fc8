"""Write docs/reference/benchmarks.md from the published results: `make bench-report`."""

import json
from pathlib import Path
from typing import Any

from bench.harness import Figure
from bench.plot import draw

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "reference" / "benchmarks.md"

_SUITES = {
    "append": "Appends, conditions, reads and imports, in process, on Postgres and SQLite.",
    "pipeline": "Reads, projections, archive and live latency on Spark.",
    "delivery": "The publisher to Kafka and the processed-event registry.",
    "service": "The HTTP service in one process, its client, and one tenant at its bounds.",
}
_INTRODUCTION = """\
# Benchmarks

This page is written by `make bench-report` from `bench/results`, which the benchmarks themselves write. Every ratio is measured side by side in one run: ours and the other side take turns, and the ratio is the median of the rounds. Durable commits on both sides. A goal that is not reached is marked **short**, with what limits it.

Absolute rates depend on the machine, ratios much less. `make bench-append`, `make bench-pipeline`, `make bench-delivery` and `make bench-service` repeat the measurement on yours.
"""  # noqa: E501 - a paragraph is a line


def page() -> str:
    """Return the text of the page."""
    return "\n".join([_INTRODUCTION, *(_suite(name, text) for name, text in _SUITES.items())])


def _suite(name: str, text: str) -> str:
    """Return one benchmark's section: its conditions, its table and what limits it."""
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    compared = [one for one in found["figures"] if one["goal"] is not None or one["against"]]
    lines = [f"## make bench-{name}", "", text, "", _conditions(found["conditions"]), ""]
    lines += ["| figure | measured | goal | | ours | the other side |", "|---|---|---|---|---|---|"]
    lines += [_row(one) for one in compared]
    if short := [one for one in compared if one["ok"] is False]:
        lines += ["", "What limits:", ""]
        lines += [f"- {one['name']}: {one['limited_by'] or 'not analysed yet'}." for one in short]
    if (ROOT / "docs" / "assets" / f"bench-{name}.svg").exists():
        lines += ["", f"![make bench-{name}](../assets/bench-{name}.svg)"]
    return "\n".join([*lines, ""])


def _conditions(conditions: dict[str, Any]) -> str:
    machine = conditions["machine"]
    events = conditions["events_in_the_log"]
    return (
        f"Taken {conditions['taken']} on {machine['cores']} cores ({machine['cpu']}), "
        f"Python {machine['python']}, load {machine['load_average_before']:.1f} before the run, "
        f"a log of {events:,} events with payloads of {conditions['payload_bytes']} bytes, "
        f"{conditions['rounds']} rounds."
    )


def _row(one: dict[str, Any]) -> str:
    status = "" if one["goal"] is None else "ok" if one["ok"] else "**short**"
    return (
        f"| {one['name']} | {_number(one['measured'], one['unit'])} | {_goal(one)} | {status} "
        f"| {_ours(one)} | {_theirs(one)} |"
    )


def _number(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def _goal(one: dict[str, Any]) -> str:
    if one["goal"] is None:
        return ""
    return f"{'≤' if one['at_most'] else '≥'} {_number(one['goal'], one['unit'])}"


def _ours(one: dict[str, Any]) -> str:
    """Return our own rate and latency, where they were taken."""
    rate = one["events_per_s"]
    parts = [f"{rate:,.0f}/s"] if rate else []
    latencies = ((name, one[f"{name}_ms"]) for name in ("p50", "p99"))
    parts += [f"{name} {_number(value, 'ms')}" for name, value in latencies if value is not None]
    return ", ".join(parts)


def _theirs(one: dict[str, Any]) -> str:
    rate = f" {one['against_per_s']:,.0f}/s" if one["against_per_s"] else ""
    return f"{one['against'] or ''}{rate}"


def draw_charts() -> None:
    """Draw the chart of each benchmark from its published results."""
    for name in _SUITES:
        found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        events = found["conditions"]["events_in_the_log"]
        figures = [
            Figure(**{field: value for field, value in one.items() if field != "ok"})
            for one in found["figures"]
        ]
        draw(f"bench-{name}", f"make bench-{name}, a log of {events:,} events", figures)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    draw_charts()
    print(PAGE.relative_to(ROOT))
