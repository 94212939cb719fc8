"""`seriatim token` and `seriatim quota`: who may call the service, and how much."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import msgspec
import typer

from seriatim.access.quotas import Quota
from seriatim.access.rights import RIGHTS
from seriatim.access.store import Access
from seriatim.cli import exits
from seriatim.cli.output import plain, table, write_json
from seriatim.cli.session import AccessAt, AsJson, Common, Session, Tenant, Url, session
from seriatim.core.errors import NotFound
from seriatim.core.event import DEFAULT_TENANT
from seriatim.core.tenants import EVERY_TENANT
from seriatim.log.arguments import bad
from seriatim.opening import access_url, open_access

app = typer.Typer(no_args_is_help=True, help="Tokens: who may call the service.")
quota = typer.Typer(no_args_is_help=True, help="Quotas: how much a tenant may append.")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

Service = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="NAME",
        help="The service that calls; it is named as the actor of its events. Without one it is "
        "a tenant's own token, which only reads.",
        show_default=False,
    ),
]
AllTenants = Annotated[bool, typer.Option("--all-tenants", help="For every tenant of the log.")]
Rights = Annotated[
    str, typer.Option("--rights", help=f"Of {', '.join(RIGHTS)}, separated by commas.")
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="Only events of this type; for appends also a pattern such as order.*",
        show_default=False,
    ),
]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="TIME", help="After 90d, 12h, 30m.", show_default=False),
]
Note = Annotated[str, typer.Option("--note", help="What it is for, for those who list them.")]


@contextmanager
def _opened(
    ctx: typer.Context, common: Common, at: str | None, *, create: bool = True
) -> Iterator[tuple[Session, Access]]:
    with session(ctx, common) as one:
        place = at or access_url(one.url)
        with closing(open_access(place, create=create)) as access:
            yield one, access


@app.command("create", epilog=exits.as_help())
def create(  # noqa: PLR0913 - what a token says
    ctx: typer.Context,
    service: Service = None,
    all_tenants: AllTenants = False,
    rights: Rights = "read",
    types: Types = None,
    expires: Expires = None,
    note: Note = "",
    at: AccessAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and show it, this once: only a hash of it is kept."""
    with _opened(ctx, Common(url, tenant, as_json), at) as (one, access):
        if all_tenants and one.tenant is not None:
            raise bad("tenant", "or --all-tenants, not both")
        whose = EVERY_TENANT if all_tenants else one.tenant or DEFAULT_TENANT
        text, made = access.create(
            subject=service,
            tenant_id=whose,
            rights=[right.strip() for right in rights.split(",") if right.strip()],
            types=types or (),
            lasts_s=None if expires is None else _seconds(expires),
            note=note,
        )
        if one.as_json:
            write_json({"token": text, **msgspec.to_builtins(made)})
            return
        one.notice(f"token {made.token_id}: it is shown only now")
        one.out.print(text, soft_wrap=True)


def _seconds(text: str) -> float:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isascii() or not number.isdigit() or not int(number):
        raise bad("expires", "is a number and d, h, m or s, such as 90d")
    return float(int(number) * _UNITS[unit])


@app.command("list", epilog=exits.as_help())
def list_(
    ctx: typer.Context,
    at: AccessAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List all tokens, without their secrets."""
    with _opened(ctx, Common(url, tenant, as_json), at, create=False) as (one, access):
        found = [made for made in access.tokens() if one.tenant in (None, made.tenant_id)]
        if one.as_json:
            for made in found:
                write_json(made)
            return
        shown = table("id", "of", "tenant", "rights", "types", "expires", "revoked", "used", "note")
        for made in found:
            shown.add_row(
                made.token_id,
                plain(made.subject) if made.service else "the tenant",
                plain(made.tenant_id),
                ", ".join(made.rights),
                plain(", ".join(made.types or ["all"])),
                (made.expires_at or "never")[:19],
                (made.revoked_at or "–")[:19],
                (made.last_used_at or "never")[:19],
                plain(made.note),
            )
        one.out.print(shown)


@app.command("revoke", epilog=exits.as_help())
def revoke(  # noqa: PLR0913 - which one, and where
    ctx: typer.Context,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as listed.")],
    at: AccessAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """End a token: within two seconds no service takes it any more."""
    with _opened(ctx, Common(url, tenant, as_json), at, create=False) as (one, access):
        access.revoke(token_id)
        if one.as_json:
            write_json({"revoked": token_id})
        else:
            one.out.print(f"revoked: {token_id}", markup=False)


@quota.command("set", epilog=exits.as_help())
def set_quota(  # noqa: PLR0913 - whose, and how much
    ctx: typer.Context,
    events: Annotated[float, typer.Option("--events-per-second", min=0, help="0: no bound.")] = 0.0,
    bytes_: Annotated[float, typer.Option("--bytes-per-second", min=0, help="0: no bound.")] = 0.0,
    at: AccessAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Set how much a tenant may append; services learn it within two seconds."""
    with _opened(ctx, Common(url, tenant, as_json), at) as (one, access):
        wanted = Quota(
            tenant_id=one.tenant or DEFAULT_TENANT, events_per_s=events, bytes_per_s=bytes_
        )
        access.set_quota(wanted)
        if one.as_json:
            write_json(wanted)
        else:
            one.out.print(f"{plain(wanted.tenant_id)}: {_said(wanted)}", markup=False)


@quota.command("list", epilog=exits.as_help())
def list_quotas(
    ctx: typer.Context,
    at: AccessAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List the tenants that have a quota of their own."""
    with _opened(ctx, Common(url, tenant, as_json), at, create=False) as (one, access):
        found = [known for known in access.quotas() if one.tenant in (None, known.tenant_id)]
        if one.as_json:
            for known in found:
                write_json(known)
            return
        shown = table("tenant", "quota")
        for known in found:
            shown.add_row(plain(known.tenant_id), _said(known))
        one.out.print(shown)


@quota.command("remove", epilog=exits.as_help())
def remove_quota(
    ctx: typer.Context,
    at: AccessAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Let the service's general quota hold for a tenant again."""
    with _opened(ctx, Common(url, tenant, as_json), at, create=False) as (one, access):
        whose = one.tenant or DEFAULT_TENANT
        if not access.remove_quota(whose):
            raise NotFound("this tenant has no quota of its own", details={"tenant_id": whose})
        if one.as_json:
            write_json({"removed": whose})
        else:
            one.out.print(f"removed: {plain(whose)}", markup=False)


def _said(known: Quota) -> str:
    parts = [
        f"{bound:,g} {what} a second"
        for what, bound in (("events", known.events_per_s), ("bytes", known.bytes_per_s))
        if bound
    ]
    return ", ".join(parts) or "no bound"
