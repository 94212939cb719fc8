"""`seriatim registry` and `seriatim dlq`: what handlers have done, and what waits for people."""

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

app = typer.Typer(no_args_is_help=True, help="What handlers have done, and what is open.")
letters = typer.Typer(no_args_is_help=True, help="Dead letters: events that handlers gave up.")

RegistryAt = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL",
        help="Where the registry is: sqlite:///file or postgresql://…?schema=name. "
        "[default: beside the log]",
        show_default=False,
    ),
]
HandlerName = Annotated[
    str | None, typer.Option("--handler", help="Only this handler's.", show_default=False)
]
EventId = Annotated[
    str | None, typer.Option("--event", help="Only this event.", show_default=False)
]
OneEvent = Annotated[
    str | None, typer.Argument(metavar="[EVENT]", help="The event's id.", show_default=False)
]
EventKind = Annotated[
    str | None,
    typer.Option(
        "--type",
        help="Only events of this type, or of a pattern such as seat.*.",
        show_default=False,
    ),
]
StreamOf = Annotated[
    str | None,
    typer.Option("--stream", metavar="TYPE/ID", help="Only this stream's.", show_default=False),
]
After = Annotated[
    int, typer.Option("--after", help="Only behind this position.", show_default=False)
]
Limit = Annotated[int, typer.Option("--limit", min=1, help="At most so many.")]
All = Annotated[bool, typer.Option("--all", help="All that the filters leave, not one event.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept with the event.")]


@contextmanager
def _opened(
    ctx: typer.Context, common: Common, registry: str | None
) -> Iterator[tuple[Session, KnownRegistry]]:
    with session(ctx, common) as one:
        known: KnownRegistry
        if registry is None and is_service(one.url):
            known = RemoteRegistry(one.open())
        else:
            known = open_registry(registry or registry_url(one.url), create=False)
        with closing(known) as opened:
            yield one, opened


def _asked(  # noqa: PLR0913 - the filters of a listing, one argument each
    one: Session,
    handler: str | None = None,
    event: str | None = None,
    kind: str | None = None,
    stream: str | None = None,
    after: int = -1,
    status: str | tuple[str, ...] | None = None,
) -> Asked:
    stream_type, slash, stream_id = (stream or "").partition("/")
    if stream is not None and not slash:
        raise bad("stream", "is written as TYPE/ID")
    return Asked(
        handler=handler,
        tenant_id=one.tenant,
        event_id=event,
        event_type=kind,
        stream_type=stream_type or None,
        stream_id=stream_id or None,
        status=status,
        after=after,
    )


@app.command("status", epilog=exits.as_help())
def status(  # noqa: PLR0913 - what to count, and where
    ctx: typer.Context,
    finished: Annotated[
        bool, typer.Option("--finished", help="Count what is done, too: slow when it is much.")
    ] = False,
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Count events by handler and status."""
    with _opened(ctx, Common(url, tenant, as_json), registry) as (one, opened):
        handlers, counts = (
            opened.handlers(),
            opened.counts(finished=finished, tenant_id=one.tenant),
        )
        if one.as_json:
            write_json({"handlers": handlers, "counts": counts, "logs": opened.logs()})
            return
        made = table("handler", "runs", "status", "events", "first", right=("events", "first"))
        runs = {one.name: f"{one.status} {one.reason}".strip() for one in handlers}
        # A consumer may claim for a handler that nobody has declared.
        for name in sorted(runs.keys() | {count.handler for count in counts}):
            mine = [count for count in counts if count.handler == name]
            said = plain(runs.get(name, "not declared"))
            if not mine:
                made.add_row(plain(name), said, "nothing open", "0", "–")
            for count in mine:
                cells = (count.status, f"{count.count:,}", f"{count.first_position:,}")
                made.add_row(plain(name), said, *cells)
        one.out.print(made)


def _listed(  # noqa: PLR0913 - the filters of a listing
    status: str | tuple[str, ...],
    ctx: typer.Context,
    handler: str | None,
    kind: str | None,
    stream: str | None,
    after: int,
    limit: int,
    registry: str | None,
    common: Common,
) -> None:
    with _opened(ctx, common, registry) as (one, opened):
        asked = _asked(one, handler, None, kind, stream, after, status)
        found = opened.entries(asked, limit)
        if one.as_json:
            for entry in found:
                write_json(_with_payload(entry))
            return
        made = table("position", "handler", "event", "type", "tries", "due", "error")
        for entry in found:
            made.add_row(
                f"{entry.position:,}",
                plain(entry.handler),
                plain(entry.event_id),
                plain(entry.event_type),
                str(entry.attempts),
                entry.due_at[:19] if entry.due_at else "–",
                plain(entry.error),
            )
        one.out.print(made)


def _listing(status: str | tuple[str, ...], what: str) -> Any:
    def command(  # noqa: PLR0913 - the filters of a listing
        ctx: typer.Context,
        handler: HandlerName = None,
        kind: EventKind = None,
        stream: StreamOf = None,
        after: After = -1,
        limit: Limit = 100,
        registry: RegistryAt = None,
        url: Url = None,
        tenant: Tenant = None,
        as_json: AsJson = False,
    ) -> None:
        common = Common(url, tenant, as_json)
        _listed(status, ctx, handler, kind, stream, after, limit, registry, common)

    command.__doc__ = what
    return command


app.command("failed", epilog=exits.as_help())(
    _listing(("failed", "dead"), "List events that failed: backing off, or dead.")
)
app.command("unknown", epilog=exits.as_help())(
    _listing("unknown", "List unsafe effects of which nobody knows whether they happened.")
)
app.command("waiting", epilog=exits.as_help())(
    _listing("blocked", "List events that wait for an earlier one of their stream.")
)
letters.command("list", epilog=exits.as_help())(_listing("dead", "List dead letters."))


def _done(one: Session, what: str, count: int) -> None:
    if one.as_json:
        write_json({what: count})
    else:
        one.out.print(f"{what}: {count:,}")
    if not count:
        raise typer.Exit(exits.FOUND_PROBLEMS)


def _retrying(statuses: tuple[str, ...], what: str) -> Any:
    def command(  # noqa: PLR0913 - the filters
        ctx: typer.Context,
        named: OneEvent = None,
        event: EventId = None,
        all_: All = False,
        handler: HandlerName = None,
        kind: EventKind = None,
        stream: StreamOf = None,
        registry: RegistryAt = None,
        url: Url = None,
        tenant: Tenant = None,
        as_json: AsJson = False,
    ) -> None:
        with _opened(ctx, Common(url, tenant, as_json), registry) as (one, opened):
            asked = _asked(
                one, handler, _meant(named, event, all_=all_), kind, stream, status=statuses
            )
            _done(one, "retried", opened.retry(asked))

    command.__doc__ = what
    return command


def _skipping(statuses: tuple[str, ...], what: str) -> Any:
    def command(  # noqa: PLR0913 - the filters
        ctx: typer.Context,
        reason: Reason,
        named: OneEvent = None,
        event: EventId = None,
        all_: All = False,
        handler: HandlerName = None,
        kind: EventKind = None,
        stream: StreamOf = None,
        registry: RegistryAt = None,
        url: Url = None,
        tenant: Tenant = None,
        as_json: AsJson = False,
    ) -> None:
        with _opened(ctx, Common(url, tenant, as_json), registry) as (one, opened):
            asked = _asked(
                one, handler, _meant(named, event, all_=all_), kind, stream, status=statuses
            )
            _done(one, "skipped", opened.skip(asked, reason))

    command.__doc__ = what
    return command


def _meant(named: str | None, event: str | None, *, all_: bool) -> str | None:
    """Return the one event that is meant, as an argument or an option; None for all."""
    if named is not None and event is not None:
        raise bad("event", "is named twice")
    one = named if event is None else event
    if (one is None) == (not all_):
        raise bad("event", "name one event, or say --all")
    return one


app.command("retry", epilog=exits.as_help())(
    _retrying(RETRIED, "Let events be tried again, at once.")
)
app.command("skip", epilog=exits.as_help())(
    _skipping(UNFINISHED, "Count unfinished events as done, for a reason.")
)
letters.command("retry", epilog=exits.as_help())(
    _retrying(("dead",), "Let dead letters be tried again, at once.")
)
letters.command("drop", epilog=exits.as_help())(
    _skipping(("dead",), "Give dead letters up for good, for a reason.")
)


@letters.command("show", epilog=exits.as_help())
def show(  # noqa: PLR0913 - which one
    ctx: typer.Context,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's id.")],
    handler: HandlerName = None,
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Show everything about a dead letter, the event itself too."""
    with _opened(ctx, Common(url, tenant, as_json), registry) as (one, opened):
        found = opened.entries(_asked(one, handler, event, status="dead"))
        for entry in found:
            _show(one, entry)
        if not found:
            msg = f"there is no dead letter of event {event!r:.80}"
            raise NotFound(msg, details={"event_id": event})


def _show(one: Session, entry: Entry) -> None:
    if one.as_json:
        write_json(_with_payload(entry))
        return
    shown = msgspec.to_builtins(entry)
    shown["event"] = msgspec.json.encode(entry.event).decode()
    one.out.print(pairs({name: plain(value) for name, value in shown.items() if value is not None}))


def _with_payload(entry: Entry) -> dict[str, Any]:
    """Return a dead letter whose event has its payload as JSON, not as text."""
    shown = msgspec.structs.asdict(entry)
    event = entry.event
    if isinstance(event, dict) and isinstance(event.get("payload"), str):
        shown["event"] = {**event, "payload": msgspec.Raw(event["payload"].encode())}
    return shown


@app.command("pause", epilog=exits.as_help())
def pause(  # noqa: PLR0913 - whom, and where
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The handler's name.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for those who wonder.")] = "",
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Let a handler claim nothing until it is resumed."""
    with _opened(ctx, Common(url, tenant, as_json), registry) as (_, opened):
        opened.set_status(handler, "paused", reason)


@app.command("resume", epilog=exits.as_help())
def resume(  # noqa: PLR0913 - whom, and where
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The handler's name.")],
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Let a handler go on that was paused or has stopped."""
    with _opened(ctx, Common(url, tenant, as_json), registry) as (_, opened):
        opened.set_status(handler, "ready")


@app.command("reset", epilog=exits.as_help())
def reset(  # noqa: PLR0913 - whom, to what, and why
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The handler's name.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept.")],
    position: Annotated[
        int | None,
        typer.Option(
            "--position",
            min=0,
            help="The head of the log right after its restore. [default: the highest position at "
            "which registry and log hold the same event]",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report.")] = False,
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Let a handler go on with a log that was restored or replaced.

    Entries of events that the log does not hold any more are forgotten. Without --tenant, for every
    tenant that the handler knows. Stop its consumers first.
    """
    with _opened(ctx, Common(url, tenant, as_json), registry) as (one, opened), one.open() as log:
        found = opened.reset(
            handler,
            log,
            reason=reason,
            tenant_id=one.tenant,
            position=position,
            dry_run=dry_run,
        )
        if one.as_json:
            for report in found:
                write_json(report)
            return
        made = table("tenant", "epoch", "position", "forgotten", "streams", right=("position",))
        for report in found:
            lost = ", ".join(f"{status} {count:,}" for status, count in report.forgotten.items())
            made.add_row(
                plain(report.tenant_id),
                str(report.epoch),
                f"{report.position:,}",
                lost or "–",
                f"{report.streams:,}",
            )
        one.out.print(made)


@app.command("prune", epilog=exits.as_help())
def prune(  # noqa: PLR0913 - what to forget
    ctx: typer.Context,
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="The handler's name.")],
    days: Annotated[float, typer.Option(min=0.0, help="Forget what was done before so long.")],
    streamless: Annotated[
        bool,
        typer.Option(
            "--streamless",
            help="Events without a stream too: should one come again, its effect is repeated.",
        ),
    ] = False,
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Forget events that were done long ago; the streams' numbers still tell them."""
    with _opened(ctx, Common(url, tenant, as_json), registry) as (one, opened):
        count = opened.prune(handler, days * 86_400, streamless=streamless)
        if one.as_json:
            write_json({"forgotten": count})
        else:
            one.out.print(f"forgotten: {count:,}")
