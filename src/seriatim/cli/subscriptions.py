"""`seriatim subscriptions`: who runs each durable subscription, its lag, and what failed last."""

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
    with session(ctx, Common(url, tenant, as_json)) as one, one.open() as log:
        found = log.subscriptions()
        if one.as_json:
            for each in found:
                write_json(msgspec.structs.asdict(each))
        else:
            _show(one, found)


def _show(one: Session, found: list[SubscriptionStatus]) -> None:
    if not found:
        one.notice("no subscriptions")
        return
    columns = ("name", "owner", "position", "lag", "seconds", "failures", "failed at", "error")
    right = ("position", "lag", "seconds", "failures")
    shown = table(*columns, right=right)
    for each in found:
        shown.add_row(
            plain(each.name),
            plain(each.owner or "–"),
            f"{each.position:,}",
            f"{each.lag_events:,}",
            f"{each.lag_seconds:,.1f}",
            str(each.failures),
            (each.last_error_at or "–")[:19],
            plain(each.last_error or "–"),
        )
    one.out.print(shown)
