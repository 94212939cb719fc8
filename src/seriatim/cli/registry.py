"""The commands `seriatim registry` and `seriatim dlq`: inspect and operate event handlers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from seriatim.cli import exit_codes
from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.local_registry import LocalRegistry
from seriatim.cli.operations import (
    ActionReason,
    Confirmed,
    confirm_count,
    mark_unrecorded,
)
from seriatim.cli.output import escape_unprintable, format_pairs, make_table, write_json
from seriatim.cli.remote_registry import RegistryOperations, RemoteRegistry
from seriatim.core.errors import NotFound
from seriatim.core.times import format_us
from seriatim.delivery.entries import RETRYABLE_STATUSES, UNFINISHED_STATUSES, Entry, EntryFilter
from seriatim.delivery.reset import count_forgotten
from seriatim.factory import is_service, open_registry, registry_url
from seriatim.log.arguments import invalid_argument
from seriatim.log.operator_journal import check_reason
from seriatim.wire.messages import CountResponse

_DAY_US = 86_400_000_000

app = typer.Typer(
    no_args_is_help=True,
    help="The processed-event registry: list, retry and skip the events of handlers.",
)
dlq_app = typer.Typer(
    no_args_is_help=True, help="Dead letters: events that handlers could not process."
)

RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL",
        help="The registry: sqlite:///file or postgresql://…?schema=name. "
        "[default: next to the log]",
        show_default=False,
    ),
]
HandlerName = Annotated[
    str | None, typer.Option("--handler", help="Only events of this handler.", show_default=False)
]
EventId = Annotated[
    str | None, typer.Option("--event", help="Select the event with this id.", show_default=False)
]
EventArgument = Annotated[
    str | None, typer.Argument(metavar="[EVENT]", help="The id of the event.", show_default=False)
]
EventTypeFilter = Annotated[
    str | None,
    typer.Option(
        "--type",
        help="Only events of this type, or a pattern such as seat.*",
        show_default=False,
    ),
]
StreamFilter = Annotated[
    str | None,
    typer.Option(
        "--stream", metavar="TYPE/ID", help="Only events of this stream.", show_default=False
    ),
]
AfterPosition = Annotated[
    int, typer.Option("--after", help="Only events after this position.", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="The maximum number of entries.")]
AllMatching = Annotated[
    bool, typer.Option("--all", help="Select all events that match the filters.")
]
Reason = Annotated[
    str, typer.Option("--reason", help="The reason, which is stored with the event.")
]


@contextmanager
def _open_registry(
    ctx: typer.Context, common: CommonOptions, registry: str | None
) -> Iterator[tuple[CommandSession, RegistryOperations]]:
    with command_session(ctx, common) as command:
        operations: RegistryOperations
        if registry is None and is_service(command.url):
            operations = RemoteRegistry(command.open(), command)
        else:
            at = registry or registry_url(command.url)
            operations = LocalRegistry(open_registry(at, create=False), command)
        with closing(operations):
            yield command, operations


def _select(
    command: CommandSession,
    handler: str | None = None,
    event: str | None = None,
    event_type: str | None = None,
    stream: str | None = None,
    after: int = -1,
    status: str | tuple[str, ...] | None = None,
) -> EntryFilter:
    stream_type, slash, stream_id = (stream or "").partition("/")
    if stream is not None and not slash:
        raise invalid_argument("stream", "must be given as TYPE/ID")
    return EntryFilter(
        handler=handler,
        tenant_id=command.tenant,
        event_id=event,
        event_type=event_type,
        stream_type=stream_type or None,
        stream_id=stream_id or None,
        status=status,
        after=after,
    )


@app.command("status", epilog=exit_codes.format_exit_codes())
def status(
    ctx: typer.Context,
    finished: Annotated[
        bool,
        typer.Option(
            "--finished", help="Also count done and stale events; slow if there are many."
        ),
    ] = False,
    registry: RegistryUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """List every handler with the number of its events in each status."""
    with _open_registry(ctx, CommonOptions(url, tenant, as_json), registry) as (
        command,
        operations,
    ):
        handlers, counts = (
            operations.handlers(),
            operations.counts(finished=finished, tenant_id=command.tenant),
        )
        if command.as_json:
            write_json({"handlers": handlers, "counts": counts, "logs": operations.logs()})
            return
        listing = make_table(
            "handler", "runs", "status", "events", "first", right=("events", "first")
        )
        runs = {handler.name: f"{handler.status} {handler.reason}".strip() for handler in handlers}
        # A consumer can claim events for a handler that was never declared.
        for name in sorted(runs.keys() | {count.handler for count in counts}):
            own_counts = [count for count in counts if count.handler == name]
            run_status = escape_unprintable(runs.get(name, "not declared"))
            if not own_counts:
                listing.add_row(escape_unprintable(name), run_status, "nothing open", "0", "–")
            for count in own_counts:
                cells = (count.status, f"{count.count:,}", f"{count.first_position:,}")
                listing.add_row(escape_unprintable(name), run_status, *cells)
        command.stdout.print(listing)


def _print_entries(
    status: str | tuple[str, ...],
    ctx: typer.Context,
    handler: str | None,
    event_type: str | None,
    stream: str | None,
    after: int,
    limit: int,
    registry: str | None,
    common: CommonOptions,
) -> None:
    with _open_registry(ctx, common, registry) as (command, operations):
        selection = _select(command, handler, None, event_type, stream, after, status)
        entries = operations.entries(selection, limit)
        if command.as_json:
            for entry in entries:
                write_json(_with_json_payload(entry))
            return
        listing = make_table("position", "handler", "event", "type", "tries", "due", "error")
        for entry in entries:
            listing.add_row(
                f"{entry.position:,}",
                escape_unprintable(entry.handler),
                escape_unprintable(entry.event_id),
                escape_unprintable(entry.event_type),
                str(entry.attempts),
                entry.due_at[:19] if entry.due_at else "–",
                escape_unprintable(entry.error),
            )
        command.stdout.print(listing)


def _make_list_command(status: str | tuple[str, ...], help: str) -> Any:
    def run_command(
        ctx: typer.Context,
        handler: HandlerName = None,
        event_type: EventTypeFilter = None,
        stream: StreamFilter = None,
        after: AfterPosition = -1,
        limit: Limit = 100,
        registry: RegistryUrl = None,
        url: LogUrl = None,
        tenant: TenantOption = None,
        as_json: JsonOutput = False,
    ) -> None:
        common = CommonOptions(url, tenant, as_json)
        _print_entries(status, ctx, handler, event_type, stream, after, limit, registry, common)

    run_command.__doc__ = help
    return run_command


app.command("failed", epilog=exit_codes.format_exit_codes())(
    _make_list_command(
        ("failed", "dead"),
        "List failed events: those that wait for their next attempt, and dead ones.",
    )
)
app.command("unknown", epilog=exit_codes.format_exit_codes())(
    _make_list_command("unknown", "List unsafe effects with an unknown outcome.")
)
app.command("waiting", epilog=exit_codes.format_exit_codes())(
    _make_list_command("blocked", "List events that wait for an earlier event of their stream.")
)
dlq_app.command("list", epilog=exit_codes.format_exit_codes())(
    _make_list_command("dead", "List dead letters.")
)


def _print_count(command: CommandSession, name: str, result: CountResponse) -> None:
    if command.as_json:
        write_json(mark_unrecorded({name: result.count}, result.recorded))
    else:
        command.stdout.print(f"{name}: {result.count:,}")
    if not result.count:
        raise typer.Exit(exit_codes.FOUND_PROBLEMS)


def _count_matching(
    command: CommandSession,
    operations: RegistryOperations,
    selection: EntryFilter,
    verb: str,
    *,
    confirmed: bool,
) -> int | None:
    """Count the events of an action on all that match and ask; None for an action on one event."""
    if selection.event_id is not None:
        return None
    count = operations.count(selection)
    confirm_count(command, f"{verb} {count:,} events", count, confirmed=confirmed)
    return count


def _make_retry_command(statuses: tuple[str, ...], help: str) -> Any:
    def run_command(
        ctx: typer.Context,
        argument: EventArgument = None,
        event: EventId = None,
        all_: AllMatching = False,
        yes: Confirmed = False,
        reason: ActionReason = "",
        handler: HandlerName = None,
        event_type: EventTypeFilter = None,
        stream: StreamFilter = None,
        registry: RegistryUrl = None,
        url: LogUrl = None,
        tenant: TenantOption = None,
        as_json: JsonOutput = False,
    ) -> None:
        with _open_registry(ctx, CommonOptions(url, tenant, as_json), registry) as (
            command,
            operations,
        ):
            selection = _select(
                command,
                handler,
                _choose_event(argument, event, all_=all_),
                event_type,
                stream,
                status=statuses,
            )
            check_reason(reason, required=all_)
            count = _count_matching(command, operations, selection, "retry", confirmed=yes)
            result = operations.retry(selection, reason=reason, expected_count=count)
            _print_count(command, "retried", result)

    run_command.__doc__ = help
    return run_command


def _make_skip_command(statuses: tuple[str, ...], help: str) -> Any:
    def run_command(
        ctx: typer.Context,
        reason: Reason,
        argument: EventArgument = None,
        event: EventId = None,
        all_: AllMatching = False,
        yes: Confirmed = False,
        handler: HandlerName = None,
        event_type: EventTypeFilter = None,
        stream: StreamFilter = None,
        registry: RegistryUrl = None,
        url: LogUrl = None,
        tenant: TenantOption = None,
        as_json: JsonOutput = False,
    ) -> None:
        with _open_registry(ctx, CommonOptions(url, tenant, as_json), registry) as (
            command,
            operations,
        ):
            selection = _select(
                command,
                handler,
                _choose_event(argument, event, all_=all_),
                event_type,
                stream,
                status=statuses,
            )
            check_reason(reason, required=True)
            count = _count_matching(command, operations, selection, "skip", confirmed=yes)
            result = operations.skip(selection, reason=reason, expected_count=count)
            _print_count(command, "skipped", result)

    run_command.__doc__ = help
    return run_command


def _choose_event(argument: str | None, option: str | None, *, all_: bool) -> str | None:
    """Return the event id given as an argument or as --event, or None for --all."""
    if argument is not None and option is not None:
        raise invalid_argument("event", "is given twice, as an argument and as --event")
    event_id = argument if option is None else option
    if (event_id is None) == (not all_):
        raise invalid_argument("event", "must be one event id, or use --all")
    return event_id


app.command("retry", epilog=exit_codes.format_exit_codes())(
    _make_retry_command(RETRYABLE_STATUSES, "Retry failed, dead and unknown events immediately.")
)
app.command("skip", epilog=exit_codes.format_exit_codes())(
    _make_skip_command(
        UNFINISHED_STATUSES, "Mark unfinished events as skipped, so that they count as done."
    )
)
dlq_app.command("retry", epilog=exit_codes.format_exit_codes())(
    _make_retry_command(("dead",), "Retry dead letters immediately.")
)
dlq_app.command("drop", epilog=exit_codes.format_exit_codes())(
    _make_skip_command(("dead",), "Discard dead letters permanently: they count as done.")
)


@dlq_app.command("show", epilog=exit_codes.format_exit_codes())
def show(
    ctx: typer.Context,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The id of the event.")],
    handler: HandlerName = None,
    registry: RegistryUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Print everything about a dead letter, including the event itself."""
    with _open_registry(ctx, CommonOptions(url, tenant, as_json), registry) as (
        command,
        operations,
    ):
        entries = operations.entries(_select(command, handler, event, status="dead"))
        for entry in entries:
            _print_entry(command, entry)
        if not entries:
            msg = f"there is no dead letter for event {event!r:.80}"
            raise NotFound(msg, details={"event_id": event})


def _print_entry(command: CommandSession, entry: Entry) -> None:
    if command.as_json:
        write_json(_with_json_payload(entry))
        return
    fields = msgspec.to_builtins(entry)
    fields["event"] = msgspec.json.encode(entry.event).decode()
    command.stdout.print(
        format_pairs(
            {name: escape_unprintable(value) for name, value in fields.items() if value is not None}
        )
    )


def _with_json_payload(entry: Entry) -> dict[str, Any]:
    """Return the fields of a dead letter with the payload as JSON instead of text."""
    fields = msgspec.structs.asdict(entry)
    event = entry.event
    if isinstance(event, dict) and isinstance(event.get("payload"), str):
        fields["event"] = {**event, "payload": msgspec.Raw(event["payload"].encode())}
    return fields


@app.command("pause", epilog=exit_codes.format_exit_codes())
def pause(
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The name of the handler.")],
    reason: Annotated[str, typer.Option("--reason", help="The reason, for other operators.")] = "",
    registry: RegistryUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Stop a handler from claiming events until it is resumed."""
    with _open_registry(ctx, CommonOptions(url, tenant, as_json), registry) as (_, operations):
        operations.set_status(handler, "paused", reason)


@app.command("resume", epilog=exit_codes.format_exit_codes())
def resume(
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The name of the handler.")],
    reason: ActionReason = "",
    registry: RegistryUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Resume a handler that was paused or has stopped."""
    with _open_registry(ctx, CommonOptions(url, tenant, as_json), registry) as (_, operations):
        operations.set_status(handler, "ready", reason)


@app.command("reset", epilog=exit_codes.format_exit_codes())
def reset(
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The name of the handler.")],
    reason: Annotated[str, typer.Option("--reason", help="The reason, which is stored.")],
    position: Annotated[
        int | None,
        typer.Option(
            "--position",
            min=0,
            help="The head of the log directly after its restore. [default: the highest position "
            "at which registry and log hold the same event]",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report the changes without making them.")
    ] = False,
    yes: Confirmed = False,
    registry: RegistryUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Let a handler continue with a log that was restored or replaced.

    Entries of events that the log no longer contains are deleted. Without --tenant, the command
    applies to every tenant of the handler. Stop its consumers first.
    """
    with _open_registry(ctx, CommonOptions(url, tenant, as_json), registry) as (
        command,
        operations,
    ):
        reset = partial(
            operations.reset, handler, reason=reason, tenant_id=command.tenant, position=position
        )
        reports = reset()
        if not dry_run:
            count = count_forgotten(reports)
            question = f"delete {count:,} entries of events that the log no longer contains"
            confirm_count(command, question, count, confirmed=yes)
            reports = reset(expected_count=count)
        if command.as_json:
            for report in reports:
                write_json(report)
            return
        listing = make_table(
            "tenant", "epoch", "position", "forgotten", "streams", right=("position",)
        )
        for report in reports:
            deleted = ", ".join(f"{status} {count:,}" for status, count in report.forgotten.items())
            listing.add_row(
                escape_unprintable(report.tenant_id),
                str(report.epoch),
                f"{report.position:,}",
                deleted or "–",
                f"{report.streams:,}",
            )
        command.stdout.print(listing)


@app.command("prune", epilog=exit_codes.format_exit_codes())
def prune(
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The name of the handler.")],
    days: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=36_500.0,
            help="Delete entries that were finished more than this many days ago.",
        ),
    ],
    streamless: Annotated[
        bool,
        typer.Option(
            "--streamless",
            help="Also delete events without a stream. If such an event is delivered again, its "
            "effect is repeated.",
        ),
    ] = False,
    reason: ActionReason = "",
    yes: Confirmed = False,
    registry: RegistryUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Delete the entries of events that were finished long ago.

    The last sequence number of their streams still identifies them as processed.
    """
    with _open_registry(ctx, CommonOptions(url, tenant, as_json), registry) as (
        command,
        operations,
    ):
        check_reason(reason, required=True)
        before = format_us(max(0, time.time_ns() // 1000 - round(days * _DAY_US)))
        count = operations.count_prunable(handler, before, streamless=streamless)
        confirm_count(command, f"delete {count:,} entries", count, confirmed=yes)
        result = operations.prune(
            handler, before, streamless=streamless, reason=reason, expected_count=count
        )
        if command.as_json:
            write_json(mark_unrecorded({"forgotten": result.count}, result.recorded))
        else:
            command.stdout.print(f"forgotten: {result.count:,}")
