"""The command `seriatim query`: print matching events and the version of their context."""

from __future__ import annotations

from typing import Annotated

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
from seriatim.cli.output import EventLines, write_json
from seriatim.cli.query_options import Payloads, QueryJson, Stream, Tags, Types, query_from
from seriatim.log.query_execution import QueryResult


def query(
    ctx: typer.Context,
    types: Types = None,
    payloads: Payloads = None,
    tags: Tags = None,
    stream: Stream = None,
    whole: QueryJson = None,
    min_position: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Print only events after this position; the context version is not affected.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="The maximum number of events to print.")] = 1000,
    head: Annotated[
        int | None,
        typer.Option(
            help="Query the log as of this head, as reported with the previous page.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            help="Print only events up to this position; the context version is not affected.",
            show_default=False,
        ),
    ] = None,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="Descending order, from the last match.")
    ] = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Print the events that match a query, and the version of that context.

    Pass the version to `append --expect-version` for a conditional append.
    """
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        context = query_from(types, stream, tags, payloads, whole)
        if min_position is not None:
            context = msgspec.structs.replace(context, min_position=min_position)
        with command.open() as log:
            found = log.query(
                context, limit=limit, head=head, until=until, newest_first=newest_first
            )
        _print_result(command, found, newest_first=newest_first)


def _print_result(command: CommandSession, result: QueryResult, *, newest_first: bool) -> None:
    if command.as_json:
        write_json(
            {
                "context_version": result.context_version,
                "last_returned_position": result.last_returned_position,
                "head": result.head,
                "more": result.more,
                "records": [record.as_dict() for record in result.records],
            }
        )
        return
    lines = EventLines(command.stdout)
    for record in result.records:
        lines.print_event(record)
    version = "none" if result.context_version is None else str(result.context_version)
    command.stdout.print(
        f"context version {version} · {len(result.records)} events · head {result.head}"
    )
    if result.more and result.last_returned_position:
        last = result.last_returned_position
        option = f"--until {last - 1}" if newest_first else f"--min-position {last}"
        command.notice(f"there are more events: continue with {option} --head {result.head}")
