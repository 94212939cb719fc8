"""`seriatim project`: run, prove, rebuild and mend the read models of a log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.text import Text

from seriatim.cli import exits
from seriatim.cli.declared import declared
from seriatim.cli.observing import LogFormat, MetricsAt, Otel, observed
from seriatim.cli.output import pairs, plain, table, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.cli.sparking import ArchiveAt, Master, spark_session, watching
from seriatim.config import Settings
from seriatim.core.errors import NotFound
from seriatim.core.event import DEFAULT_TENANT
from seriatim.core.projection import Projection
from seriatim.core.tenants import EVERY_TENANT
from seriatim.log.arguments import bad
from seriatim.opening import (
    find_read_model,
    is_service,
    open_store,
    read_model_url,
    shown_url,
)
from seriatim.store.readmodel import operating
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import FailureRecord, Progress, Standing
from seriatim.telemetry.job_metrics import JobMetrics

if TYPE_CHECKING:
    from seriatim.pipeline.project.projector import Projector
    from seriatim.pipeline.project.rebuilding import Proof

app = typer.Typer(
    no_args_is_help=True,
    help="Read models of the log: projections on Spark, and what they have come to.",
)

What = Annotated[
    str,
    typer.Argument(
        metavar="PROJECTION",
        help="Where it is declared, as module:name; or a shipped one: activity, "
        "aggregate_states, decision_graph.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The projection's name.")]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="URL",
        help="Where the read model is: sqlite:///file or postgresql://…?schema=name. "
        "[default: beside the log]",
        show_default=False,
    ),
]
AllTenants = Annotated[
    bool, typer.Option("--all-tenants", help="Of every tenant, in one read model.")
]


@app.command("run", epilog=exits.as_help())
def run(  # noqa: PLR0913 - what to run, and how
    ctx: typer.Context,
    what: What,
    live: Annotated[bool, typer.Option("--live", help="Go on when the end is reached.")] = False,
    batch_events: Annotated[
        int, typer.Option(min=1, help="How many events a batch has at most.")
    ] = 200_000,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="A folder for Spark's own notes. [default: one that is thrown away]",
            show_default=False,
        ),
    ] = None,
    target: Target = None,
    all_tenants: AllTenants = False,
    archive: ArchiveAt = None,
    metrics: MetricsAt = None,
    otel: Otel = None,
    log_format: LogFormat = "text",
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Bring a read model up to the end of the log, or keep it there."""
    with (
        session(ctx, Common(url, tenant, as_json)) as one,
        observed(
            "seriatim-projector", metrics=metrics, otel=otel, log_format=log_format
        ) as shown_there,
    ):
        place = _place(one, target, all_tenants=all_tenants)
        with _projector(one, what, place, master, archive, batch_events, shown_there) as job:
            if live:
                one.notice("following the log; Ctrl-C stops")
            progress = job.run(live=live, checkpoint=checkpoint)
            _show_progress(one, [progress], job.store.head(), job.model)


@app.command("rebuild", epilog=exits.as_help())
def rebuild(  # noqa: PLR0913 - what to rebuild, and how
    ctx: typer.Context,
    what: What,
    accept: Annotated[
        bool, typer.Option("--accept", help="Switch although it differs from what is there.")
    ] = False,
    target: Target = None,
    all_tenants: AllTenants = False,
    archive: ArchiveAt = None,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Fold the whole log anew beside the old read model, compare, and switch at once."""
    with session(ctx, Common(url, tenant, as_json)) as one:
        place = _place(one, target, all_tenants=all_tenants)
        with _projector(one, what, place, master, archive) as job:
            _show_proof(one, job.rebuild(accept=accept))


@app.command("verify", epilog=exits.as_help())
def verify(  # noqa: PLR0913 - what to verify, and where
    ctx: typer.Context,
    what: What,
    target: Target = None,
    all_tenants: AllTenants = False,
    archive: ArchiveAt = None,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Prove that a read model equals a fold of its log, or name the first difference."""
    with session(ctx, Common(url, tenant, as_json)) as one:
        place = _place(one, target, all_tenants=all_tenants)
        with _projector(one, what, place, master, archive) as job:
            proof = job.verify()
        _show_proof(one, proof)
        if not proof.equal:
            raise typer.Exit(exits.FOUND_PROBLEMS)


@app.command("status", epilog=exits.as_help())
def status(  # noqa: PLR0913 - of what, and where
    ctx: typer.Context,
    target: Target = None,
    all_tenants: AllTenants = False,
    failures: Annotated[
        str | None,
        typer.Option(
            "--failures",
            metavar="NAME",
            help="Show the events that this projection could not take.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Show every projection: how far it is, how far behind, who runs it, and what failed."""
    with session(ctx, Common(url, tenant, as_json)) as one:
        if is_service(one.url):
            _show_served(one, target, failures)
            return
        place = _place(one, target, all_tenants=all_tenants)
        with closing(open_store(one.url, Settings(), create=False)) as store:
            head = store.head()
        model = find_read_model(place.target)
        if model is None and failures is None:
            _show_progress(one, [], head, None)
            return
        with closing(model or _no_projections(place.target)) as known:
            if failures is not None:
                _show_failures(one, operating.failures(known, failures))
            else:
                _show_progress(one, known.every(), head, known)


def _no_projections(target: str) -> ReadModel:
    raise NotFound(f"there are no projections at {shown_url(target)}: seriatim project run")


def _show_served(one: Session, target: str | None, failures: str | None) -> None:
    """Show the projections beside the log that a service serves."""
    if target is not None:
        raise bad("target", "is where a service has it: leave it out")
    with one.open() as log:
        if failures is not None:
            _show_failures(one, log.projections.failures(failures))
            return
        standings = log.projections.status()
    shown = [_shown(standing) for standing in standings]
    if one.as_json:
        write_json(shown)
        return
    _print_rows(one, shown)


def _shown(standing: Standing) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(standing) | {"status": _status(standing)}
    del row["held_until"]  # the status has it
    return row


def _acts(act: Callable[[ReadModel, str], object], said: str) -> Callable[..., None]:
    def command(  # noqa: PLR0913 - of what, and where
        ctx: typer.Context,
        name: Name,
        target: Target = None,
        all_tenants: AllTenants = False,
        url: Url = None,
        tenant: Tenant = None,
        as_json: AsJson = False,
    ) -> None:
        with _operated(ctx, Common(url, tenant, as_json), target, all_tenants) as (one, model):
            act(model, name)
            _say(one, name, said)

    return command


app.command("pause", epilog=exits.as_help(), help="Hold a projection where it is.")(
    _acts(operating.pause, "paused")
)
app.command("resume", epilog=exits.as_help(), help="Let a paused projection go on.")(
    _acts(operating.resume, "goes on with the next run, or the one at work")
)


@app.command("retry", epilog=exits.as_help())
def retry(  # noqa: PLR0913 - of what, and where
    ctx: typer.Context,
    name: Name,
    position: Annotated[
        int | None,
        typer.Argument(metavar="POSITION", help="Of the event. [default: all that failed]"),
    ] = None,
    target: Target = None,
    all_tenants: AllTenants = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Try events that failed again, in the next run or the one at work."""
    with _operated(ctx, Common(url, tenant, as_json), target, all_tenants) as (one, model):
        count = operating.retry(model, name, position)
        _say(one, name, f"{count} to be tried again by the next run, or the one at work")


@app.command("skip", epilog=exits.as_help())
def skip(  # noqa: PLR0913 - of what, and where
    ctx: typer.Context,
    name: Name,
    position: Annotated[int, typer.Argument(metavar="POSITION", help="Of the event.")],
    target: Target = None,
    all_tenants: AllTenants = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Pass over an event that failed, now and in every rebuild; its key goes on after it."""
    with _operated(ctx, Common(url, tenant, as_json), target, all_tenants) as (one, model):
        operating.skip(model, name, position)
        _say(one, name, f"passes over position {position}")


class _Place(msgspec.Struct, frozen=True):
    tenant_id: str
    target: str


def _place(one: Session, target: str | None, *, all_tenants: bool) -> _Place:
    if all_tenants and one.tenant is not None:
        raise bad("tenant", "and --all-tenants exclude each other")
    tenant_id = EVERY_TENANT if all_tenants else one.tenant or DEFAULT_TENANT
    return _Place(tenant_id, target or read_model_url(one.url, tenant_id))


@contextmanager
def _operated(
    ctx: typer.Context, common: Common, target: str | None, all_tenants: bool
) -> Iterator[tuple[Session, ReadModel]]:
    with session(ctx, common) as one:
        place = _place(one, target, all_tenants=all_tenants)
        model = find_read_model(place.target) or _no_projections(place.target)
        with closing(model):
            yield one, model


@contextmanager
def _projector(  # noqa: PLR0913 - what runs where
    one: Session,
    what: str,
    place: _Place,
    master: str | None,
    archive: str | None,
    batch_events: int = 200_000,
    metrics: JobMetrics | None = None,
) -> Iterator[Projector]:
    wanted = load_projection(what)
    with spark_session(one, master) as spark:
        from seriatim.pipeline.project.projector import Projector  # noqa: PLC0415 - an extra

        with (
            watching(one, wanted.name, metrics) as watch,
            Projector(
                spark,
                wanted,
                one.url,
                target=place.target,
                tenant_id=place.tenant_id,
                archive=archive,
                batch_events=batch_events,
            ) as job,
        ):
            job.watcher = watch
            yield job


def load_projection(what: str) -> Projection:
    """Find a projection by module:name, or a shipped one by its name."""
    if ":" not in what:
        from seriatim.pipeline.shipped import SHIPPED  # noqa: PLC0415 - an extra

        if what in SHIPPED:
            return SHIPPED[what]
        raise bad("projection", f"{what!r:.80} is none that is shipped: {', '.join(SHIPPED)}")
    found = declared(what, "projection")
    if not isinstance(found, Projection):
        raise bad("projection", f"{what!r:.80} is no projection: decorate its fold")
    return found


# -- showing


def _say(one: Session, name: str, said: str) -> None:
    if one.as_json:
        write_json({"projection": name, "done": said})
    else:
        one.out.print(Text(plain(f"{name}: {said}")))


def _show_progress(one: Session, every: list[Progress], head: int, model: ReadModel | None) -> None:
    shown = [
        {
            "projection": progress.name + (" (rebuild)" if progress.shadow else ""),
            "tenant": progress.tenant_id,
            "position": progress.position,
            "lag": max(0, head - progress.position),
            "status": _status(progress),
            "running": bool(progress.owner),
            "failures": len(model.failures(progress.name, shadow=progress.shadow)) if model else 0,
            "updated_at": progress.updated_at,
        }
        for progress in every
    ]
    if one.as_json:
        write_json(shown)
        return
    _print_rows(one, shown)


def _print_rows(one: Session, rows: list[dict[str, Any]]) -> None:
    if not rows:
        one.notice("no projections")
        return
    made = table(*rows[0], right=("position", "lag", "failures"))
    for row in rows:
        made.add_row(*(plain(f"{v:,}" if type(v) is int else v) for v in row.values()))
    one.out.print(made)


def _status(progress: Progress | Standing) -> str:
    """Return the status, and whether a rebuild or verification holds the projection for now."""
    if progress.status == "ready" and progress.held_until is not None:
        return f"held until {progress.held_until}"
    return progress.status


def _show_failures(one: Session, found: list[FailureRecord]) -> None:
    if one.as_json:
        write_json(found)
        return
    made = table("position", "key", "event", "type", "status", "reason", right=("position",))
    for record in found:
        failure = record.failure
        made.add_row(
            str(failure.position),
            plain(failure.key),
            plain(failure.event_id),
            plain(failure.event_type),
            record.status + (", again" if record.again else ""),
            plain(failure.reason),
        )
    one.out.print(made)


def _show_proof(one: Session, proof: Proof) -> None:
    if one.as_json:
        shown = msgspec.to_builtins(proof, str_keys=True)
        write_json({**shown, "equal": proof.equal})
        return
    said: dict[str, object] = {
        "projection": proof.projection,
        "position": f"{proof.position:,}",
        "rows": f"{proof.rows:,}",
        "from the log": proof.digest,
    }
    if proof.stored_digest is not None:
        said["read model"] = proof.stored_digest
    if proof.difference is not None:
        said["first difference"] = f"table {proof.difference.table}, key {proof.difference.key}"
        said["stored"] = proof.difference.stored
        said["expected"] = proof.difference.expected
    one.out.print(pairs(said))
    verdict = "[green]equal[/]" if proof.equal else "[bold red]different[/]"
    one.out.print(f"{verdict}{', switched' if proof.switched else ''}")
