"""The command `seriatim streams`: list streams in the order of their first events."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.output import escape_unprintable, make_table, write_json
from seriatim.store.port import StreamSummary


def streams(
    ctx: typer.Context,
    stream_type: Annotated[
        str | None, typer.Option("--type", help="Only streams of this type.", show_default=False)
    ] = None,
    after: Annotated[
        int, typer.Option(help="Only streams whose first event is after this position.")
    ] = 0,
    limit: Annotated[int, typer.Option(help="The maximum number of streams.")] = 100,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """List streams with their last sequence number and event type."""
    with (
        command_session(ctx, CommonOptions(url, tenant, as_json)) as command,
        command.open() as log,
    ):
        found = log.streams(stream_type, after=after, limit=limit)
        if command.as_json:
            for summary in found:
                write_json(msgspec.structs.asdict(summary))
        else:
            _print_streams(command, found, limit)


def _print_streams(command: CommandSession, found: list[StreamSummary], limit: int) -> None:
    if not found:
        command.notice("no streams")
        return
    columns = ("type", "id", "last seq", "last event", "first", "last")
    rows = make_table(*columns, right=("last seq", "first", "last"))
    for stream in found:
        rows.add_row(
            Text(escape_unprintable(stream.stream_type), style="magenta"),
            Text(escape_unprintable(stream.stream_id)),
            str(stream.last_seq),
            Text(escape_unprintable(stream.last_type), style="green"),
            str(stream.first_position),
            str(stream.last_position),
        )
    command.stdout.print(rows)
    if len(found) == limit:
        command.notice(
            f"there may be more streams: continue with --after {found[-1].first_position}"
        )
