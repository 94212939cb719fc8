"""The commands `seriatim project`: run, verify, rebuild and operate read models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any, Literal

import msgspec
import typer
from rich.text import Text

from seriatim.cli import exit_codes
from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogFormatOption,
    LogUrl,
    MetricsAddress,
    Otel,
    TenantOption,
    command_session,
    load_object,
    observe_command,
)
from seriatim.cli.engine_option import (
    WITHOUT_SPARK,
    EngineName,
    EngineOption,
    refuse_spark_options,
)
from seriatim.cli.operations import (
    ActionReason,
    Confirmed,
    confirm_count,
    mark_unrecorded,
    record_command,
)
from seriatim.cli.output import escape_unprintable, format_pairs, make_table, write_json
from seriatim.cli.projection_operations import (
    LocalOperations,
    ProjectionOperations,
    RemoteOperations,
)
from seriatim.cli.spark_session import (
    ArchiveLocation,
    SparkMaster,
    report_job_progress,
    spark_session,
)
from seriatim.config import Settings
from seriatim.core.builtin_folds import BUILTIN_FOLDS
from seriatim.core.errors import NotFound
from seriatim.core.event import DEFAULT_TENANT
from seriatim.core.extras import import_name
from seriatim.core.projection import Projection
from seriatim.core.tenants import ALL_TENANTS
from seriatim.factory import (
    find_read_model,
    is_service,
    open_read_model,
    open_store,
    read_model_url,
    redact_url,
)
from seriatim.log.arguments import invalid_argument
from seriatim.log.operator_journal import check_reason
from seriatim.runs.job_loop import ProgressCallback
from seriatim.runs.local_projection import BATCH_EVENTS, LocalProjection
from seriatim.runs.projection_job import ProjectionJob
from seriatim.runs.projection_runner import run_projection
from seriatim.runs.rebuild import Proof, rebuild_projection, verify_projection
from seriatim.store.readmodel import operations
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import FailureRecord, Progress, ProjectionStanding
from seriatim.telemetry.metrics import JobMetrics

app = typer.Typer(
    no_args_is_help=True,
    help="Read models: run projections, check them and resolve failures.",
)

ProjectionArgument = Annotated[
    str,
    typer.Argument(
        metavar="PROJECTION",
        help="The projection as module:name, or a shipped one: activity, aggregate_states, "
        "decision_graph.",
    ),
]
ProjectionName = Annotated[str, typer.Argument(metavar="NAME", help="The name of the projection.")]
ReadModelUrl = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="URL",
        help="The read model: sqlite:///file or postgresql://…?schema=name. "
        "[default: next to the log]",
        show_default=False,
    ),
]
AllTenants = Annotated[
    bool,
    typer.Option("--all-tenants", help="Process the events of every tenant, in one read model."),
]


@app.command("run", epilog=exit_codes.format_exit_codes())
def run(
    ctx: typer.Context,
    path: ProjectionArgument,
    live: Annotated[
        bool, typer.Option("--live", help="Continue after the end is reached, until Ctrl-C.")
    ] = False,
    batch_events: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The maximum number of events in a batch. [default: 200,000, local 20,000]",
            show_default=False,
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="Spark checkpoint directory. [default: temporary]",
            show_default=False,
        ),
    ] = None,
    target: ReadModelUrl = None,
    all_tenants: AllTenants = False,
    engine: EngineOption = "spark",
    archive: ArchiveLocation = None,
    metrics: MetricsAddress = None,
    otel: Otel = None,
    log_format: LogFormatOption = "text",
    master: SparkMaster = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Update a read model to the end of the log, or with --live keep it up to date."""
    with (
        command_session(ctx, CommonOptions(url, tenant, as_json)) as command,
        observe_command(
            "seriatim-projector", metrics=metrics, otel=otel, log_format=log_format
        ) as job_metrics,
    ):
        read_model = _locate(command, target, all_tenants=all_tenants)
        options = _SparkOptions(master, archive, checkpoint)
        with _open_job(
            command, path, read_model, engine, options, batch_events, job_metrics
        ) as job:
            if live:
                command.notice("following the log; press Ctrl-C to stop")
            progress = run_projection(job, live=live)
            _print_progress(command, [progress], job.store.head(), job.model)


@app.command("rebuild", epilog=exit_codes.format_exit_codes())
def rebuild(
    ctx: typer.Context,
    path: ProjectionArgument,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help="Switch even if the result differs from the existing read model."
        ),
    ] = False,
    reason: ActionReason = "",
    target: ReadModelUrl = None,
    all_tenants: AllTenants = False,
    engine: EngineOption = "spark",
    archive: ArchiveLocation = None,
    master: SparkMaster = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Fold the whole log into a new read model, compare it with the old one, and switch."""
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        read_model = _locate(command, target, all_tenants=all_tenants)
        check_reason(reason)
        options = _SparkOptions(master, archive)
        with _open_job(command, path, read_model, engine, options) as job:
            proof = rebuild_projection(job, accept=accept)
            record_command(
                command,
                "projection_rebuilt",
                {"projection": job.projection.name, "accept": accept},
                reason=reason,
                tenant_id=read_model.tenant_id,
            )
            _print_proof(command, proof)


@app.command("verify", epilog=exit_codes.format_exit_codes())
def verify(
    ctx: typer.Context,
    path: ProjectionArgument,
    target: ReadModelUrl = None,
    all_tenants: AllTenants = False,
    engine: EngineOption = "spark",
    archive: ArchiveLocation = None,
    master: SparkMaster = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Check that a read model equals a fold of its log; otherwise print the first difference."""
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        read_model = _locate(command, target, all_tenants=all_tenants)
        options = _SparkOptions(master, archive)
        with _open_job(command, path, read_model, engine, options) as job:
            proof = verify_projection(job)
        _print_proof(command, proof)
        if not proof.equal:
            raise typer.Exit(exit_codes.FOUND_PROBLEMS)


@app.command("status", epilog=exit_codes.format_exit_codes())
def status(
    ctx: typer.Context,
    target: ReadModelUrl = None,
    all_tenants: AllTenants = False,
    failures: Annotated[
        str | None,
        typer.Option(
            "--failures",
            metavar="NAME",
            help="List the events that this projection could not process.",
            show_default=False,
        ),
    ] = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """List projections with their cursor, lag, runner and number of failures."""
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        if is_service(command.url):
            _print_remote_status(command, target, failures)
            return
        read_model = _locate(command, target, all_tenants=all_tenants)
        with closing(open_store(command.url, Settings(), create=False)) as store:
            head = store.head()
        model = find_read_model(read_model.target)
        if model is None and failures is None:
            _print_progress(command, [], head, None)
            return
        with closing(model or _raise_no_projections(read_model.target)) as open_model:
            if failures is not None:
                _print_failures(command, operations.find_failures(open_model, failures))
            else:
                _print_progress(command, open_model.list_progress(), head, open_model)


def _raise_no_projections(target: str) -> ReadModel:
    raise NotFound(
        f"there are no projections at {redact_url(target)}: start one with seriatim project run"
    )


def _print_remote_status(command: CommandSession, target: str | None, failures: str | None) -> None:
    """Print the projections that a service keeps next to its log."""
    _refuse_target(target)
    with command.open() as log:
        if failures is not None:
            _print_failures(command, log.projections.failures(failures))
            return
        standings = log.projections.status()
    rows = [_make_row(standing) for standing in standings]
    if command.as_json:
        write_json(rows)
        return
    _print_rows(command, rows)


def _make_row(standing: ProjectionStanding) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(standing) | {"status": _describe_status(standing)}
    del row["held_until"]  # it is part of the status
    return row


def _make_command(action: Literal["pause", "resume"], result: str) -> Callable[..., None]:
    def run_operation(
        ctx: typer.Context,
        name: ProjectionName,
        reason: ActionReason = "",
        target: ReadModelUrl = None,
        all_tenants: AllTenants = False,
        url: LogUrl = None,
        tenant: TenantOption = None,
        as_json: JsonOutput = False,
    ) -> None:
        with _open_operations(ctx, CommonOptions(url, tenant, as_json), target, all_tenants) as (
            command,
            projections,
        ):
            recorded = getattr(projections, action)(name, reason)
            _print_result(command, name, result, recorded)

    return run_operation


app.command(
    "pause",
    epilog=exit_codes.format_exit_codes(),
    help="Stop a projection at its current position.",
)(_make_command("pause", "paused"))
app.command("resume", epilog=exit_codes.format_exit_codes(), help="Resume a paused projection.")(
    _make_command("resume", "resumed; the current or next run continues")
)


@app.command("retry", epilog=exit_codes.format_exit_codes())
def retry(
    ctx: typer.Context,
    name: ProjectionName,
    position: Annotated[
        int | None,
        typer.Argument(
            metavar="POSITION", help="The position of the event. [default: all failed events]"
        ),
    ] = None,
    reason: ActionReason = "",
    yes: Confirmed = False,
    target: ReadModelUrl = None,
    all_tenants: AllTenants = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Retry failed events, in the current run or the next one."""
    with _open_operations(ctx, CommonOptions(url, tenant, as_json), target, all_tenants) as (
        command,
        projections,
    ):
        check_reason(reason, required=position is None)
        expected = None
        if position is None:
            expected = projections.count_retryable(name)
            question = f"retry {expected:,} failures"
            confirm_count(command, question, expected, confirmed=yes)
        count, recorded = projections.retry(name, position, reason, expected)
        result = f"{count} to be retried by the current or next run"
        _print_result(command, name, result, recorded)


@app.command("skip", epilog=exit_codes.format_exit_codes())
def skip(
    ctx: typer.Context,
    name: ProjectionName,
    position: Annotated[int, typer.Argument(metavar="POSITION", help="The position of the event.")],
    reason: ActionReason = "",
    target: ReadModelUrl = None,
    all_tenants: AllTenants = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Skip a failed event, now and in every rebuild; its key continues with later events."""
    with _open_operations(ctx, CommonOptions(url, tenant, as_json), target, all_tenants) as (
        command,
        projections,
    ):
        recorded = projections.skip(name, position, reason)
        _print_result(command, name, f"skips position {position}", recorded)


class _ReadModelLocation(msgspec.Struct, frozen=True):
    """The tenant of a read model and the URL of its database."""

    tenant_id: str
    target: str


def _locate(
    command: CommandSession, target: str | None, *, all_tenants: bool
) -> _ReadModelLocation:
    if all_tenants and command.tenant is not None:
        raise invalid_argument("tenant", "cannot be combined with --all-tenants")
    tenant_id = ALL_TENANTS if all_tenants else command.tenant or DEFAULT_TENANT
    return _ReadModelLocation(tenant_id, target or read_model_url(command.url, tenant_id))


@contextmanager
def _open_operations(
    ctx: typer.Context, common: CommonOptions, target: str | None, all_tenants: bool
) -> Iterator[tuple[CommandSession, ProjectionOperations]]:
    """Open the projections of a service, or those of a read model in a database."""
    with command_session(ctx, common) as command:
        if is_service(command.url):
            _refuse_target(target, all_tenants=all_tenants)
            with command.open() as log:
                yield command, RemoteOperations(log.projections, command)
            return
        read_model = _locate(command, target, all_tenants=all_tenants)
        model = find_read_model(read_model.target) or _raise_no_projections(read_model.target)
        with closing(model):
            yield command, LocalOperations(model, read_model.tenant_id, command)


def _refuse_target(target: str | None, *, all_tenants: bool = False) -> None:
    if target is not None or all_tenants:
        raise invalid_argument(
            "target" if target is not None else "all-tenants",
            "cannot be given for a service, which knows its read models: leave it out",
        )


class _SparkOptions(msgspec.Struct, frozen=True):
    """The options that only Spark has."""

    master: str | None = None
    archive: str | None = None
    checkpoint: str | None = None


@contextmanager
def _open_job(
    command: CommandSession,
    path: str,
    read_model: _ReadModelLocation,
    engine: EngineName,
    options: _SparkOptions,
    batch_events: int | None = None,
    metrics: JobMetrics | None = None,
) -> Iterator[ProjectionJob]:
    """Open a projection on the chosen engine, and report its progress."""
    projection = load_projection(path)
    if engine == "local":
        refuse_spark_options(**msgspec.structs.asdict(options))
        with report_job_progress(command, projection.name, metrics) as report:
            yield from _open_local_job(command, projection, read_model, batch_events, report)
        return
    with spark_session(command, options.master, alternative=WITHOUT_SPARK) as spark:
        # Imported here, so that only commands that run on Spark need the extra and wait for it.
        from seriatim.pipeline.project.job import BATCH_EVENTS as SPARK_BATCH_EVENTS
        from seriatim.pipeline.project.projector import Projector

        with (
            report_job_progress(command, projection.name, metrics) as report,
            Projector(
                spark,
                projection,
                command.url,
                target=read_model.target,
                tenant_id=read_model.tenant_id,
                archive=options.archive,
                batch_events=batch_events or SPARK_BATCH_EVENTS,
                on_progress=report,
            ) as job,
        ):
            job.checkpoint = options.checkpoint
            yield job


def _open_local_job(
    command: CommandSession,
    projection: Projection,
    read_model: _ReadModelLocation,
    batch_events: int | None,
    report: ProgressCallback,
) -> Iterator[ProjectionJob]:
    with (
        closing(open_store(command.url, Settings(), create=False)) as store,
        closing(open_read_model(read_model.target)) as model,
    ):
        yield LocalProjection(
            projection,
            store,
            model,
            tenant_id=read_model.tenant_id,
            batch_events=batch_events or BATCH_EVENTS,
            on_progress=report,
        )


def load_projection(path: str) -> Projection:
    """Return the projection `module:name`, or a shipped one by its name.

    Raises:
        InvalidArgument: If there is no such projection.

    """
    if ":" not in path:
        return _load_shipped(path)
    projection = load_object(path, "projection")
    if not isinstance(projection, Projection):
        raise invalid_argument(
            "projection", f"{path!r:.80} is not a projection: decorate it with @seriatim.projection"
        )
    return projection


def _load_shipped(name: str) -> Projection:
    for fold in BUILTIN_FOLDS:
        if fold.name == name:
            return fold
    shipped = f"activity, {', '.join(fold.name for fold in BUILTIN_FOLDS)}"
    if name not in shipped.split(", "):
        raise invalid_argument("projection", f"{name!r:.80} is not a shipped projection: {shipped}")
    # Imported here, because it needs the extra `spark`: it is a DataFrame transformation.
    activity: Projection = import_name("seriatim.pipeline.builtin_projections", name)
    return activity


# -- output


def _print_result(command: CommandSession, name: str, result: str, recorded: bool) -> None:
    if command.as_json:
        write_json(mark_unrecorded({"projection": name, "done": result}, recorded))
    else:
        command.stdout.print(Text(escape_unprintable(f"{name}: {result}")))


def _print_progress(
    command: CommandSession, projections: list[Progress], head: int, model: ReadModel | None
) -> None:
    rows = [
        {
            "projection": progress.name + (" (rebuild)" if progress.shadow else ""),
            "tenant": progress.tenant_id,
            "position": progress.position,
            "lag": max(0, head - progress.position),
            "status": _describe_status(progress),
            "running": bool(progress.owner),
            "failures": len(model.failures(progress.name, shadow=progress.shadow)) if model else 0,
            "updated_at": progress.updated_at,
        }
        for progress in projections
    ]
    if command.as_json:
        write_json(rows)
        return
    _print_rows(command, rows)


def _print_rows(command: CommandSession, rows: list[dict[str, Any]]) -> None:
    if not rows:
        command.notice("no projections")
        return
    listing = make_table(*rows[0], right=("position", "lag", "failures"))
    for row in rows:
        # `type` and not `isinstance`: a bool must not be formatted as a number.
        cells = (f"{value:,}" if type(value) is int else value for value in row.values())
        listing.add_row(*map(escape_unprintable, cells))
    command.stdout.print(listing)


def _describe_status(progress: Progress | ProjectionStanding) -> str:
    """Return the status, or the end of the hold by a running rebuild or verification."""
    if progress.status == "ready" and progress.held_until is not None:
        return f"held until {progress.held_until}"
    return progress.status


def _print_failures(command: CommandSession, failures: list[FailureRecord]) -> None:
    if command.as_json:
        write_json(failures)
        return
    listing = make_table(
        "position", "key", "event", "type", "status", "reason", right=("position",)
    )
    for record in failures:
        failure = record.failure
        listing.add_row(
            str(failure.position),
            escape_unprintable(failure.key),
            escape_unprintable(failure.event_id),
            escape_unprintable(failure.event_type),
            record.status + (", to be retried" if record.again else ""),
            escape_unprintable(failure.reason),
        )
    command.stdout.print(listing)


def _print_proof(command: CommandSession, proof: Proof) -> None:
    if command.as_json:
        fields = msgspec.to_builtins(proof, str_keys=True)
        write_json({**fields, "equal": proof.equal})
        return
    summary: dict[str, object] = {
        "projection": proof.projection,
        "position": f"{proof.position:,}",
        "rows": f"{proof.rows:,}",
        "from the log": proof.digest,
    }
    if proof.stored_digest is not None:
        summary["read model"] = proof.stored_digest
    if proof.difference is not None:
        summary["first difference"] = f"table {proof.difference.table}, key {proof.difference.key}"
        summary["stored"] = proof.difference.stored
        summary["expected"] = proof.difference.expected
    command.stdout.print(format_pairs(summary))
    verdict = "[green]equal[/]" if proof.equal else "[bold red]different[/]"
    command.stdout.print(f"{verdict}{', switched' if proof.switched else ''}")
