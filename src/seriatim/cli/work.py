"""The command `seriatim work`: run a handler on Spark for the events of the log or of Kafka."""

from __future__ import annotations

from typing import Annotated, cast

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
from seriatim.config import default_url
from seriatim.config.delivery import OnOutage, load_registry_settings, load_retry_limits
from seriatim.core.handler import Handler, check_handler
from seriatim.log.arguments import invalid_argument

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
        int, typer.Option(min=1, help="The maximum number of events in a batch.")
    ] = 50_000,
    on_outage: OutagePolicy = "pause",
    dead_letters: DeadLetterUrl = None,
    role: RetryRole = None,
    redeclare: Redeclare = False,
    kafka: KafkaSettings = None,
    kafka_config: KafkaSettingsFile = None,
    all_tenants: AllTenants = False,
    metrics: MetricsAddress = None,
    otel: Otel = None,
    log_format: LogFormatOption = "text",
    master: SparkMaster = None,
    conf: SparkSettings = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Run a handler up to the end of the log or of a topic, on Spark.

    Each event has one effect, in spite of duplicates, crashes and other workers.
    """
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        handler = load_handler(path, role)
        tenant_id = select_tenant(command, all_tenants=all_tenants)
        target = None if source is None else parse_kafka_target(source, kafka, kafka_config)
        dead_letter_target = (
            None if dead_letters is None else parse_kafka_target(dead_letters, kafka, kafka_config)
        )
        settings = load_registry_settings(on_outage=cast("OnOutage", on_outage))  # checked there
        if not settings.enabled:
            command.notice("the registry is disabled: duplicates and crashes will repeat effects")
        log_url = command.url if source is None else command.explicit_url or default_url()
        with (
            observe_command(
                "seriatim-worker", metrics=metrics, otel=otel, log_format=log_format
            ) as job_metrics,
            spark_session(command, master, conf) as spark,
            report_job_progress(command, handler.name, job_metrics) as report,
        ):
            from seriatim.pipeline.work.worker import Worker

            with Worker(
                spark,
                handler,
                url=log_url,
                source=target,
                registry=registry,
                tenant_id=tenant_id,
                settings=settings,
                dead_letters=dead_letter_target,
                batch_events=batch_events,
                redeclare=redeclare,
                on_progress=report,
                metrics=job_metrics,
            ) as worker:
                if live:
                    command.notice("following the source; press Ctrl-C to stop")
                counts = worker.run(live=live)
        _print_summary(command, {"handler": handler.name, **msgspec.to_builtins(counts)})


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
