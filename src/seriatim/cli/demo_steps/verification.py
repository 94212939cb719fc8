"""Demo step: verify the whole log."""

from __future__ import annotations

from rich.text import Text

from seriatim.cli.demo_steps.demo_report import DemoReport, make_demo_table
from seriatim.log.verification import verify

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


def run(stage: DemoReport) -> None:
    """Verify the log with all events of the previous steps."""
    stage.start_step(
        "verify: the whole log, read again",
        "Proves: no gaps, contiguous streams, correct hashes and indexes after all steps above.",
    )
    report = verify(stage.log.store)
    table = make_demo_table("", "check", "finding")
    for finding in report.findings:
        level = Text(finding.level, style=_STYLES[finding.level])
        table.add_row(level, finding.check, finding.message)
    stage.print(table)
    stage.check(f"{report.events:,} events in {report.appends:,} appends are sound", report.ok)
