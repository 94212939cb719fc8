"""The command `seriatim subscriptions`: list durable subscriptions with owner, lag and errors."""

from __future__ import annotations

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
from seriatim.cli.output import escape_unprintable, make_table, write_json
from seriatim.store.port import SubscriptionStatus


def subscriptions(
    ctx: typer.Context, url: LogUrl = None, tenant: TenantOption = None, as_json: JsonOutput = False
) -> None:
    """List durable subscriptions with owner, cursor, lag and last error."""
    with (
        command_session(ctx, CommonOptions(url, tenant, as_json)) as command,
        command.open() as log,
    ):
        found = log.subscriptions()
        if command.as_json:
            for status in found:
                write_json(msgspec.structs.asdict(status))
        else:
            _print_subscriptions(command, found)


def _print_subscriptions(command: CommandSession, found: list[SubscriptionStatus]) -> None:
    if not found:
        command.notice("no subscriptions")
        return
    columns = ("name", "owner", "position", "lag", "seconds", "failures", "failed at", "error")
    right = ("position", "lag", "seconds", "failures")
    rows = make_table(*columns, right=right)
    for status in found:
        rows.add_row(
            escape_unprintable(status.name),
            escape_unprintable(status.owner or "–"),
            f"{status.position:,}",
            f"{status.lag_events:,}",
            f"{status.lag_seconds:,.1f}",
            str(status.failures),
            (status.last_error_at or "–")[:19],
            escape_unprintable(status.last_error or "–"),
        )
    command.stdout.print(rows)
