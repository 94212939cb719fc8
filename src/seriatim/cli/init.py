"""`seriatim init`: make or migrate a log, and say which one it is."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from seriatim.cli.output import pairs, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.log.arguments import bad
from seriatim.opening import shown_url


def init(  # noqa: PLR0913 - two acts, and where
    ctx: typer.Context,
    app_role: Annotated[
        str | None,
        typer.Option(help="Postgres: grant this role what an application needs, and no more."),
    ] = None,
    raise_epoch: Annotated[
        bool,
        typer.Option(
            "--raise-epoch",
            help="After a restore: raise the epoch, so that consumers stop and look.",
        ),
    ] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Create the log, or bring its schema up to date; safe to repeat."""
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as one:
        if _is_postgres(one.url):
            _prepare_postgres(one.url, app_role)
        elif app_role is not None:
            raise bad("--app-role", "is for a Postgres log")
        with one.open(create=True) as log:
            identity = log.store.raise_epoch() if raise_epoch else log.identity()
            shown = {
                "url": shown_url(one.url),
                "backend": log.store.name,
                **msgspec.structs.asdict(identity),
                "head": log.head(),
            }
        _show(one, shown)


def _show(one: Session, shown: dict[str, object]) -> None:
    if one.as_json:
        write_json(shown)
    else:
        one.out.print(pairs(shown))


def _is_postgres(url: str) -> bool:
    return url.startswith(("postgresql:", "postgres:"))


def _prepare_postgres(url: str, app_role: str | None) -> None:
    """Do what only the log's owner may do: its schema and its grants."""
    from seriatim.store.postgres import migrate  # noqa: PLC0415 - an extra

    migrate.migrate(url)
    if app_role is not None:
        migrate.grant(url, app_role)
