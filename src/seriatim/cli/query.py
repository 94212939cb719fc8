"""`seriatim query`: what matches, and the version of that context for a conditional append."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from seriatim.cli.filters import Payloads, QueryJson, Stream, Tags, Types, query_from
from seriatim.cli.output import EventLines, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.log.querying import QueryResult


def query(  # noqa: PLR0913 - what to look for, and which part of it to show
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
            help="Show only events behind this position; the version stays the context's.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[int, typer.Option(help="How many events to show.")] = 1000,
    head: Annotated[
        int | None,
        typer.Option(
            help="Look at the log as it was at this head: of the page before.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(help="Show only events up to this position.", show_default=False),
    ] = None,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="From the last match down.")
    ] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Find events by type, payload, tag or stream, with their context's version."""
    with session(ctx, Common(url, tenant, as_json)) as one:
        wanted = query_from(types, stream, tags, payloads, whole)
        if min_position is not None:
            wanted = msgspec.structs.replace(wanted, min_position=min_position)
        with one.open() as log:
            found = log.query(
                wanted, limit=limit, head=head, until=until, newest_first=newest_first
            )
        _show(one, found, newest_first=newest_first)


def _show(one: Session, found: QueryResult, *, newest_first: bool) -> None:
    if one.as_json:
        write_json(
            {
                "context_version": found.context_version,
                "last_returned_position": found.last_returned_position,
                "head": found.head,
                "more": found.more,
                "records": [record.as_dict() for record in found.records],
            }
        )
        return
    lines = EventLines(one.out)
    for record in found.records:
        lines.show(record)
    version = "none" if found.context_version is None else str(found.context_version)
    one.out.print(f"context version {version} · {len(found.records)} events · head {found.head}")
    if found.more and found.last_returned_position:
        last = found.last_returned_position
        on = f"--until {last - 1}" if newest_first else f"--min-position {last}"
        one.notice(f"there are more: go on with {on} --head {found.head}")
