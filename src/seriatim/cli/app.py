"""The Typer application of the program `seriatim`, with all commands in the order of its help."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

import seriatim
from seriatim.cli import archive, exit_codes, lake, project, registry, tokens
from seriatim.cli.append import append
from seriatim.cli.audit import audit
from seriatim.cli.command_session import CommonOptions, JsonOutput, LogUrl, TenantOption
from seriatim.cli.demo import demo
from seriatim.cli.doctor import doctor
from seriatim.cli.export import export
from seriatim.cli.import_ import import_
from seriatim.cli.init import init
from seriatim.cli.publish import publish, reconcile
from seriatim.cli.query import query
from seriatim.cli.read import read
from seriatim.cli.serve import serve
from seriatim.cli.streams import streams
from seriatim.cli.subscriptions import subscriptions
from seriatim.cli.tail import tail
from seriatim.cli.verify import verify
from seriatim.cli.work import work

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
    "read": read,
    "tail": tail,
    "streams": streams,
    "subscriptions": subscriptions,
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
    "demo": demo,
}
for name, function in _COMMANDS.items():
    app.command(name, epilog=exit_codes.format_exit_codes())(function)

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
