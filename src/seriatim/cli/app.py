"""The Typer application of the program `seriatim`, with all commands in the order of its help."""

from __future__ import annotations

import io
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

import seriatim
from seriatim.cli import (
    archive,
    exit_codes,
    lake,
    project,
    registry,
    subscriptions,
    tokens,
    trace,
)
from seriatim.cli.append import append, receipt
from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.console import console
from seriatim.cli.maintenance import audit, doctor, init, verify
from seriatim.cli.operations import operations
from seriatim.cli.output import Terminal, write_json
from seriatim.cli.publish import publish, reconcile
from seriatim.cli.read import query, read, streams, tail, types
from seriatim.cli.serve import serve
from seriatim.cli.transfer import export, import_
from seriatim.cli.work import work
from seriatim.factory import redact_url

if TYPE_CHECKING:
    from seriatim.examples.demo_report import DemoReport


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
    from seriatim.examples.demo import run_demo, summarize_demo

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
    from seriatim.examples.demo_report import WIDTH

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
            "claims": [{"claim": claim, "held": passed} for claim, passed in report.checks],
        }
    )


app = typer.Typer(
    name="seriatim",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_COMMANDS: dict[str, Callable[..., None]] = {
    "init": init,
    "append": append,
    "explain": append,
    "receipt": receipt,
    "read": read,
    "tail": tail,
    "streams": streams,
    "types": types,
    "operations": operations,
    "query": query,
    "import": import_,
    "export": export,
    "verify": verify,
    "doctor": doctor,
    "audit": audit,
    "publish": publish,
    "reconcile": reconcile,
    "work": work,
    "serve": serve,
    "console": console,
    "demo": demo,
}
_HELP = {"explain": "Report what append would do with these options now, and why."}
for name, function in _COMMANDS.items():
    app.command(name, help=_HELP.get(name), epilog=exit_codes.format_exit_codes())(function)

app.add_typer(trace.app, name="trace")
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(project.app, name="project")
app.add_typer(registry.app, name="registry")
app.add_typer(registry.dlq_app, name="dlq")
app.add_typer(archive.app, name="archive")
app.add_typer(lake.app, name="lake")
app.add_typer(tokens.app, name="token")
app.add_typer(tokens.quota_app, name="quota")


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"seriatim {seriatim.__version__}")
        raise typer.Exit


@app.callback(epilog=exit_codes.format_exit_codes())
def set_common_options(
    ctx: typer.Context,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Seriatim: an ordered, idempotent, replayable event log on Postgres or SQLite."""
    ctx.obj = CommonOptions(url, tenant, as_json)
