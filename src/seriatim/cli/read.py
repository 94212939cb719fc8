"""The command `seriatim read`: print events in the order of the log, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.output import EventDetails, EventLines, write_line
from seriatim.cli.query_options import Stream, Types
from seriatim.core.event import EventRecord
from seriatim.factory import Log
from seriatim.log.export_format import encode_record_line

SCREEN = 50  # events printed by default on a terminal

_Text = str | None


def _time(help: str) -> Any:
    return typer.Option(metavar="RFC3339", help=help, show_default=False)


_LIMIT = typer.Option(
    min=1,
    help=f"The maximum number of events. [default: {SCREEN}; with --json, no limit]",
    show_default=False,
)


def read(
    ctx: typer.Context,
    after: Annotated[int, typer.Option(help="Only events after this position.")] = 0,
    until: Annotated[
        int | None, typer.Option(help="Only events up to this position.", show_default=False)
    ] = None,
    types: Types = None,
    stream: Stream = None,
    since: Annotated[
        int | None,
        typer.Option(
            help="Only events after this sequence number of --stream.", show_default=False
        ),
    ] = None,
    app_id: Annotated[_Text, typer.Option(help="Only events of this application.")] = None,
    env_id: Annotated[_Text, typer.Option(help="Only events of this environment.")] = None,
    occurred_after: Annotated[_Text, _time("Only events that occurred after this time.")] = None,
    occurred_until: Annotated[_Text, _time("Only events that occurred up to this time.")] = None,
    recorded_after: Annotated[_Text, _time("Only events recorded after this time.")] = None,
    recorded_until: Annotated[_Text, _time("Only events recorded up to this time.")] = None,
    correlation_id: Annotated[
        _Text, typer.Option(help="Only events with this correlation id.")
    ] = None,
    causation_id: Annotated[_Text, typer.Option(help="Only events with this causation id.")] = None,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="Descending order, from the last event.")
    ] = False,
    event_id: Annotated[
        _Text, typer.Option(help="Print only this event, with every field.")
    ] = None,
    limit: Annotated[int | None, _LIMIT] = None,
    everything: Annotated[bool, typer.Option("--all", help="No limit.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Print every field of each event.")] = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Print events in the order of the log."""
    filters: dict[str, Any] = {
        "after": after,
        "until": until,
        "types": types or None,
        "stream": stream,
        "since_seq": since,
        "app_id": app_id,
        "env_id": env_id,
        "occurred_after": occurred_after,
        "occurred_until": occurred_until,
        "recorded_after": recorded_after,
        "recorded_until": recorded_until,
        "correlation_id": correlation_id,
        "causation_id": causation_id,
        "newest_first": newest_first,
    }
    with (
        command_session(ctx, CommonOptions(url, tenant, as_json)) as command,
        command.open() as log,
    ):
        if event_id is not None:
            _print_event(command, log.event(event_id))
        elif command.as_json:
            for record in log.read(limit=limit, **filters):
                write_line(encode_record_line(record))
        else:
            lines = EventDetails(command.stdout) if wide else EventLines(command.stdout)
            _print_events(command, lines, log, filters, None if everything else limit or SCREEN)


def _print_events(
    command: CommandSession,
    lines: EventLines | EventDetails,
    log: Log,
    filters: dict[str, Any],
    limit: int | None,
) -> None:
    """Print events up to a limit, and how to continue if there are more."""
    records: Iterator[EventRecord] = log.read(**filters)
    last = 0
    for count, record in enumerate(records):
        if count == limit:
            option = f"--until {last - 1}" if filters["newest_first"] else f"--after {last}"
            command.notice(f"there are more events: continue with {option}, or use --all")
            return
        lines.print_event(record)
        last = record.position
    if not last:
        command.notice("no events")


def _print_event(command: CommandSession, record: EventRecord) -> None:
    if command.as_json:
        write_line(encode_record_line(record))
        return
    EventDetails(command.stdout).print_event(record)
