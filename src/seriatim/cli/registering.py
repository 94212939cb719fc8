"""The commands `seriatim registry` and `seriatim dlq`: inspect and operate event handlers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import msgspec
import typer

from seriatim.cli import exits
from seriatim.cli.output import pairs, plain, table, write_json
from seriatim.cli.remote_registry import KnownRegistry, RemoteRegistry
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.core.errors import NotFound
from seriatim.delivery.entries import RETRIED, UNFINISHED, Asked, Entry
from seriatim.log.arguments import bad
from seriatim.opening import is_service, open_registry, registry_url

app = typer.Typer(
    no_args_is_help=True,
    help="The processed-event registry: list, retry and skip the events of handlers.",
)
letters = typer.Typer(
    no_args_is_help=True, help="Dead letters: events that handlers could not process."
)

RegistryAt = Annotated[
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
    str | None, typer.Option("--event", help="The event with this id.", show_default=False)
]
OneEvent = Annotated[
    str | None, typer.Argument(metavar="[EVENT]", help="The id of the event.", show_default=False)
]
EventKind = Annotated[
    str | None,
    typer.Option(
        "--type",
        help="Only events of this type, or a pattern such as seat.*",
        show_default=False,
    ),
]
StreamOf = Annotated[
    str | None,
    typer.Option(
        "--stream", metavar="TYPE/ID", help="Only events of this stream.", show_default=False
    ),
]
After = Annotated[
    int, typer.Option("--after", help="Only events after this position.", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="The maximum number of entries.")]
All = Annotated[bool, typer.Option("--all", help="All events that match the filters.")]
Reason = Annotated[
    str, typer.Option("--reason", help="The reason, which is stored with the event.")
]


@contextmanager
def _open_registry(
    ctx: typer.Context, common: Common, registry: str | None
) -> Iterator[tuple[Session, KnownRegistry]]:
    with session(ctx, common) as command:
        found: KnownRegistry
        if registry is None and is_service(command.url):
            found = RemoteRegistry(command.open())
        else:
            found = open_registry(registry or registry_url(command.url), create=False)
        with closing(found) as operations:
            yield command, operations


def _select(  # noqa: PLR0913 - one parameter for each filter
    command: Session,
    handler: str | None = None,
    event: str | None = None,
    event_type: str | None = None,
    stream: str | None = None,
    after: int = -1,
    status: str | tuple[str, ...] | None = None,
) -> Asked:
    stream_type, slash, stream_id = (stream or "").partition("/")
    if stream is not None and not slash:
        raise bad("stream", "must be given as TYPE/ID")
    return Asked(
        handler=handler,
        tenant_id=command.tenant,
        event_id=event,
        event_type=event_type,
        stream_type=stream_type or None,
        stream_id=stream_id or None,
        status=status,
        after=after,
    )


@app.command("status", epilog=exits.as_help())
def status(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    finished: Annotated[
        bool,
        typer.Option(
            "--finished", help="Also count done and stale events; slow if there are many."
        ),
    ] = False,
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """List every handler with the number of its events in each status."""
    with _open_registry(ctx, Common(url, tenant, as_json), registry) as (command, operations):
        handlers, counts = (
            operations.handlers(),
            operations.counts(finished=finished, tenant_id=command.tenant),
        )
        if command.as_json:
            write_json({"handlers": handlers, "counts": counts, "logs": operations.logs()})
            return
        listing = table("handler", "runs", "status", "events", "first", right=("events", "first"))
        runs = {known.name: f"{known.status} {known.reason}".strip() for known in handlers}
        # A consumer can claim events for a handler that was never declared.
        for name in sorted(runs.keys() | {count.handler for count in counts}):
            own_counts = [count for count in counts if count.handler == name]
            run_status = plain(runs.get(name, "not declared"))
            if not own_counts:
                listing.add_row(plain(name), run_status, "nothing open", "0", "–")
            for count in own_counts:
                cells = (count.status, f"{count.count:,}", f"{count.first_position:,}")
                listing.add_row(plain(name), run_status, *cells)
        command.out.print(listing)


def _print_entries(  # noqa: PLR0913 - one parameter for each filter
    status: str | tuple[str, ...],
    ctx: typer.Context,
    handler: str | None,
    event_type: str | None,
    stream: str | None,
    after: int,
    limit: int,
    registry: str | None,
    common: Common,
) -> None:
    with _open_registry(ctx, common, registry) as (command, operations):
        selection = _select(command, handler, None, event_type, stream, after, status)
        found = operations.entries(selection, limit)
        if command.as_json:
            for entry in found:
                write_json(_with_json_payload(entry))
            return
        listing = table("position", "handler", "event", "type", "tries", "due", "error")
        for entry in found:
            listing.add_row(
                f"{entry.position:,}",
                plain(entry.handler),
                plain(entry.event_id),
                plain(entry.event_type),
                str(entry.attempts),
                entry.due_at[:19] if entry.due_at else "–",
                plain(entry.error),
            )
        command.out.print(listing)


def _make_list_command(status: str | tuple[str, ...], help: str) -> Any:
    def run_command(  # noqa: PLR0913 - one parameter for each option
        ctx: typer.Context,
        handler: HandlerName = None,
        event_type: EventKind = None,
        stream: StreamOf = None,
        after: After = -1,
        limit: Limit = 100,
        registry: RegistryAt = None,
        url: Url = None,
        tenant: Tenant = None,
        as_json: AsJson = False,
    ) -> None:
        common = Common(url, tenant, as_json)
        _print_entries(status, ctx, handler, event_type, stream, after, limit, registry, common)

    run_command.__doc__ = help
    return run_command


app.command("failed", epilog=exits.as_help())(
    _make_list_command(
        ("failed", "dead"),
        "List failed events: those that wait for their next attempt, and dead ones.",
    )
)
app.command("unknown", epilog=exits.as_help())(
    _make_list_command("unknown", "List unsafe effects with an unknown outcome.")
)
app.command("waiting", epilog=exits.as_help())(
    _make_list_command("blocked", "List events that wait for an earlier event of their stream.")
)
letters.command("list", epilog=exits.as_help())(_make_list_command("dead", "List dead letters."))


def _print_count(command: Session, name: str, count: int) -> None:
    if command.as_json:
        write_json({name: count})
    else:
        command.out.print(f"{name}: {count:,}")
    if not count:
        raise typer.Exit(exits.FOUND_PROBLEMS)


def _make_retry_command(statuses: tuple[str, ...], help: str) -> Any:
    def run_command(  # noqa: PLR0913 - one parameter for each option
        ctx: typer.Context,
        argument: OneEvent = None,
        event: EventId = None,
        all_: All = False,
        handler: HandlerName = None,
        event_type: EventKind = None,
        stream: StreamOf = None,
        registry: RegistryAt = None,
        url: Url = None,
        tenant: Tenant = None,
        as_json: AsJson = False,
    ) -> None:
        with _open_registry(ctx, Common(url, tenant, as_json), registry) as (command, operations):
            selection = _select(
                command,
                handler,
                _choose_event(argument, event, all_=all_),
                event_type,
                stream,
                status=statuses,
            )
            _print_count(command, "retried", operations.retry(selection))

    run_command.__doc__ = help
    return run_command


def _make_skip_command(statuses: tuple[str, ...], help: str) -> Any:
    def run_command(  # noqa: PLR0913 - one parameter for each option
        ctx: typer.Context,
        reason: Reason,
        argument: OneEvent = None,
        event: EventId = None,
        all_: All = False,
        handler: HandlerName = None,
        event_type: EventKind = None,
        stream: StreamOf = None,
        registry: RegistryAt = None,
        url: Url = None,
        tenant: Tenant = None,
        as_json: AsJson = False,
    ) -> None:
        with _open_registry(ctx, Common(url, tenant, as_json), registry) as (command, operations):
            selection = _select(
                command,
                handler,
                _choose_event(argument, event, all_=all_),
                event_type,
                stream,
                status=statuses,
            )
            _print_count(command, "skipped", operations.skip(selection, reason))

    run_command.__doc__ = help
    return run_command


def _choose_event(argument: str | None, option: str | None, *, all_: bool) -> str | None:
    """Return the event id given as an argument or as --event, or None for --all."""
    if argument is not None and option is not None:
        raise bad("event", "is given twice, as an argument and as --event")
    event_id = argument if option is None else option
    if (event_id is None) == (not all_):
        raise bad("event", "must be one event id, or use --all")
    return event_id


app.command("retry", epilog=exits.as_help())(
    _make_retry_command(RETRIED, "Retry failed, dead and unknown events immediately.")
)
app.command("skip", epilog=exits.as_help())(
    _make_skip_command(UNFINISHED, "Mark unfinished events as skipped, so that they count as done.")
)
letters.command("retry", epilog=exits.as_help())(
    _make_retry_command(("dead",), "Retry dead letters immediately.")
)
letters.command("drop", epilog=exits.as_help())(
    _make_skip_command(("dead",), "Discard dead letters permanently: they count as done.")
)


@letters.command("show", epilog=exits.as_help())
def show(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The id of the event.")],
    handler: HandlerName = None,
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Print everything about a dead letter, including the event itself."""
    with _open_registry(ctx, Common(url, tenant, as_json), registry) as (command, operations):
        found = operations.entries(_select(command, handler, event, status="dead"))
        for entry in found:
            _print_entry(command, entry)
        if not found:
            msg = f"there is no dead letter for event {event!r:.80}"
            raise NotFound(msg, details={"event_id": event})


def _print_entry(command: Session, entry: Entry) -> None:
    if command.as_json:
        write_json(_with_json_payload(entry))
        return
    fields = msgspec.to_builtins(entry)
    fields["event"] = msgspec.json.encode(entry.event).decode()
    command.out.print(
        pairs({name: plain(value) for name, value in fields.items() if value is not None})
    )


def _with_json_payload(entry: Entry) -> dict[str, Any]:
    """Return the fields of a dead letter with the payload as JSON instead of text."""
    fields = msgspec.structs.asdict(entry)
    event = entry.event
    if isinstance(event, dict) and isinstance(event.get("payload"), str):
        fields["event"] = {**event, "payload": msgspec.Raw(event["payload"].encode())}
    return fields


@app.command("pause", epilog=exits.as_help())
def pause(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The name of the handler.")],
    reason: Annotated[str, typer.Option("--reason", help="The reason, for other operators.")] = "",
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Stop a handler from claiming events until it is resumed."""
    with _open_registry(ctx, Common(url, tenant, as_json), registry) as (_, operations):
        operations.set_status(handler, "paused", reason)


@app.command("resume", epilog=exits.as_help())
def resume(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The name of the handler.")],
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Resume a handler that was paused or has stopped."""
    with _open_registry(ctx, Common(url, tenant, as_json), registry) as (_, operations):
        operations.set_status(handler, "ready")


@app.command("reset", epilog=exits.as_help())
def reset(  # noqa: PLR0913 - one parameter for each option
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
        bool, typer.Option("--dry-run", help="Report only; change nothing.")
    ] = False,
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Let a handler continue with a log that was restored or replaced.

    Entries of events that the log no longer contains are deleted. Without --tenant, the command
    applies to every tenant of the handler. Stop its consumers first.
    """
    with (
        _open_registry(ctx, Common(url, tenant, as_json), registry) as (command, operations),
        command.open() as log,
    ):
        found = operations.reset(
            handler,
            log,
            reason=reason,
            tenant_id=command.tenant,
            position=position,
            dry_run=dry_run,
        )
        if command.as_json:
            for report in found:
                write_json(report)
            return
        listing = table("tenant", "epoch", "position", "forgotten", "streams", right=("position",))
        for report in found:
            deleted = ", ".join(f"{status} {count:,}" for status, count in report.forgotten.items())
            listing.add_row(
                plain(report.tenant_id),
                str(report.epoch),
                f"{report.position:,}",
                deleted or "–",
                f"{report.streams:,}",
            )
        command.out.print(listing)


@app.command("prune", epilog=exits.as_help())
def prune(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The name of the handler.")],
    days: Annotated[
        float,
        typer.Option(
            min=0.0, help="Delete entries that were finished more than this many days ago."
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
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Delete the entries of events that were finished long ago.

    The last sequence number of their streams still identifies them as processed.
    """
    with _open_registry(ctx, Common(url, tenant, as_json), registry) as (command, operations):
        count = operations.prune(handler, days * 86_400, streamless=streamless)
        if command.as_json:
            write_json({"forgotten": count})
        else:
            command.out.print(f"forgotten: {count:,}")
