"""The command `seriatim work`: run a handler for the events of the log or of Kafka."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
import typer

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
from seriatim.cli.output import format_pairs, write_json
from seriatim.cli.publish import (
    AllTenants,
    KafkaSettings,
    KafkaSettingsFile,
    parse_kafka_target,
    select_tenant,
)
from seriatim.cli.registry import RegistryUrl
from seriatim.cli.spark_session import (
    SparkMaster,
    SparkSettings,
    report_job_progress,
    spark_session,
)
from seriatim.config import Settings, default_url
from seriatim.config.delivery import (
    OnOutage,
    RegistrySettings,
    load_registry_settings,
    load_retry_limits,
)
from seriatim.core.handler import Handler, check_handler
from seriatim.delivery.entries import DeadLetterTarget
from seriatim.delivery.handler_loop import Counts
from seriatim.delivery.handler_runner import HandlerJob, check_outage_options, run_handler
from seriatim.delivery.local_handler import BATCH_EVENTS, LocalHandler
from seriatim.factory import open_registry, open_store, registry_url
from seriatim.log.arguments import invalid_argument
from seriatim.runs.job_loop import ProgressCallback
from seriatim.telemetry.metrics import JobMetrics

if TYPE_CHECKING:
    from seriatim.pipeline.kafka.address import Target

_ROLES = ("instance_worker", "ontology_worker", "projection_worker")


HandlerArgument = Annotated[
    str, typer.Argument(metavar="HANDLER", help="The handler as module:name.")
]
SourceUrl = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="URL",
        help="kafka://host:port/topic. [default: the log itself]",
        show_default=False,
    ),
]
DeadLetterUrl = Annotated[
    str | None,
    typer.Option(
        "--dead-letters",
        metavar="URL",
        help="Also send dead letters to kafka://host:port/topic.",
        show_default=False,
    ),
]
OutagePolicy = Annotated[
    str,
    typer.Option(
        help="While the registry is unavailable: pause waits, fail_fast ends with an error, dlq "
        "sends events to --dead-letters and continues."
    ),
]
RetryRole = Annotated[
    str | None,
    typer.Option(
        help="Use the number of attempts that the environment sets for a role: "
        f"{', '.join(_ROLES)}."
    ),
]
Redeclare = Annotated[
    bool,
    typer.Option(
        "--redeclare",
        help="Accept a change of the handler's effect, events, stream types, mode or start.",
    ),
]


def work(
    ctx: typer.Context,
    path: HandlerArgument,
    source: SourceUrl = None,
    registry: RegistryUrl = None,
    live: Annotated[
        bool, typer.Option("--live", help="Continue after the end is reached, until Ctrl-C.")
    ] = False,
    batch_events: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The maximum number of events in a batch. [default: 50,000, local 5,000]",
            show_default=False,
        ),
    ] = None,
    on_outage: OutagePolicy = "pause",
    dead_letters: DeadLetterUrl = None,
    role: RetryRole = None,
    redeclare: Redeclare = False,
    kafka: KafkaSettings = None,
    kafka_config: KafkaSettingsFile = None,
    all_tenants: AllTenants = False,
    engine: EngineOption = "spark",
    metrics: MetricsAddress = None,
    otel: Otel = None,
    log_format: LogFormatOption = "text",
    master: SparkMaster = None,
    conf: SparkSettings = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Run a handler up to the end of the log or of a topic.

    Each event has one effect, in spite of duplicates, crashes and other workers.
    """
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        if engine == "local":
            _refuse_spark(source, master, conf)
        handler = load_handler(path, role)
        tenant_id = select_tenant(command, all_tenants=all_tenants)
        settings = load_registry_settings(on_outage=cast("OnOutage", on_outage))  # checked there
        options = _WorkOptions(
            handler=handler,
            source=None if source is None else parse_kafka_target(source, kafka, kafka_config),
            registry=registry,
            tenant_id=tenant_id,
            settings=settings,
            dead_letters=None
            if dead_letters is None
            else parse_kafka_target(dead_letters, kafka, kafka_config),
            batch_events=batch_events,
            redeclare=redeclare,
        )
        if not settings.enabled:
            command.notice("the registry is disabled: duplicates and crashes will repeat effects")
        with (
            observe_command(
                "seriatim-worker", metrics=metrics, otel=otel, log_format=log_format
            ) as job_metrics,
            _open_job(command, engine, options, master, conf, job_metrics) as job,
        ):
            if live:
                command.notice("following the source; press Ctrl-C to stop")
            counts = _run_job(job, engine, live=live)
        _print_summary(command, {"handler": handler.name, **msgspec.to_builtins(counts)})


def _refuse_spark(source: str | None, master: str | None, conf: list[str] | None) -> None:
    """Raise `InvalidArgument` for what only Spark can do."""
    refuse_spark_options(master=master, conf=conf)
    if source is not None:
        raise invalid_argument(
            "from", "a topic needs Spark: leave out --engine local, or read the log"
        )


class _WorkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, on either engine."""

    handler: Handler
    source: Target | None
    registry: str | None
    tenant_id: str | None
    settings: RegistrySettings
    dead_letters: Target | None
    batch_events: int | None
    redeclare: bool


@contextmanager
def _open_job(
    command: CommandSession,
    engine: EngineName,
    options: _WorkOptions,
    master: str | None,
    conf: list[str] | None,
    metrics: JobMetrics | None,
) -> Iterator[HandlerJob[Any]]:
    """Open the handler on the chosen engine, and report its progress."""
    name = options.handler.name
    if engine == "local":
        with report_job_progress(command, name, metrics) as report:
            yield from _open_local_job(command, options, report, metrics)
        return
    log_url = command.url if options.source is None else command.explicit_url or default_url()
    with (
        spark_session(command, master, conf, alternative=WITHOUT_SPARK) as spark,
        report_job_progress(command, name, metrics) as report,
    ):
        from seriatim.pipeline.work.worker import BATCH_EVENTS as SPARK_BATCH_EVENTS
        from seriatim.pipeline.work.worker import Worker

        with Worker(
            spark,
            options.handler,
            url=log_url,
            source=options.source,
            registry=options.registry,
            tenant_id=options.tenant_id,
            settings=options.settings,
            dead_letters=options.dead_letters,
            batch_events=options.batch_events or SPARK_BATCH_EVENTS,
            redeclare=options.redeclare,
            on_progress=report,
            metrics=metrics,
        ) as worker:
            yield worker


def _open_local_job(
    command: CommandSession,
    options: _WorkOptions,
    report: ProgressCallback,
    metrics: JobMetrics | None,
) -> Iterator[LocalHandler]:
    dead_letters: DeadLetterTarget | None = None
    if options.dead_letters is not None:
        from seriatim.pipeline.kafka.client import DeadLetterTopic

        dead_letters = DeadLetterTopic(options.dead_letters)
    check_outage_options(
        options.handler, options.settings, has_dead_letter_target=dead_letters is not None
    )
    registry_at = options.registry or registry_url(command.url)
    with (
        closing(open_store(command.url, Settings(), create=False)) as store,
        closing(open_registry(registry_at, options.settings)) as registry,
        closing(
            LocalHandler(
                options.handler,
                store,
                registry,
                tenant_id=options.tenant_id,
                batch_events=options.batch_events or BATCH_EVENTS,
                redeclare=options.redeclare,
                dead_letters=dead_letters,
                on_progress=report,
                metrics=metrics,
            )
        ) as job,
    ):
        yield job


def _run_job(job: HandlerJob[Any], engine: EngineName, *, live: bool) -> Counts:
    """Run the handler; on the local engine a first signal lets the running effect end."""
    if engine == "spark":
        return run_handler(job, live=live)
    signals: list[int] = []

    def note(number: int, frame: Any) -> None:
        if signals:
            signal.default_int_handler(number, frame)
        signals.append(number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        counts = run_handler(job, live=live, until=lambda: bool(signals))
    finally:
        for number, handle in previous.items():
            signal.signal(number, handle)
    if signals:
        raise KeyboardInterrupt
    return counts


def _print_summary(command: CommandSession, summary: dict[str, object]) -> None:
    if command.as_json:
        write_json(summary)
    else:
        command.stdout.print(format_pairs(summary))


def load_handler(path: str, role: str | None = None) -> Handler:
    """Return the handler `module:name`.

    Args:
        path: The handler as `module:name`.
        role: A role whose configured number of attempts replaces that of the handler.

    Raises:
        InvalidArgument: If there is no such handler or role.

    """
    handler = load_object(path, "handler")
    if not isinstance(handler, Handler):
        raise invalid_argument(
            "handler", f"{path!r:.80} is not a handler: decorate it with @seriatim.handler"
        )
    if role is None:
        return handler
    if role not in _ROLES:
        raise invalid_argument("role", f"must be one of {', '.join(_ROLES)}")
    policy = msgspec.structs.replace(handler.retry, attempts=getattr(load_retry_limits(), role))
    return check_handler(msgspec.structs.replace(handler, retry=policy))
