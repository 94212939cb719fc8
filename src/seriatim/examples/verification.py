"""Demo step: verify the whole log."""

from __future__ import annotations

from rich.text import Text

from seriatim import verify
from seriatim.examples.demo_report import DemoReport, make_demo_table

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


def run(report: DemoReport) -> None:
    """Verify the log with all events of the previous steps."""
    report.start_step(
        "verify: the whole log, read again",
        "Proves: no gaps, contiguous streams, correct hashes and indexes after all steps above.",
    )
    result = verify(report.log.store)
    table = make_demo_table("", "check", "finding")
    for finding in result.findings:
        level = Text(finding.level, style=_STYLES[finding.level])
        table.add_row(level, finding.check, finding.message)
    report.print(table)
    report.check(f"{result.events:,} events in {result.appends:,} appends are sound", result.ok)
