"""`seriatim tail`: follow the log live, from a position or under a durable name."""

from __future__ import annotations

from typing import Annotated

import typer

from seriatim.cli.filters import Payloads, QueryJson, Stream, Tags, Types, query_from
from seriatim.cli.output import EventLines, write_line
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.core.query import Query
from seriatim.log.batches import Batch
from seriatim.log.subscription import Subscription, Tail
from seriatim.log.transfer import record_line
from seriatim.opening import Log


def tail(  # noqa: PLR0913 - what to follow, from where, until when
    ctx: typer.Context,
    after: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="From the position behind this one. [default: now; with --name its cursor, "
            "which starts at 0]",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Keep a durable cursor under this name: it goes on where it was stopped.",
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
            help="Stop with the append in which this many events are reached.",
            show_default=False,
        ),
    ] = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Stop after so many seconds without an event.", show_default=False
        ),
    ] = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Follow the log: catch up, then live, until Ctrl-C."""
    with session(ctx, Common(url, tenant, as_json)) as one:
        wanted = query_from(types, stream, tags, payloads, query)
        with one.open() as log:
            follower = _follower(log, wanted, after, name, idle_timeout)
            one.notice("following; Ctrl-C stops")
            _follow(one, follower, limit)


def _follower(
    log: Log, query: Query, after: int | None, name: str | None, idle_timeout: float | None
) -> Tail | Subscription:
    if name is None:
        return log.tail(query, after=after, idle_timeout=idle_timeout)
    return log.subscribe(name, query, start=after or 0, idle_timeout=idle_timeout)


def _follow(one: Session, follower: Tail | Subscription, limit: int | None) -> None:
    lines = EventLines(one.out)
    seen = 0
    for batch in follower:
        _show(one, lines, batch)
        seen += len(batch)
        if limit is not None and seen >= limit:
            follower.stop()  # the loop goes round once more, so that a cursor moves over the batch


def _show(one: Session, lines: EventLines, batch: Batch) -> None:
    for record in batch:
        if one.as_json:
            write_line(record_line(record), flush=True)
        else:
            lines.show(record)
