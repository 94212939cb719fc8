"""`seriatim read`: events in order, as far as asked, in flat memory."""

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

SCREEN = 50

_Text = str | None
_Time = typer.Option(metavar="RFC3339", show_default=False)


def read(  # noqa: PLR0913 - a read can be narrowed in that many ways
    ctx: typer.Context,
    after: Annotated[int, typer.Option(help="From the position behind this one.")] = 0,
    until: Annotated[
        int | None, typer.Option(help="Up to this position.", show_default=False)
    ] = None,
    types: Types = None,
    stream: Stream = None,
    since: Annotated[
        int | None, typer.Option(help="Behind this number of the stream.", show_default=False)
    ] = None,
    app_id: Annotated[_Text, typer.Option(help="Only this application's.")] = None,
    env_id: Annotated[_Text, typer.Option(help="Only this environment's.")] = None,
    occurred_after: Annotated[_Text, _Time] = None,
    occurred_until: Annotated[_Text, _Time] = None,
    recorded_after: Annotated[_Text, _Time] = None,
    recorded_until: Annotated[_Text, _Time] = None,
    correlation_id: Annotated[_Text, typer.Option(help="Only with this correlation id.")] = None,
    causation_id: Annotated[_Text, typer.Option(help="Only with this causation id.")] = None,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="From the last event down.")
    ] = False,
    event_id: Annotated[_Text, typer.Option(help="Only this event, with every field.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"How many. [default: {SCREEN}; with --json all]", show_default=False
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="No limit.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Every field of each event.")] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Read events in the order of the log."""
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
    with session(ctx, Common(url, tenant, as_json)) as one, one.open() as log:
        if event_id is not None:
            _show_one(one, log.event(event_id))
        elif one.as_json:
            for record in log.read(limit=limit, **filters):
                write_line(record_line(record))
        else:
            lines = EventFields(one.out) if wide else EventLines(one.out)
            _show(one, lines, log, filters, None if everything else limit or SCREEN)


def _show(
    one: Session,
    lines: EventLines | EventFields,
    log: Log,
    filters: dict[str, Any],
    limit: int | None,
) -> None:
    """Print a screenful, and how to go on when there is more."""
    records: Iterator[EventRecord] = log.read(**filters)
    last = 0
    for count, record in enumerate(records):
        if count == limit:
            on = f"--until {last - 1}" if filters["newest_first"] else f"--after {last}"
            one.notice(f"there are more: go on with {on}, or read --all")
            return
        lines.show(record)
        last = record.position
    if not last:
        one.notice("no events")


def _show_one(one: Session, record: EventRecord) -> None:
    if one.as_json:
        write_line(record_line(record))
        return
    EventFields(one.out).show(record)
