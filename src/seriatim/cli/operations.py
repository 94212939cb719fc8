"""The command `seriatim operations`, and helpers of all commands for operators."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated, Any

import msgspec
import typer

from seriatim.cli import exit_codes
from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.output import escape_unprintable, make_table, write_json
from seriatim.client.store import HttpStore
from seriatim.core.errors import SeriatimError
from seriatim.core.operation import ActionName, Operation, OperatorAction
from seriatim.core.tenants import ALL_TENANTS
from seriatim.factory import Log, open_log
from seriatim.log.arguments import invalid_argument
from seriatim.log.operator_journal import (
    JOURNAL_PAGE_MAX,
    local_operator,
    read_journal,
    record_action,
)
from seriatim.wire.messages import OperationsResponse

ActionReason = Annotated[
    str,
    typer.Option("--reason", help="The reason, which is recorded in the operators' journal."),
]
Confirmed = Annotated[
    bool, typer.Option("--yes", help="Act on several entries without asking for confirmation.")
]


def operations(
    ctx: typer.Context,
    limit: Annotated[
        int,
        typer.Option("--limit", min=1, max=JOURNAL_PAGE_MAX, help="The maximum number of entries."),
    ] = 100,
    before: Annotated[
        int | None,
        typer.Option(
            "--before", min=1, help="Only entries before this position.", show_default=False
        ),
    ] = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """List the actions of operators, newest first, with actor, target, reason and time."""
    with (
        command_session(ctx, CommonOptions(url, tenant, as_json)) as command,
        closing(open_log(command.url, create=False)) as log,
    ):
        entries = _read(log, command.tenant, before, limit)
        if command.as_json:
            for entry in entries:
                write_json(entry)
            return
        if not entries:
            command.notice("no actions")
            return
        listing = make_table(
            "position",
            "time",
            "actor",
            "action",
            "tenant",
            "target",
            "count",
            "reason",
            right=("position", "count"),
        )
        for entry in entries:
            listing.add_row(
                f"{entry.position:,}",
                entry.recorded_at[:19],
                escape_unprintable(entry.actor_id),
                escape_unprintable(entry.action),
                escape_unprintable(entry.tenant_id),
                escape_unprintable(_format_target(entry.target)),
                f"{entry.count:,}",
                escape_unprintable(entry.reason),
            )
        command.stdout.print(listing)


def _read(log: Log, tenant_id: str | None, before: int | None, limit: int) -> list[Operation]:
    if not isinstance(log.store, HttpStore):
        return read_journal(log, tenant_id=tenant_id, before=before, limit=limit)
    params = {"tenant_id": tenant_id, "before": before, "limit": limit}
    raw = log.store.http.get("/v1/operations", params, tenant_id=log.tenant_id)
    entries: list[Operation] = log.store.decode(raw, OperationsResponse).operations
    return entries


def _format_target(target: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value if isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for name, value in target.items()
    )


def record_command(
    command: CommandSession,
    action: ActionName,
    target: dict[str, Any],
    *,
    count: int = 1,
    reason: str = "",
    tenant_id: str | None = None,
) -> bool:
    """Record an action that a command has performed on a database in the journal of the log.

    Without a tenant, the action affects all of them. If it cannot be recorded, a warning is
    printed: the action itself has succeeded.

    Returns:
        Whether it was recorded.

    """
    entry = OperatorAction(
        action=action,
        operator=local_operator("cli"),
        tenant_id=ALL_TENANTS if tenant_id is None else tenant_id,
        target={name: value for name, value in target.items() if value is not None},
        count=count,
        reason=reason,
    )
    try:
        with closing(open_log(command.url, create=False)) as log:
            recorded = record_action(log, entry)
    except SeriatimError:  # such as a token that is created before the log
        recorded = False
    if not recorded:
        warn_unrecorded(command)
    return recorded


def warn_unrecorded(command: CommandSession) -> None:
    """Print a warning that an action is missing from the journal."""
    command.notice("warning: done, but not recorded in the operators' journal of the log")


def mark_unrecorded(result: dict[str, Any], recorded: bool) -> dict[str, Any]:
    """Return the JSON result of an action, with a mark if it was not recorded."""
    return result if recorded else {**result, "recorded": False}


def confirm_count(command: CommandSession, question: str, count: int, *, confirmed: bool) -> None:
    """Ask before an action on several entries, unless `--yes` was given.

    Args:
        command: The session of the command.
        question: What is about to happen, with the count.
        count: The number of affected entries; 0 needs no question.
        confirmed: Whether `--yes` was given.

    Raises:
        InvalidArgument: The input is not a terminal, so no one can confirm.
        typer.Exit: The answer is no.

    """
    if confirmed or not count:
        return
    if command.as_json or not sys.stdin.isatty():
        raise invalid_argument("yes", f"is required to {question} without being asked")
    if not typer.confirm(f"{question}?", err=True):
        command.notice("nothing was changed")
        raise typer.Exit(exit_codes.FOUND_PROBLEMS)
