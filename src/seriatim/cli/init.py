"""`seriatim init`: make or migrate a log, and say which one it is."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from seriatim.cli.output import pairs, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session, shown_url
from seriatim.log.arguments import bad


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
    with session(ctx, Common(url, tenant, as_json)) as one:
        if app_role is not None:
            _check_postgres(one.url)
        with one.open(create=True) as log:
            if app_role is not None:
                _grant(one.url, app_role)
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


def _check_postgres(url: str) -> None:
    if not url.startswith(("postgresql:", "postgres:")):
        raise bad("--app-role", "is for a Postgres log: no other has roles")


def _grant(url: str, role: str) -> None:
    from seriatim.store.postgres.migrate import grant  # noqa: PLC0415 - an extra

    grant(url, role)
