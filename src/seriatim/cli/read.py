"""The command `seriatim read`: print events in the order of the log, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from seriatim.cli.filters import Stream, Types
from seriatim.cli.output import EventFields, EventLines, write_line
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.core.event import EventRecord
from seriatim.log.transfer import record_line
from seriatim.opening import Log

SCREEN = 50  # events printed by default on a terminal

_Text = str | None


def _time(help: str) -> Any:
    return typer.Option(metavar="RFC3339", help=help, show_default=False)


def read(  # noqa: PLR0913 - one parameter for each option
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
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"The maximum number of events. [default: {SCREEN}; with --json, no limit]",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="No limit.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Print every field of each event.")] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
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
    with session(ctx, Common(url, tenant, as_json)) as command, command.open() as log:
        if event_id is not None:
            _print_event(command, log.event(event_id))
        elif command.as_json:
            for record in log.read(limit=limit, **filters):
                write_line(record_line(record))
        else:
            lines = EventFields(command.out) if wide else EventLines(command.out)
            _print_events(command, lines, log, filters, None if everything else limit or SCREEN)


def _print_events(
    command: Session,
    lines: EventLines | EventFields,
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
        lines.show(record)
        last = record.position
    if not last:
        command.notice("no events")


def _print_event(command: Session, record: EventRecord) -> None:
    if command.as_json:
        write_line(record_line(record))
        return
    EventFields(command.out).show(record)
