"""The command `seriatim work`: run a handler on Spark for the events of the log or of Kafka."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from seriatim.cli.declared import declared
from seriatim.cli.observing import LogFormat, MetricsAt, Otel, observed
from seriatim.cli.output import pairs, write_json
from seriatim.cli.publishing import AllTenants, KafkaConf, KafkaFile, kafka_target, whose
from seriatim.cli.registering import RegistryAt
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.cli.sparking import (
    Master,
    SparkConf,
    spark_session,
    watching,
)
from seriatim.config import default_url
from seriatim.config.delivery import registering, retries
from seriatim.core.handling import Handler, checked
from seriatim.log.arguments import bad

_ROLES = ("instance_worker", "ontology_worker", "projection_worker")


What = Annotated[str, typer.Argument(metavar="HANDLER", help="The handler as module:name.")]
Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="URL",
        help="kafka://host:port/topic. [default: the log itself]",
        show_default=False,
    ),
]
DeadLetters = Annotated[
    str | None,
    typer.Option(
        "--dead-letters",
        metavar="URL",
        help="Also send dead letters to kafka://host:port/topic.",
        show_default=False,
    ),
]
OnOutage = Annotated[
    str,
    typer.Option(
        help="While the registry is unavailable: pause waits, fail_fast ends with an error, dlq "
        "sends events to --dead-letters and continues."
    ),
]
Role = Annotated[
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


def work(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    path: What,
    source: Source = None,
    registry: RegistryAt = None,
    live: Annotated[
        bool, typer.Option("--live", help="Continue after the end is reached, until Ctrl-C.")
    ] = False,
    batch_events: Annotated[
        int, typer.Option(min=1, help="The maximum number of events in a batch.")
    ] = 50_000,
    on_outage: OnOutage = "pause",
    dead_letters: DeadLetters = None,
    role: Role = None,
    redeclare: Redeclare = False,
    kafka: KafkaConf = None,
    kafka_config: KafkaFile = None,
    all_tenants: AllTenants = False,
    metrics: MetricsAt = None,
    otel: Otel = None,
    log_format: LogFormat = "text",
    master: Master = None,
    conf: SparkConf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Run a handler up to the end of the log or of a topic, on Spark.

    Each event has one effect, in spite of duplicates, crashes and other workers.
    """
    with session(ctx, Common(url, tenant, as_json)) as command:
        handler = load_handler(path, role)
        tenant_id = whose(command, all_tenants=all_tenants)
        target = None if source is None else kafka_target(source, kafka, kafka_config)
        letters = None if dead_letters is None else kafka_target(dead_letters, kafka, kafka_config)
        settings = registering(on_outage=on_outage)
        if not settings.enabled:
            command.notice("the registry is disabled: duplicates and crashes will repeat effects")
        log_url = command.url if source is None else command.given_url or default_url()
        with (
            observed(
                "seriatim-worker", metrics=metrics, otel=otel, log_format=log_format
            ) as job_metrics,
            spark_session(command, master, conf) as spark,
            watching(command, handler.name, job_metrics) as report,
        ):
            from seriatim.pipeline.work.working import Worker  # noqa: PLC0415 - needs the extra `spark`

            with Worker(
                spark,
                handler,
                url=log_url,
                source=target,
                registry=registry,
                tenant_id=tenant_id,
                settings=settings,
                letters=letters,
                batch_events=batch_events,
                redeclare=redeclare,
                watcher=report,
                metrics=job_metrics,
            ) as worker:
                if live:
                    command.notice("following the source; press Ctrl-C to stop")
                counts = worker.run(live=live)
        _print_summary(command, {"handler": handler.name, **msgspec.to_builtins(counts)})


def _print_summary(command: Session, summary: dict[str, object]) -> None:
    if command.as_json:
        write_json(summary)
    else:
        command.out.print(pairs(summary))


def load_handler(path: str, role: str | None = None) -> Handler:
    """Return the handler `module:name`.

    Args:
        path: The handler as `module:name`.
        role: A role whose configured number of attempts replaces that of the handler.

    Raises:
        InvalidArgument: If there is no such handler or role.

    """
    found = declared(path, "handler")
    if not isinstance(found, Handler):
        raise bad("handler", f"{path!r:.80} is not a handler: decorate it with @seriatim.handler")
    if role is None:
        return found
    if role not in _ROLES:
        raise bad("role", f"must be one of {', '.join(_ROLES)}")
    policy = msgspec.structs.replace(found.retry, attempts=getattr(retries(), role))
    return checked(msgspec.structs.replace(found, retry=policy))
