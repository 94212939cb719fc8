"""The command `seriatim subscriptions`: list durable subscriptions with owner, lag and errors."""

from __future__ import annotations

import msgspec
import typer

from seriatim.cli.output import plain, table, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.store.port import SubscriptionStatus


def subscriptions(
    ctx: typer.Context, url: Url = None, tenant: Tenant = None, as_json: AsJson = False
) -> None:
    """List durable subscriptions with owner, cursor, lag and last error."""
    with session(ctx, Common(url, tenant, as_json)) as command, command.open() as log:
        found = log.subscriptions()
        if command.as_json:
            for status in found:
                write_json(msgspec.structs.asdict(status))
        else:
            _print_subscriptions(command, found)


def _print_subscriptions(command: Session, found: list[SubscriptionStatus]) -> None:
    if not found:
        command.notice("no subscriptions")
        return
    columns = ("name", "owner", "position", "lag", "seconds", "failures", "failed at", "error")
    right = ("position", "lag", "seconds", "failures")
    rows = table(*columns, right=right)
    for status in found:
        rows.add_row(
            plain(status.name),
            plain(status.owner or "–"),
            f"{status.position:,}",
            f"{status.lag_events:,}",
            f"{status.lag_seconds:,.1f}",
            str(status.failures),
            (status.last_error_at or "–")[:19],
            plain(status.last_error or "–"),
        )
    command.out.print(rows)
