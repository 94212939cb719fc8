"""The commands `seriatim token` and `seriatim quota`: manage access to the service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import msgspec
import typer

from seriatim.access.quotas import Quota
from seriatim.access.rights import RIGHTS
from seriatim.access.store import AccessStore
from seriatim.access.tokens import describe_token
from seriatim.cli import exit_codes
from seriatim.cli.command_session import (
    AccessUrl,
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.operations import ActionReason, mark_unrecorded, record_command
from seriatim.cli.output import escape_unprintable, make_table, write_json
from seriatim.core.errors import NotFound
from seriatim.core.event import DEFAULT_TENANT
from seriatim.core.tenants import ALL_TENANTS
from seriatim.factory import access_url, open_access
from seriatim.log.arguments import invalid_argument
from seriatim.log.operator_journal import check_reason

app = typer.Typer(no_args_is_help=True, help="Tokens that give access to the service.")
quota_app = typer.Typer(
    no_args_is_help=True, help="Quotas that limit how much a tenant may append."
)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

ServiceName = Annotated[
    str | None,
    typer.Option(
        "--service",
        metavar="NAME",
        help="The name of the calling service, which becomes the actor of its events. Without it, "
        "the token belongs to the tenant and can only read.",
        show_default=False,
    ),
]
AllTenants = Annotated[
    bool, typer.Option("--all-tenants", help="The token is for every tenant of the log.")
]
Rights = Annotated[
    str, typer.Option("--rights", help=f"The rights, separated by commas: {', '.join(RIGHTS)}.")
]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="Only events of this type; may be repeated. Tokens without the right to read also "
        "accept a pattern such as order.*",
        show_default=False,
    ),
]
ExpiresAfter = Annotated[
    str | None,
    typer.Option(
        "--expires",
        metavar="TIME",
        help="The time until the token expires, such as 90d, 12h, 30m or 45s. [default: never]",
        show_default=False,
    ),
]
Note = Annotated[
    str, typer.Option("--note", help="The purpose of the token, displayed by `token list`.")
]


@contextmanager
def _open_access(
    ctx: typer.Context, common: CommonOptions, at: str | None, *, create: bool = True
) -> Iterator[tuple[CommandSession, AccessStore]]:
    with command_session(ctx, common) as command:
        url = at or access_url(command.url)
        with closing(open_access(url, create=create)) as access:
            yield command, access


@app.command("create", epilog=exit_codes.format_exit_codes())
def create(
    ctx: typer.Context,
    service: ServiceName = None,
    all_tenants: AllTenants = False,
    rights: Rights = "read",
    types: Types = None,
    expires: ExpiresAfter = None,
    note: Note = "",
    reason: ActionReason = "",
    at: AccessUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Create a token and print it; it is displayed only once, since only its hash is stored."""
    with _open_access(ctx, CommonOptions(url, tenant, as_json), at) as (command, access):
        if all_tenants and command.tenant is not None:
            raise invalid_argument("tenant", "cannot be combined with --all-tenants")
        check_reason(reason)
        tenant_id = ALL_TENANTS if all_tenants else command.tenant or DEFAULT_TENANT
        text, token = access.create(
            subject=service,
            tenant_id=tenant_id,
            rights=[right.strip() for right in rights.split(",") if right.strip()],
            types=types or (),
            expires_in_s=None if expires is None else _parse_duration(expires),
            note=note,
        )
        recorded = record_command(
            command,
            "token_created",
            describe_token(token),
            reason=reason,
            tenant_id=tenant_id,
        )
        if command.as_json:
            write_json(mark_unrecorded({"token": text, **msgspec.to_builtins(token)}, recorded))
            return
        command.notice(f"token {token.token_id} is displayed only this once")
        command.stdout.print(text, soft_wrap=True)


def _parse_duration(text: str) -> float:
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isascii() or not number.isdigit() or not int(number):
        raise invalid_argument("expires", "must be a positive number and d, h, m or s, such as 90d")
    return float(int(number) * _UNITS[unit])


@app.command("list", epilog=exit_codes.format_exit_codes())
def list_(
    ctx: typer.Context,
    at: AccessUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """List all tokens without their secrets, including expired and revoked ones."""
    with _open_access(ctx, CommonOptions(url, tenant, as_json), at, create=False) as (
        command,
        access,
    ):
        matching = [token for token in access.tokens() if command.tenant in (None, token.tenant_id)]
        if command.as_json:
            for token in matching:
                write_json(token)
            return
        listing = make_table(
            "id", "owner", "tenant", "rights", "types", "expires", "revoked", "used", "note"
        )
        for token in matching:
            listing.add_row(
                token.token_id,
                escape_unprintable(token.subject) if token.service else "the tenant",
                escape_unprintable(token.tenant_id),
                ", ".join(token.rights),
                escape_unprintable(", ".join(token.types or ["all"])),
                (token.expires_at or "never")[:19],
                (token.revoked_at or "–")[:19],
                (token.last_used_at or "never")[:19],
                escape_unprintable(token.note),
            )
        command.stdout.print(listing)


@app.command("revoke", epilog=exit_codes.format_exit_codes())
def revoke(
    ctx: typer.Context,
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="The id of the token, as in `token list`.")
    ],
    reason: ActionReason = "",
    at: AccessUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Revoke a token; within two seconds no service accepts it."""
    with _open_access(ctx, CommonOptions(url, tenant, as_json), at, create=False) as (
        command,
        access,
    ):
        check_reason(reason)
        access.revoke(token_id)
        token = access.token(token_id)
        recorded = record_command(
            command,
            "token_revoked",
            describe_token(token),
            reason=reason,
            tenant_id=token.tenant_id,
        )
        if command.as_json:
            write_json(mark_unrecorded({"revoked": token_id}, recorded))
        else:
            command.stdout.print(f"revoked: {token_id}", markup=False)


@quota_app.command("set", epilog=exit_codes.format_exit_codes())
def set_quota(
    ctx: typer.Context,
    events: Annotated[
        float,
        typer.Option("--events-per-second", min=0, help="Events per second; 0 sets no limit."),
    ] = 0.0,
    bytes_: Annotated[
        float, typer.Option("--bytes-per-second", min=0, help="Bytes per second; 0 sets no limit.")
    ] = 0.0,
    reason: ActionReason = "",
    at: AccessUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Set how much a tenant may append; services apply it within two seconds."""
    with _open_access(ctx, CommonOptions(url, tenant, as_json), at) as (command, access):
        limits = Quota(
            tenant_id=command.tenant or DEFAULT_TENANT, events_per_s=events, bytes_per_s=bytes_
        )
        check_reason(reason)
        access.set_quota(limits)
        recorded = record_command(
            command,
            "quota_set",
            {"events_per_s": events, "bytes_per_s": bytes_},
            reason=reason,
            tenant_id=limits.tenant_id,
        )
        if command.as_json:
            write_json(mark_unrecorded(msgspec.structs.asdict(limits), recorded))
        else:
            command.stdout.print(
                f"{escape_unprintable(limits.tenant_id)}: {_format_quota(limits)}", markup=False
            )


@quota_app.command("list", epilog=exit_codes.format_exit_codes())
def list_quotas(
    ctx: typer.Context,
    at: AccessUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """List the tenants that have their own quota."""
    with _open_access(ctx, CommonOptions(url, tenant, as_json), at, create=False) as (
        command,
        access,
    ):
        quotas = [quota for quota in access.quotas() if command.tenant in (None, quota.tenant_id)]
        if command.as_json:
            for quota in quotas:
                write_json(quota)
            return
        listing = make_table("tenant", "quota")
        for quota in quotas:
            listing.add_row(escape_unprintable(quota.tenant_id), _format_quota(quota))
        command.stdout.print(listing)


@quota_app.command("remove", epilog=exit_codes.format_exit_codes())
def remove_quota(
    ctx: typer.Context,
    reason: ActionReason = "",
    at: AccessUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Remove the quota of a tenant, so that the general quota of the service applies again."""
    with _open_access(ctx, CommonOptions(url, tenant, as_json), at, create=False) as (
        command,
        access,
    ):
        check_reason(reason)
        tenant_id = command.tenant or DEFAULT_TENANT
        if not access.remove_quota(tenant_id):
            msg = f"the tenant {tenant_id!r:.80} has no quota of its own"
            raise NotFound(msg, details={"tenant_id": tenant_id})
        recorded = record_command(command, "quota_removed", {}, reason=reason, tenant_id=tenant_id)
        if command.as_json:
            write_json(mark_unrecorded({"removed": tenant_id}, recorded))
        else:
            command.stdout.print(f"removed: {escape_unprintable(tenant_id)}", markup=False)


def _format_quota(quota: Quota) -> str:
    parts = [
        f"{limit:,g} {unit} per second"
        for unit, limit in (("events", quota.events_per_s), ("bytes", quota.bytes_per_s))
        if limit
    ]
    return ", ".join(parts) or "no limit"
