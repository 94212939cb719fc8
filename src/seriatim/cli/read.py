"""The commands `read`, `query`, `tail`, `streams`, `types` and `subscriptions`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

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
    parse_json_argument,
)
from seriatim.cli.output import (
    EventDetails,
    EventLines,
    escape_unprintable,
    make_table,
    write_json,
    write_line,
)
from seriatim.core.event import EventRecord
from seriatim.core.query import ID_FIELDS, MATCH_ALL, Filter, Query
from seriatim.factory import Log
from seriatim.log.arguments import ReadFilters, invalid_argument
from seriatim.log.batches import Batch
from seriatim.log.export_format import encode_record_line
from seriatim.log.query_execution import QueryResult
from seriatim.log.subscription import Subscription, Tail
from seriatim.store.port import (
    EVENT_TYPES_MAX,
    EventTypeCount,
    StreamSummary,
)

Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type", help="Only this event type, or a pattern such as seat.*; may be repeated."
    ),
]
Stream = Annotated[
    tuple[str, str] | None,
    typer.Option("--stream", help="Only this stream: its type and its id.", metavar="TYPE ID"),
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Only events with this tag; if repeated, with all of the tags."),
]
Payloads = Annotated[
    list[str] | None,
    typer.Option(
        "--payload",
        metavar="JSON",
        help='Only events whose payload contains this, such as \'{"seat": "12A"}\'; if repeated, '
        "any of them.",
    ),
]
QueryJson = Annotated[
    str | None,
    typer.Option(
        "--query",
        metavar="JSON",
        help="A complete query instead of the options above: "
        '{"filters": [{"types": […], "payload": […], "tags": […]}, …]}.',
    ),
]


def make_query(
    types: list[str] | None,
    stream: tuple[str, str] | None,
    tags: list[str] | None,
    payloads: list[str] | None,
    query_json: str | None = None,
    *,
    ids: Mapping[str, str | None] | None = None,
) -> Query:
    """Build a query from the options of one filter, or from a complete query in JSON.

    Raises:
        InvalidArgument: If a value is not valid JSON, or both forms are given.
        InvalidQuery: If the query has a wrong shape.

    """
    predicates = [parse_json_argument(text, "--payload") for text in payloads or ()]
    single = Filter(
        types=types or None,
        payload=predicates or None,
        tags=tags or None,
        streams=None if stream is None else [stream],
        **(ids or {}),
    )
    if query_json is None:
        return MATCH_ALL if single == Filter() else Query([single])
    if single != Filter():
        raise invalid_argument(
            "--query",
            "is a complete query: leave out the options of one filter, such as --type",
        )
    return parse_query(query_json)


def parse_query(text: str, name: str = "--query") -> Query:
    """Parse a query in JSON; `name` is the option to name in an error."""
    return Query.from_mapping(parse_json_argument(text, name))


SCREEN = 50  # events printed by default on a terminal

_Text = str | None


def _time_option(help: str) -> Any:
    return typer.Option(metavar="RFC3339", help=help, show_default=False)


_LIMIT = typer.Option(
    min=1,
    help=f"The maximum number of events. [default: {SCREEN}; with --json, no limit]",
    show_default=False,
)


AppId = Annotated[_Text, typer.Option(help="Only events of this application.")]
EnvId = Annotated[_Text, typer.Option(help="Only events of this environment.")]
OccurredAfter = Annotated[_Text, _time_option("Only events that occurred after this time.")]
OccurredUntil = Annotated[_Text, _time_option("Only events that occurred up to this time.")]
RecordedAfter = Annotated[_Text, _time_option("Only events recorded after this time.")]
RecordedUntil = Annotated[_Text, _time_option("Only events recorded up to this time.")]
CorrelationId = Annotated[_Text, typer.Option(help="Only events with this correlation id.")]
CausationId = Annotated[_Text, typer.Option(help="Only events with this causation id.")]
ActorId = Annotated[_Text, typer.Option(help="Only events of this actor.")]


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
    app_id: AppId = None,
    env_id: EnvId = None,
    occurred_after: OccurredAfter = None,
    occurred_until: OccurredUntil = None,
    recorded_after: RecordedAfter = None,
    recorded_until: RecordedUntil = None,
    correlation_id: CorrelationId = None,
    causation_id: CausationId = None,
    actor_id: ActorId = None,
    newest_first: Annotated[
        bool, typer.Option("--newest-first", help="Print in descending order, from the last event.")
    ] = False,
    event_id: Annotated[
        _Text, typer.Option(help="Print only this event, with every field.")
    ] = None,
    limit: Annotated[int | None, _LIMIT] = None,
    no_limit: Annotated[bool, typer.Option("--all", help="Print all events.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Print every field of each event.")] = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Print events in the order of the log."""
    filters: ReadFilters = {
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
        "actor_id": actor_id,
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
            _print_events(command, lines, log, filters, None if no_limit else limit or SCREEN)


def _print_events(
    command: CommandSession,
    lines: EventLines | EventDetails,
    log: Log,
    filters: ReadFilters,
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


def query(
    ctx: typer.Context,
    types: Types = None,
    payloads: Payloads = None,
    tags: Tags = None,
    stream: Stream = None,
    correlation_id: CorrelationId = None,
    causation_id: CausationId = None,
    actor_id: ActorId = None,
    query_json: QueryJson = None,
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
        bool, typer.Option("--newest-first", help="Print in descending order, from the last match.")
    ] = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Print the events that match a query, and the version of that context.

    Pass the version to `append --expect-version` for a conditional append.
    """
    ids = dict(zip(ID_FIELDS, (correlation_id, causation_id, actor_id), strict=True))
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        context = make_query(types, stream, tags, payloads, query_json, ids=ids)
        if min_position is not None:
            context = msgspec.structs.replace(context, min_position=min_position)
        with command.open() as log:
            result = log.query(
                context, limit=limit, head=head, until=until, newest_first=newest_first
            )
        _print_result(command, result, newest_first=newest_first)


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
    correlation_id: CorrelationId = None,
    causation_id: CausationId = None,
    actor_id: ActorId = None,
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
    ids = dict(zip(ID_FIELDS, (correlation_id, causation_id, actor_id), strict=True))
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        context = make_query(types, stream, tags, payloads, query, ids=ids)
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
        summaries = log.streams(stream_type, after=after, limit=limit)
        if command.as_json:
            for summary in summaries:
                write_json(msgspec.structs.asdict(summary))
        else:
            _print_streams(command, summaries, limit)


def _print_streams(command: CommandSession, summaries: list[StreamSummary], limit: int) -> None:
    if not summaries:
        command.notice("no streams")
        return
    columns = ("type", "id", "last seq", "last event", "first", "last")
    rows = make_table(*columns, right=("last seq", "first", "last"))
    for stream in summaries:
        rows.add_row(
            Text(escape_unprintable(stream.stream_type), style="magenta"),
            Text(escape_unprintable(stream.stream_id)),
            str(stream.last_seq),
            Text(escape_unprintable(stream.last_type), style="green"),
            str(stream.first_position),
            str(stream.last_position),
        )
    command.stdout.print(rows)
    if len(summaries) == limit:
        command.notice(
            f"there may be more streams: continue with --after {summaries[-1].first_position}"
        )


def types(
    ctx: typer.Context,
    prefix: Annotated[
        str, typer.Option(help="Only types that begin with this text.", show_default=False)
    ] = "",
    after: Annotated[
        str, typer.Option(help="Only types whose name is greater than this.", show_default=False)
    ] = "",
    limit: Annotated[
        int, typer.Option(help="The maximum number of types, at most 100.")
    ] = EVENT_TYPES_MAX,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """List event types with their number of events, counted up to 1,000, and last position."""
    with (
        command_session(ctx, CommonOptions(url, tenant, as_json)) as command,
        command.open() as log,
    ):
        listing = log.event_types(prefix, after=after, limit=limit)
        if command.as_json:
            for entry in listing:
                write_json(msgspec.structs.asdict(entry))
        else:
            _print_types(command, listing, limit)


def _print_types(command: CommandSession, listing: list[EventTypeCount], limit: int) -> None:
    if not listing:
        command.notice("no event types")
        return
    rows = make_table("type", "events", "last", right=("events", "last"))
    for entry in listing:
        rows.add_row(
            Text(escape_unprintable(entry.event_type), style="green"),
            f"{entry.counted}{'' if entry.exact else '+'}",
            str(entry.last_position),
        )
    command.stdout.print(rows)
    if len(listing) == limit:
        last = escape_unprintable(listing[-1].event_type)
        command.notice(f"there may be more types: continue with --after {last}")
