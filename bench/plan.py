"""The size of a benchmark run, and the command-line options that all suites share."""

import argparse
from dataclasses import dataclass

SUITES = {
    "append": "appends, conditions and imports, compared with bare inserts and other logs",
    "pipeline": "reads, projections and the archive on Spark, compared with plain code",
    "local": "projections in this process, compared with plain code and with Spark",
    "delivery": "the publisher and the registry, compared with plain loops",
    "service": "the HTTP service, compared with a no-op endpoint and UmaDB",
    "console": "the pages of the console on a large log, compared with the API reads behind them",
}
"""The purpose of each suite, by its name."""

GROWTH = "growth"  # the section that runs only with --large


@dataclass(frozen=True, kw_only=True)
class BenchmarkPlan:
    """The size of a run; goals are meaningful only in a run of full size."""

    sections: tuple[str, ...]
    only: tuple[str, ...]
    events: int
    large_events: int
    rounds: int = 3
    large: bool = False
    quick: bool = False

    @property
    def is_publishable(self) -> bool:
        """Whether the results of this run may replace the published ones."""
        return not self.quick and set(self.only) >= set(self.sections) - {GROWTH}

    @property
    def size(self) -> str:
        """The number of events in the log, formatted."""
        return format_count(self.events)


def format_count(events: int) -> str:
    """Return a number of events with a unit, such as `10 M` or `200 k`."""
    for unit, suffix in ((1_000_000, "M"), (1000, "k")):
        if events >= unit:
            return f"{events / unit:g} {suffix}"
    return str(events)


def read_arguments(
    suite: str, sections: tuple[str, ...], arguments: list[str] | None
) -> argparse.Namespace:
    """Parse the options of a suite.

    Args:
        suite: The name of the suite.
        sections: The names of all sections; the result's `only` contains those to run.
        arguments: The options; None reads them from the command line.

    """
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {suite}", description=f"Measure {SUITES[suite]}."
    )
    parser.add_argument("--quick", action="store_true", help="use tiny sizes, as a smoke test")
    parser.add_argument("--large", action="store_true", help="also measure at 10 M events")
    parser.add_argument("--only", help=f"run only these sections: {','.join(sections)}")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds; default 3")
    parser.add_argument("--seconds", type=float, help="duration of each timed measurement")
    parser.add_argument("--events", type=int, help="events in the log before the measurement")
    parser.add_argument("--large-events", type=int, help="events in the large log")
    options = parser.parse_args(arguments)
    options.only = tuple(options.only.split(",")) if options.only else sections
    if unknown := set(options.only) - set(sections):
        parser.error(f"unknown sections: {', '.join(sorted(unknown))}")
    if options.rounds < 1 or (options.rounds < 3 and not options.quick):
        parser.error("--rounds must be at least 3, because figures are medians")
    return options
