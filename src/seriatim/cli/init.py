"""The command `seriatim init`: create or migrate a log and print its identity."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.output import format_pairs, write_json
from seriatim.factory import redact_url
from seriatim.log.arguments import invalid_argument


def init(
    ctx: typer.Context,
    app_role: Annotated[
        str | None,
        typer.Option(
            help="Postgres: grant this role the privileges that an application needs, and no more."
        ),
    ] = None,
    raise_epoch: Annotated[
        bool,
        typer.Option(
            "--raise-epoch",
            help="After a restore: raise the epoch, so that consumers detect the change and stop.",
        ),
    ] = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Create the log, or upgrade its schema; safe to repeat."""
    with command_session(ctx, CommonOptions(url, tenant, as_json), whole_log=True) as command:
        if _is_postgres(command.url):
            _prepare_postgres(command.url, app_role)
        elif app_role is not None:
            raise invalid_argument("--app-role", "applies only to a Postgres log")
        with command.open(create=True) as log:
            identity = log.store.raise_epoch() if raise_epoch else log.identity()
            summary = {
                "url": redact_url(command.url),
                "backend": log.store.name,
                **msgspec.structs.asdict(identity),
                "head": log.head(),
            }
        _print_summary(command, summary)


def _print_summary(command: CommandSession, summary: dict[str, object]) -> None:
    if command.as_json:
        write_json(summary)
    else:
        command.stdout.print(format_pairs(summary))


def _is_postgres(url: str) -> bool:
    return url.startswith(("postgresql:", "postgres:"))


def _prepare_postgres(url: str, app_role: str | None) -> None:
    """Migrate the schema and grant privileges, which only the owner of the log may do."""
    from seriatim.store.postgres import migrate

    migrate.migrate(url)
    if app_role is not None:
        migrate.grant(url, app_role)
