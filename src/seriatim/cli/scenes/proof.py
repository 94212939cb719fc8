"""The whole log read again at the end, and proved."""

from __future__ import annotations

from rich.text import Text

from seriatim.cli.scenes.stage import Stage, sheet
from seriatim.log.verify import verify

_STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


def play(stage: Stage) -> None:
    """Verify everything that the scenes left behind."""
    stage.scene(
        "verify: the whole log read again",
        "Proves: no gaps, contiguous streams, right hashes, right indexes, after all of the above.",
    )
    report = verify(stage.log.store)
    shown = sheet("", "check", "finding")
    for one in report.findings:
        shown.add_row(Text(one.level, style=_STYLES[one.level]), one.check, one.message)
    stage.show(shown)
    stage.check(f"{report.events:,} events in {report.appends:,} appends are sound", report.ok)
