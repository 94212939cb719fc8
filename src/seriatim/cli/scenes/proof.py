"""Demo step: verify the whole log."""

from __future__ import annotations

from rich.text import Text

from seriatim.cli.scenes.stage import Stage, sheet
from seriatim.log.verify import verify

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


def play(stage: Stage) -> None:
    """Verify the log with all events of the previous steps."""
    stage.scene(
        "verify: the whole log, read again",
        "Proves: no gaps, contiguous streams, correct hashes and indexes after all steps above.",
    )
    report = verify(stage.log.store)
    table = sheet("", "check", "finding")
    for finding in report.findings:
        level = Text(finding.level, style=_STYLES[finding.level])
        table.add_row(level, finding.check, finding.message)
    stage.show(table)
    stage.check(f"{report.events:,} events in {report.appends:,} appends are sound", report.ok)
