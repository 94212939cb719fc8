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

from seriatim.cli import exits
from seriatim.cli.output import Terminal, write_json
from seriatim.cli.scenes import (
    control,
    decision,
    live,
    pipeline,
    proof,
    race,
    retry,
    seats,
    secret,
    speed,
)
from seriatim.cli.scenes.stage import WIDTH, Stage
from seriatim.cli.session import AsJson, Common, Session, Url, session
from seriatim.log.arguments import bad
from seriatim.opening import open_log, shown_url

# Each step is a module with a function that prints its results and checks its claims.
_STEPS = (decision, seats, control, race, retry, secret, live, speed, proof, pipeline)


def demo(
    ctx: typer.Context,
    url: Url = None,
    as_json: AsJson = False,
    svg: Annotated[Path | None, typer.Option(hidden=True, help="Save the output as SVG.")] = None,
) -> None:
    """Demonstrate Seriatim: profiles, races, retries, refused secrets, a live tail, read models.

    The demo runs on a new SQLite log in a temporary folder, which is kept, unless --url names
    another log, which must be empty. Read models need Spark.
    """
    with session(ctx, Common(url, None, as_json)) as command:
        log_url = command.given_url or _make_log_url()
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
        if not stage.ok:
            raise typer.Exit(exits.FOUND_PROBLEMS)


def _make_log_url() -> str:
    folder = tempfile.mkdtemp(prefix="seriatim-demo-")
    return f"sqlite:///{folder}/demo.db"


def _make_console(command: Session) -> Console:
    file = io.StringIO() if command.as_json else None
    width = min(WIDTH, command.out.width) if command.out.is_terminal else WIDTH
    return Terminal(highlight=False, record=True, width=width, file=file)


def _run_steps(console: Console, log_url: str) -> Stage:
    with open_log(log_url) as log:
        if log.head():
            raise bad("--url", "must name an empty log, because the demo writes to it")
        identity = log.identity()
        title = Text.assemble(
            ("seriatim", "bold cyan"),
            ": an ordered, idempotent, replayable event log\n",
            (f"log {identity.log_id}, epoch {identity.epoch}\n{shown_url(log_url)}", "dim"),
        )
        console.print(Panel(title, border_style="cyan"))
        stage = Stage(console, log, log_url)
        for step in _STEPS:
            step.play(stage)
    return stage


def _summarize(stage: Stage, seconds: float) -> Panel:
    held = sum(held for _, held in stage.claims)
    count = len(stage.claims)
    style = "green" if stage.ok else "red"
    text = Text.assemble(
        (f"{held} of {count} claims held", f"bold {style}"),
        f" in {seconds:.0f} s. The log is kept. To inspect it:\n",
        (f"seriatim streams --url {shown_url(stage.url)}", "cyan"),
    )
    return Panel(text, border_style=style)


def _export_svg(console: Console) -> str:
    """Return the output as SVG, without the web fonts that Rich references."""
    svg = console.export_svg(title="seriatim demo", unique_id="seriatim-demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def _print_json(stage: Stage, seconds: float) -> None:
    write_json(
        {
            "ok": stage.ok,
            "seconds": round(seconds, 3),
            "url": shown_url(stage.url),
            "claims": [{"claim": claim, "held": held} for claim, held in stage.claims],
        }
    )
