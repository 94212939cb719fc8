"""The commands `seriatim subscriptions`: list and show them, retry, skip and reset."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from seriatim.cli import exit_codes
from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
    merge_options,
)
from seriatim.cli.operations import (
    ActionReason,
    confirm_count,
    mark_unrecorded,
    warn_unrecorded,
)
from seriatim.cli.output import escape_unprintable, format_pairs, make_table, write_json
from seriatim.core.errors import Conflict
from seriatim.core.operation import Operator
from seriatim.factory import is_service
from seriatim.log.operator_journal import local_operator
from seriatim.log.subscriptions import Subscriptions
from seriatim.store.port import BatchAttempt, SkippedBatch, SubscriptionStatus

app = typer.Typer(
    invoke_without_command=True,
    help="Durable subscriptions: list and show them, retry, skip and reset.",
)

SubscriptionName = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of the subscription.")
]
ActionConfirmed = Annotated[bool, typer.Option("--yes", help="Act without asking.")]


@contextmanager
def _open_subscriptions(
    ctx: typer.Context, common: CommonOptions
) -> Iterator[tuple[CommandSession, Subscriptions]]:
    with command_session(ctx, common) as command, command.open() as log:
        yield command, log.subscriptions


@app.callback()
def set_group_options(
    ctx: typer.Context, url: LogUrl = None, tenant: TenantOption = None, as_json: JsonOutput = False
) -> None:
    """Durable subscriptions: list and show them, retry, skip and reset."""
    common = CommonOptions(url, tenant, as_json)
    if ctx.invoked_subcommand is None:
        _print_list(ctx, common)
    else:
        ctx.obj = merge_options(ctx, common)


@app.command("list", epilog=exit_codes.format_exit_codes())
def list_subscriptions(
    ctx: typer.Context, url: LogUrl = None, tenant: TenantOption = None, as_json: JsonOutput = False
) -> None:
    """List durable subscriptions with status, owner, cursor, lag, attempts and last error."""
    _print_list(ctx, CommonOptions(url, tenant, as_json))


def _print_list(ctx: typer.Context, common: CommonOptions) -> None:
    with _open_subscriptions(ctx, common) as (command, subscriptions):
        statuses = subscriptions()
        if command.as_json:
            for status in statuses:
                write_json(msgspec.structs.asdict(status))
        elif statuses:
            _print_statuses(command, statuses)
        else:
            command.notice("no subscriptions")


def _print_statuses(command: CommandSession, statuses: list[SubscriptionStatus]) -> None:
    right = ("position", "lag", "seconds", "attempts", "skipped")
    rows = make_table(
        "name",
        "status",
        "owner",
        "position",
        "lag",
        "seconds",
        "attempts",
        "skipped",
        "failed at",
        "error",
        right=right,
    )
    for status in statuses:
        rows.add_row(
            escape_unprintable(status.name),
            status.status,
            escape_unprintable(status.owner or "–"),
            f"{status.position:,}",
            f"{status.lag_events:,}",
            f"{status.lag_seconds:,.1f}",
            str(status.attempts or status.failures),
            f"{status.skipped:,}",
            (status.last_error_at or "–")[:19],
            escape_unprintable(status.last_error or "–"),
        )
    command.stdout.print(rows)


@app.command("show", epilog=exit_codes.format_exit_codes())
def show(
    ctx: typer.Context,
    name: SubscriptionName,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Show one subscription, the batch that it fails at, and the batches that were skipped."""
    with _open_subscriptions(ctx, CommonOptions(url, tenant, as_json)) as (command, subscriptions):
        status, skipped = subscriptions.get(name), subscriptions.skipped(name)
        if command.as_json:
            write_json({**msgspec.structs.asdict(status), "skipped_batches": skipped})
            return
        command.stdout.print(format_pairs(_describe_status(status)))
        if skipped:
            command.stdout.print(_make_skipped_table(skipped))


def _describe_status(status: SubscriptionStatus) -> dict[str, object]:
    fields: dict[str, object] = {
        "name": escape_unprintable(status.name),
        "status": status.status,
        "owner": escape_unprintable(status.owner or "–"),
        "position": f"{status.position:,}",
        "lag": f"{status.lag_events:,} events, {status.lag_seconds:,.1f} s",
        "attempts": str(status.attempts or status.failures),
    }
    if status.attempt is not None:
        fields["batch"] = _describe_batch(status.attempt)
        if status.attempt.parked_at is not None:
            fields["parked at"] = status.attempt.parked_at[:19]
    if status.last_error is not None:
        fields["last error"] = escape_unprintable(status.last_error)
        fields["failed at"] = (status.last_error_at or "–")[:19]
    fields["query"] = escape_unprintable(status.query)
    return fields


def _describe_batch(batch: BatchAttempt) -> str:
    if batch.first_position == batch.last_position:
        return f"position {batch.first_position}"
    return f"positions {batch.first_position} to {batch.last_position}"


def _make_skipped_table(skipped: list[SkippedBatch]) -> Any:
    rows = make_table(
        "first",
        "last",
        "attempts",
        "skipped at",
        "by",
        "reason",
        "error",
        right=("first", "last", "attempts"),
    )
    for batch in skipped:
        rows.add_row(
            f"{batch.first_position:,}",
            f"{batch.last_position:,}",
            str(batch.attempts),
            batch.skipped_at[:19],
            escape_unprintable(batch.skipped_by or "policy"),
            escape_unprintable(batch.reason or "–"),
            escape_unprintable(batch.error),
        )
    return rows


@app.command("retry", epilog=exit_codes.format_exit_codes())
def retry(
    ctx: typer.Context,
    name: SubscriptionName,
    reason: ActionReason = "",
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Let a parked subscription attempt its batch again, with as many attempts as before."""
    with _open_subscriptions(ctx, CommonOptions(url, tenant, as_json)) as (command, subscriptions):
        recorded = subscriptions.retry(name, reason=reason, operator=_operator(command))
        _print_result(command, name, "attempts its batch again", recorded)


@app.command("skip", epilog=exit_codes.format_exit_codes())
def skip(
    ctx: typer.Context,
    name: SubscriptionName,
    position: Annotated[
        int | None,
        typer.Argument(
            metavar="[POSITION]",
            help="The first position of the failing batch. [default: as stored, after a question]",
            show_default=False,
        ),
    ] = None,
    reason: ActionReason = "",
    yes: ActionConfirmed = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Move the cursor of a subscription past its failing batch, which is recorded as skipped."""
    with _open_subscriptions(ctx, CommonOptions(url, tenant, as_json)) as (command, subscriptions):
        first = position
        if first is None:
            attempt = subscriptions.get(name).attempt
            if attempt is None:
                raise Conflict(f"no batch of subscription {name!r:.80} has failed")
            first = attempt.first_position
            question = f"skip {_describe_batch(attempt)} of {name}"
            confirm_count(command, question, 1, confirmed=yes)
        operator = _operator(command)
        recorded = subscriptions.skip(name, first, reason=reason, operator=operator)
        _print_result(command, name, f"skipped the batch at position {first}", recorded)


@app.command("reset", epilog=exit_codes.format_exit_codes())
def reset(
    ctx: typer.Context,
    name: SubscriptionName,
    position: Annotated[
        int,
        typer.Option(
            "--position", min=0, help="The position after which it continues; 0 is the beginning."
        ),
    ],
    reason: ActionReason = "",
    yes: ActionConfirmed = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Set the cursor of a subscription to any position, also after a restore."""
    with _open_subscriptions(ctx, CommonOptions(url, tenant, as_json)) as (command, subscriptions):
        before = subscriptions.get(name).position
        confirm_count(command, f"reset {name} from {before} to {position}", 1, confirmed=yes)
        recorded = subscriptions.reset(name, position, reason=reason, operator=_operator(command))
        _print_result(command, name, f"continues after position {position}", recorded)


def _operator(command: CommandSession) -> Operator | None:
    """Return the user of this process; for a service None, which knows the token's subject."""
    return None if is_service(command.url) else local_operator("cli")


def _print_result(command: CommandSession, name: str, result: str, recorded: bool) -> None:
    if not recorded:
        warn_unrecorded(command)
    if command.as_json:
        write_json(mark_unrecorded({"subscription": name, "done": result}, recorded))
    else:
        command.stdout.print(Text(escape_unprintable(f"{name}: {result}")))
