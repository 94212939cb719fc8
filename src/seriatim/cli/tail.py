"""The command `seriatim tail`: follow the log from a position or with a durable cursor."""

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
from seriatim.cli.output import EventLines, write_line
from seriatim.cli.query_options import Payloads, QueryJson, Stream, Tags, Types, query_from
from seriatim.core.query import Query
from seriatim.factory import Log
from seriatim.log.batches import Batch
from seriatim.log.export_format import encode_record_line
from seriatim.log.subscription import Subscription, Tail


def tail(
    ctx: typer.Context,
    after: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Only events after this position. [default: the current head; with --name, the "
            "stored cursor, which starts at 0]",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Store a durable cursor under this name; the next run continues from it.",
            show_default=False,
        ),
    ] = None,
    types: Types = None,
    stream: Stream = None,
    tags: Tags = None,
    payloads: Payloads = None,
    query: QueryJson = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stop after the append in which this number of events is reached.",
            show_default=False,
        ),
    ] = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Stop after this many seconds without an event.", show_default=False
        ),
    ] = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Follow the log until Ctrl-C: catch up, then continue live."""
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        context = query_from(types, stream, tags, payloads, query)
        with command.open() as log:
            follower = _open_follower(log, context, after, name, idle_timeout)
            command.notice("following the log; press Ctrl-C to stop")
            _follow(command, follower, limit)


def _open_follower(
    log: Log, query: Query, after: int | None, name: str | None, idle_timeout: float | None
) -> Tail | Subscription:
    if name is None:
        return log.tail(query, after=after, idle_timeout=idle_timeout)
    return log.subscribe(name, query, start=after or 0, idle_timeout=idle_timeout)


def _follow(command: CommandSession, follower: Tail | Subscription, limit: int | None) -> None:
    lines = EventLines(command.stdout)
    printed = 0
    for batch in follower:
        _print_batch(command, lines, batch)
        printed += len(batch)
        if limit is not None and printed >= limit:
            # Not `break`: the loop must ask for the next batch once, which stores the cursor.
            follower.stop()


def _print_batch(command: CommandSession, lines: EventLines, batch: Batch) -> None:
    for record in batch:
        if command.as_json:
            write_line(encode_record_line(record), flush=True)
        else:
            lines.print_event(record)
