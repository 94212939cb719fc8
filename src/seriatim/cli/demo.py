"""`seriatim demo`: what the log does, shown on a log of its own in half a minute."""

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

_SCENES = (decision, seats, control, race, retry, secret, live, speed, proof, pipeline)


def demo(
    ctx: typer.Context,
    url: Url = None,
    as_json: AsJson = False,
    svg: Annotated[Path | None, typer.Option(hidden=True, help="Save the screen.")] = None,
) -> None:
    """Show the value: three profiles, a race, a retry, a refused secret, a tail, a verify, Spark.

    It plays on a new SQLite log in a folder of its own, which is kept, unless --url names an
    empty log.
    """
    with session(ctx, Common(url, None, as_json)) as one:
        address = one.given_url or _new_log()
        console = _console(one)
        started = time.perf_counter()
        stage = _played(console, address)
        seconds = time.perf_counter() - started
        console.print()
        console.print(_ending(stage, seconds))
        if svg is not None:
            svg.write_text(_picture(console), encoding="utf-8")
        if one.as_json:
            _show_json(stage, seconds)
        if not stage.ok:
            raise typer.Exit(exits.FOUND_PROBLEMS)


def _new_log() -> str:
    folder = tempfile.mkdtemp(prefix="seriatim-demo-")
    return f"sqlite:///{folder}/demo.db"


def _console(one: Session) -> Console:
    file = io.StringIO() if one.as_json else None
    width = min(WIDTH, one.out.width) if one.out.is_terminal else WIDTH
    return Terminal(highlight=False, record=True, width=width, file=file)


def _played(console: Console, address: str) -> Stage:
    with open_log(address) as log:
        if log.head():
            raise bad("--url", "must name an empty log: the demo plays on no other")
        identity = log.identity()
        title = Text.assemble(
            ("seriatim", "bold cyan"),
            ": one ordered, idempotent, replayable event log\n",
            (f"log {identity.log_id}, epoch {identity.epoch}\n{shown_url(address)}", "dim"),
        )
        console.print(Panel(title, border_style="cyan"))
        stage = Stage(console, log, address)
        for scene in _SCENES:
            scene.play(stage)
    return stage


def _ending(stage: Stage, seconds: float) -> Panel:
    held = sum(held for _, held in stage.claims)
    count = len(stage.claims)
    style = "green" if stage.ok else "red"
    text = Text.assemble(
        (f"{held} of {count} claims held", f"bold {style}"),
        f", in {seconds:.0f} s. The log is kept; look into it:\n",
        (f"seriatim streams --url {shown_url(stage.url)}", "cyan"),
    )
    return Panel(text, border_style=style)


def _picture(console: Console) -> str:
    """Return what was printed as SVG that fetches nothing from anywhere."""
    svg = console.export_svg(title="seriatim demo", unique_id="seriatim-demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def _show_json(stage: Stage, seconds: float) -> None:
    write_json(
        {
            "ok": stage.ok,
            "seconds": round(seconds, 3),
            "url": shown_url(stage.url),
            "claims": [{"claim": claim, "held": held} for claim, held in stage.claims],
        }
    )
