"""`seriatim streams`: which streams there are, in the order in which they began."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.text import Text

from seriatim.cli.output import plain, table, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.store.port import StreamSummary


def streams(  # noqa: PLR0913 - which, and how many of them
    ctx: typer.Context,
    stream_type: Annotated[
        str | None, typer.Option("--type", help="Only streams of this type.", show_default=False)
    ] = None,
    after: Annotated[int, typer.Option(help="Only streams that began behind this position.")] = 0,
    limit: Annotated[int, typer.Option(help="How many.")] = 100,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List streams with their last number and event."""
    with session(ctx, Common(url, tenant, as_json)) as one, one.open() as log:
        found = log.streams(stream_type, after=after, limit=limit)
        if one.as_json:
            for each in found:
                write_json(msgspec.structs.asdict(each))
        else:
            _show(one, found, limit)


def _show(one: Session, found: list[StreamSummary], limit: int) -> None:
    if not found:
        one.notice("no streams")
        return
    columns = ("type", "id", "last number", "last event", "first", "last")
    shown = table(*columns, right=("last number", "first", "last"))
    for each in found:
        shown.add_row(
            Text(plain(each.stream_type), style="magenta"),
            Text(plain(each.stream_id)),
            str(each.last_seq),
            Text(plain(each.last_type), style="green"),
            str(each.first_position),
            str(each.last_position),
        )
    one.out.print(shown)
    if len(found) == limit:
        one.notice(f"there may be more: go on with --after {found[-1].first_position}")
