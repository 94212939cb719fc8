"""The command `seriatim receipt`: find a stored append by its idempotency key or its command."""

from __future__ import annotations

from typing import Annotated

import typer

from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.output import EventLines, write_json
from seriatim.core.errors import NotFound
from seriatim.core.event import AppendResult
from seriatim.log.arguments import invalid_argument

_Text = str | None


def receipt(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The idempotency key.")],
    producer_id: Annotated[
        _Text, typer.Option("--producer", help="The producer of the events.", show_default=False)
    ] = None,
    actor: Annotated[
        _Text, typer.Option(help="For a command: the actor that sent it.", show_default=False)
    ] = None,
    endpoint: Annotated[
        _Text,
        typer.Option(
            help="For a command: its endpoint, such as 'POST /v1/events'.", show_default=False
        ),
    ] = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Print the receipt of the append stored under a key, with its response and its events."""
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        if (actor is None) != (endpoint is None):
            raise invalid_argument("--actor", "and --endpoint must be given together")
        if actor is not None and producer_id is not None:
            raise invalid_argument("--producer", "cannot be combined with --actor")
        with command.open() as log:
            if actor is not None and endpoint is not None:
                found = log.find_command(actor=actor, endpoint=endpoint, key=key)
            else:
                found = log.find_append(key, producer_id=producer_id)
        if found is None:
            raise NotFound("no append is stored under that key")
        _print_receipt(command, found)


def _print_receipt(command: CommandSession, found: AppendResult) -> None:
    first = found.records[0]
    if command.as_json:
        write_json(
            {
                "first_position": found.first_position,
                "last_position": found.last_position,
                "recorded_at": first.recorded_at,
                "actor_type": first.actor_type,
                "actor_id": first.actor_id,
                "response": found.response,
                "records": [record.as_dict() for record in found.records],
            }
        )
        return
    lines = EventLines(command.stdout)
    for record in found.records:
        lines.print_event(record)
    positions = f"{found.first_position} to {found.last_position}"
    command.stdout.print(f"stored at positions {positions}, {first.recorded_at}")
    if found.response is not None:
        write_json(found.response)
