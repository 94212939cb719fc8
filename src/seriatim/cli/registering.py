"""`seriatim registry` and `seriatim dlq`: what handlers have done, and what waits for people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import msgspec
import typer

from seriatim.cli import exits
from seriatim.cli.output import pairs, plain, table, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.delivery.entries import Asked, Entry
from seriatim.delivery.registry import Registry
from seriatim.log.arguments import bad
from seriatim.opening import open_registry, registry_url

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
EventKind = Annotated[
    str | None, typer.Option("--type", help="Only events of this type.", show_default=False)
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
) -> Iterator[tuple[Session, Registry]]:
    with session(ctx, common) as one:
        place = registry or registry_url(one.url)
        with closing(open_registry(place, create=False)) as opened:
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
            write_json({"handlers": handlers, "counts": counts})
            return
        made = table("handler", "runs", "status", "events", "first", right=("events", "first"))
        for handler in handlers:
            mine = [count for count in counts if count.handler == handler.name]
            name, said = plain(handler.name), plain(f"{handler.status} {handler.reason}".strip())
            if not mine:
                made.add_row(name, said, "nothing open", "0", "–")
            for count in mine:
                cells = (count.status, f"{count.count:,}", f"{count.first_position:,}")
                made.add_row(name, said, *cells)
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
                write_json(entry)
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
            _check_meant(event, all_)
            asked = _asked(one, handler, event, kind, stream, status=statuses)
            _done(one, "retried", opened.retry(asked))

    command.__doc__ = what
    return command


def _skipping(statuses: tuple[str, ...], what: str) -> Any:
    def command(  # noqa: PLR0913 - the filters
        ctx: typer.Context,
        reason: Reason,
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
            _check_meant(event, all_)
            asked = _asked(one, handler, event, kind, stream, status=statuses)
            _done(one, "skipped", opened.skip(asked, reason))

    command.__doc__ = what
    return command


def _check_meant(event: str | None, all_: bool) -> None:
    if (event is None) == (not all_):
        raise bad("event", "name one event, or say --all")


app.command("retry", epilog=exits.as_help())(
    _retrying(("failed", "dead", "unknown"), "Let events be tried again, at once.")
)
app.command("skip", epilog=exits.as_help())(
    _skipping(
        ("claimed", "failed", "blocked", "dead", "unknown"),
        "Count unfinished events as done, for a reason.",
    )
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
            raise typer.Exit(exits.FOUND_PROBLEMS)


def _show(one: Session, entry: Entry) -> None:
    if one.as_json:
        write_json(entry)
        return
    shown = msgspec.to_builtins(entry)
    shown["event"] = msgspec.json.encode(entry.event).decode()
    one.out.print(pairs({name: plain(value) for name, value in shown.items() if value is not None}))


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
