"""Run all steps of the demo on an empty log and summarize their checks."""

from __future__ import annotations

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

import seriatim
from seriatim.examples.decision_trace import show_decision_trace
from seriatim.examples.demo_report import DemoReport
from seriatim.examples.log_examples import (
    show_aggregate_commands,
    show_concurrent_appends,
    show_conditional_append,
    show_idempotent_retry,
    show_live_tail,
    show_secret_guard,
    show_throughput,
    show_verification,
)
from seriatim.examples.projections import show_local_projection, show_spark_projection
from seriatim.factory import redact_url

# Each step prints its results and checks its claims.
_STEPS = (
    show_decision_trace,
    show_conditional_append,
    show_aggregate_commands,
    show_concurrent_appends,
    show_idempotent_retry,
    show_secret_guard,
    show_live_tail,
    show_throughput,
    show_verification,
    show_local_projection,
    show_spark_projection,
)


def run_demo(console: Console, log_url: str) -> DemoReport:
    """Run the demo and print its steps.

    Args:
        console: Where to print.
        log_url: The URL of the log, which must be empty.

    Returns:
        The results of all checks.

    Raises:
        InvalidArgument: The log is not empty.
    """
    with seriatim.open(log_url) as log:
        if log.head():
            msg = "--url must name an empty log, because the demo writes to it"
            raise seriatim.InvalidArgument(msg, details={"argument": "--url"})
        identity = log.identity()
        title = Text.assemble(
            ("seriatim", "bold cyan"),
            ": an ordered, idempotent, replayable event log\n",
            (f"log {identity.log_id}, epoch {identity.epoch}\n{redact_url(log_url)}", "dim"),
        )
        console.print(Panel(title, border_style="cyan"))
        report = DemoReport(console, log, log_url)
        for step in _STEPS:
            step(report)
    return report


def summarize_demo(report: DemoReport, seconds: float) -> Panel:
    """Return the last panel of the demo: how many claims passed, and where the log is."""
    passed = sum(passed for _, passed in report.checks)
    count = len(report.checks)
    style = "green" if report.passed else "red"
    text = Text.assemble(
        (f"{passed} of {count} claims held", f"bold {style}"),
        f" in {seconds:.0f} s. The log is kept. To inspect it:\n",
        (f"seriatim streams --url {redact_url(report.url)}\n", "cyan"),
        (f"seriatim console --url {redact_url(report.url)}", "cyan"),
    )
    return Panel(text, border_style=style)
