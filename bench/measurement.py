"""Measurements in interleaved rounds, their medians, and figures with goals as table and JSON."""

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROUNDS_MIN = 3
WARM_UP_SHARE = 0.2


@dataclass(frozen=True)
class Sample:
    """One timed run: the number of events, the duration, and the latency of each call."""

    events: int
    seconds: float
    latencies_s: Sequence[float] = ()

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds

    def percentile_ms(self, share: float) -> float | None:
        """Return a percentile of the latencies in milliseconds; None without calls."""
        return percentile_ms(self.latencies_s, share)


Subject = Callable[[float], Sample]


def timed(operation: Callable[[], int]) -> Subject:
    """Return a subject that runs an operation once to its end and ignores the given duration."""

    def run(_: float) -> Sample:
        watch = Stopwatch()
        events = operation()
        return Sample(events, watch.seconds)

    return run


def percentile_ms(latencies_s: Sequence[float], share: float) -> float | None:
    """Return a percentile of latencies in milliseconds; None when there are none."""
    if not latencies_s:
        return None
    ordered = sorted(latencies_s)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1e3


@dataclass(frozen=True)
class Series:
    """The rates and latencies of one subject in all rounds, with their medians."""

    rates: tuple[float, ...]
    p50s_ms: tuple[float, ...] = ()
    p99s_ms: tuple[float, ...] = ()

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> "Series":
        """Summarise the rounds of one subject."""
        rounds = list(samples)
        p50s = [one.percentile_ms(0.50) for one in rounds]
        p99s = [one.percentile_ms(0.99) for one in rounds]
        return cls(
            tuple(one.rate for one in rounds),
            tuple(value for value in p50s if value is not None),
            tuple(value for value in p99s if value is not None),
        )

    @property
    def rate(self) -> float:
        """The median of events per second."""
        return statistics.median(self.rates)

    @property
    def p50_ms(self) -> float | None:
        """The median of the rounds' p50."""
        return statistics.median(self.p50s_ms) if self.p50s_ms else None

    @property
    def p99_ms(self) -> float | None:
        """The median of the rounds' p99."""
        return statistics.median(self.p99s_ms) if self.p99s_ms else None


def interleave(
    subjects: Mapping[str, Subject],
    *,
    rounds: int,
    seconds: float,
    report: Callable[[str], None] = print,
    warm_up: bool = True,
) -> dict[str, Series]:
    """Measure subjects in turn, A B C, A B C, …, so that drift of the machine affects all alike.

    Args:
        subjects: The functions to measure, by name.
        rounds: The number of rounds.
        seconds: The duration of each measurement.
        report: Called with a line for each result.
        warm_up: Whether to run each subject briefly first.

    """
    for subject in subjects.values() if warm_up else ():
        subject(seconds * WARM_UP_SHARE)
    samples: dict[str, list[Sample]] = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, subject in subjects.items():
            samples[name].append(subject(seconds))
    found = {name: Series.of(taken) for name, taken in samples.items()}
    for name, series in found.items():
        report(f"    {name:<44} {_events(series.rate)}/s  p50 {_ms(series.p50_ms)}")
    return found


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table; `at_most` makes the goal an upper bound instead of a lower one."""

    name: str
    measured: float
    goal: float | None = None
    aim: float | None = None
    unit: str = "x"
    at_most: bool = False
    p50_ms: float | None = None
    p99_ms: float | None = None
    events_per_s: float | None = None
    against: str | None = None
    against_per_s: float | None = None
    rounds: tuple[float, ...] = ()
    limited_by: str | None = None
    taken: str | None = None
    response_bytes: int | None = None
    ok: bool | None = field(init=False)

    def __post_init__(self) -> None:
        """Compare with the goal; `ok` is None for a figure without a goal."""
        ok = None
        if self.goal is not None:
            ok = self.measured <= self.goal if self.at_most else self.measured >= self.goal
        object.__setattr__(self, "ok", ok)

    @property
    def verdict(self) -> str:
        """`ok` or `short`, or a dash for a figure without a goal."""
        return {True: "ok", False: "short", None: "-"}[self.ok]


def ratio(
    name: str,
    ours: Series,
    theirs: Series,
    *,
    against: str,
    goal: float | None = None,
    aim: float | None = None,
) -> Figure:
    """Return the ratio of two median rates as a figure."""
    return Figure(
        name=name,
        measured=ours.rate / theirs.rate,
        goal=goal,
        aim=aim,
        p50_ms=ours.p50_ms,
        p99_ms=ours.p99_ms,
        events_per_s=ours.rate,
        against=against,
        against_per_s=theirs.rate,
        rounds=tuple(our / their for our, their in zip(ours.rates, theirs.rates, strict=True)),
    )


def reference(name: str, series: Series) -> Figure:
    """Return a rate as a figure without a goal, for reference."""
    return Figure(
        name=name,
        measured=series.rate,
        unit="/s",
        p50_ms=series.p50_ms,
        p99_ms=series.p99_ms,
        events_per_s=series.rate,
        rounds=series.rates,
    )


HEADINGS = ("figure", "measured", "goal", "aim", "", "p50 ms", "p99 ms", "events/s", "against")


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a text table; a missed goal is followed by its bottleneck."""
    rows = [HEADINGS, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = []
    for index, row in enumerate(rows):
        first, *others = (
            cell.ljust(width) if column in (0, 4, 8) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join((first, *others)).rstrip())
        if index == 0:
            lines.append("-" * (sum(widths) + 2 * (len(widths) - 1)))
        elif (figure := figures[index - 1]).ok is False and figure.limited_by:
            lines.append(f"    limited by: {figure.limited_by}")
    return "\n".join(lines)


def _cells(figure: Figure) -> tuple[str, ...]:
    against = ""
    if figure.against is not None:
        rate = "" if figure.against_per_s is None else f" {_events(figure.against_per_s).strip()}/s"
        against = figure.against + rate
    if figure.taken is not None:
        against += f" (measured {figure.taken})"
    return (
        figure.name,
        _value(figure.measured, figure.unit),
        _bound(figure, figure.goal),
        _bound(figure, figure.aim),
        figure.verdict,
        _ms(figure.p50_ms),
        _ms(figure.p99_ms),
        "" if figure.events_per_s is None else _events(figure.events_per_s),
        against,
    )


def _value(value: float, unit: str) -> str:
    if unit == "/s":
        return f"{_events(value).strip()}/s"
    return f"{value:.2f}{'x' if unit == 'x' else ' ' + unit}"


def _bound(figure: Figure, bound: float | None) -> str:
    if bound is None:
        return ""
    return f"{'<=' if figure.at_most else '>='} {bound:g}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _events(value: float) -> str:
    return f"{value:8,.0f}"


def write_results(
    name: str, conditions: Mapping[str, Any], figures: Sequence[Figure], folder: Path = RESULTS
) -> Path:
    """Write the figures with all their rounds as JSON, and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    content = {"conditions": dict(conditions), "figures": [asdict(one) for one in figures]}
    path.write_text(json.dumps(content, indent=2, default=str) + "\n")
    return path


def carry_over_figures(
    name: str, measured: Sequence[Figure], belongs: Callable[[str], bool], folder: Path = RESULTS
) -> list[Figure]:
    """Return figures of the last written results that this run did not measure, with their date."""
    path = folder / f"{name}.json"
    if not path.exists():
        return []
    written = json.loads(path.read_text())
    known = {figure.name for figure in measured}
    fields = [name for name in Figure.__dataclass_fields__ if name not in ("ok", "taken")]
    return [
        Figure(
            **{name: one[name] for name in fields if name in one},
            taken=one["taken"] or written["conditions"]["taken"],
        )
        for one in written["figures"]
        if one["name"] not in known and belongs(one["name"])
    ]


class Stopwatch:
    """Measures the seconds since its creation."""

    def __init__(self) -> None:
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """The elapsed seconds."""
        return time.perf_counter() - self._started
