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
from rich.panel import Panel
from rich.text import Text

from seriatim.cli import exit_codes
from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    command_session,
)
from seriatim.cli.demo_steps import (
    aggregate_commands,
    concurrent_appends,
    conditional_append,
    decision_trace,
    idempotent_retry,
    live_tail,
    secret_guard,
    spark_projection,
    throughput,
    verification,
)
from seriatim.cli.demo_steps.demo_report import WIDTH, DemoReport
from seriatim.cli.output import Terminal, write_json
from seriatim.factory import open_log, redact_url
from seriatim.log.arguments import invalid_argument

# Each step is a module with a function that prints its results and checks its claims.
_STEPS = (
    decision_trace,
    conditional_append,
    aggregate_commands,
    concurrent_appends,
    idempotent_retry,
    secret_guard,
    live_tail,
    throughput,
    verification,
    spark_projection,
)


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
        stage = _run_steps(console, log_url)
        seconds = time.perf_counter() - started
        console.print()
        console.print(_summarize(stage, seconds))
        if svg is not None:
            svg.write_text(_export_svg(console), encoding="utf-8")
        if command.as_json:
            _print_json(stage, seconds)
        if not stage.passed:
            raise typer.Exit(exit_codes.FOUND_PROBLEMS)


def _make_log_url() -> str:
    folder = tempfile.mkdtemp(prefix="seriatim-demo-")
    return f"sqlite:///{folder}/demo.db"


def _make_console(command: CommandSession) -> Console:
    file = io.StringIO() if command.as_json else None
    width = min(WIDTH, command.stdout.width) if command.stdout.is_terminal else WIDTH
    return Terminal(highlight=False, record=True, width=width, file=file)


def _run_steps(console: Console, log_url: str) -> DemoReport:
    with open_log(log_url) as log:
        if log.head():
            raise invalid_argument("--url", "must name an empty log, because the demo writes to it")
        identity = log.identity()
        title = Text.assemble(
            ("seriatim", "bold cyan"),
            ": an ordered, idempotent, replayable event log\n",
            (f"log {identity.log_id}, epoch {identity.epoch}\n{redact_url(log_url)}", "dim"),
        )
        console.print(Panel(title, border_style="cyan"))
        stage = DemoReport(console, log, log_url)
        for step in _STEPS:
            step.play(stage)
    return stage


def _summarize(stage: DemoReport, seconds: float) -> Panel:
    held = sum(held for _, held in stage.checks)
    count = len(stage.checks)
    style = "green" if stage.passed else "red"
    text = Text.assemble(
        (f"{held} of {count} claims held", f"bold {style}"),
        f" in {seconds:.0f} s. The log is kept. To inspect it:\n",
        (f"seriatim streams --url {redact_url(stage.url)}", "cyan"),
    )
    return Panel(text, border_style=style)


def _export_svg(console: Console) -> str:
    """Return the output as SVG, without the web fonts that Rich references."""
    svg = console.export_svg(title="seriatim demo", unique_id="seriatim-demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def _print_json(stage: DemoReport, seconds: float) -> None:
    write_json(
        {
            "ok": stage.passed,
            "seconds": round(seconds, 3),
            "url": redact_url(stage.url),
            "claims": [{"claim": claim, "held": held} for claim, held in stage.checks],
        }
    )
