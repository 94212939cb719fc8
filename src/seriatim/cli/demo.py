"""The command `seriatim demo`: demonstrate the log on a new SQLite log in about a minute."""

from __future__ import annotations

import io
import re
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from seriatim.cli import exit_codes
from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    command_session,
)
from seriatim.cli.output import Terminal, write_json
from seriatim.examples.demo import run_demo, summarize_demo
from seriatim.examples.demo_report import WIDTH, DemoReport
from seriatim.factory import redact_url


def demo(
    ctx: typer.Context,
    url: LogUrl = None,
    as_json: JsonOutput = False,
    svg: Annotated[Path | None, typer.Option(hidden=True, help="Save the output as SVG.")] = None,
) -> None:
    """Demonstrate Seriatim: profiles, races, retries, refused secrets, a live tail, read models.

    The demo runs on a new SQLite log in a temporary folder, which is kept, unless --url names
    another log, which must be empty. Read models need Spark.
    """
    with command_session(ctx, CommonOptions(url, None, as_json)) as command:
        log_url = command.explicit_url or _make_log_url()
        console = _make_console(command)
        started = time.perf_counter()
        report = run_demo(console, log_url)
        seconds = time.perf_counter() - started
        console.print()
        console.print(summarize_demo(report, seconds))
        if svg is not None:
            svg.write_text(_export_svg(console), encoding="utf-8")
        if command.as_json:
            _print_json(report, seconds)
        if not report.passed:
            raise typer.Exit(exit_codes.FOUND_PROBLEMS)


def _make_log_url() -> str:
    folder = tempfile.mkdtemp(prefix="seriatim-demo-")
    return f"sqlite:///{folder}/demo.db"


def _make_console(command: CommandSession) -> Console:
    file = io.StringIO() if command.as_json else None
    width = min(WIDTH, command.stdout.width) if command.stdout.is_terminal else WIDTH
    return Terminal(highlight=False, record=True, width=width, file=file)


def _export_svg(console: Console) -> str:
    """Return the output as SVG, without the web fonts that Rich references."""
    svg = console.export_svg(title="seriatim demo", unique_id="seriatim-demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def _print_json(report: DemoReport, seconds: float) -> None:
    write_json(
        {
            "ok": report.passed,
            "seconds": round(seconds, 3),
            "url": redact_url(report.url),
            "claims": [{"claim": claim, "held": held} for claim, held in report.checks],
        }
    )
