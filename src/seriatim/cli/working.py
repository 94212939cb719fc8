"""`seriatim work`: a handler on Spark, fed from the log or from Kafka, each effect once."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from seriatim.cli.declared import declared
from seriatim.cli.observing import LogFormat, MetricsAt, Otel, observed
from seriatim.cli.output import pairs, write_json
from seriatim.cli.publishing import AllTenants, KafkaConf, KafkaFile, kafka_target, whose
from seriatim.cli.registering import RegistryAt
from seriatim.cli.session import AsJson, Common, Tenant, Url, session
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


What = Annotated[
    str, typer.Argument(metavar="HANDLER", help="Where it is declared, as module:name.")
]
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
        help="Send dead letters to kafka://host:port/topic too.",
        show_default=False,
    ),
]
OnOutage = Annotated[
    str, typer.Option(help="While the registry is away: pause, fail_fast, or dlq.")
]
Role = Annotated[
    str | None,
    typer.Option(help=f"Take the attempts of the settings of a role: {', '.join(_ROLES)}."),
]
Redeclare = Annotated[
    bool, typer.Option("--redeclare", help="Accept that the handler is declared anew.")
]


def work(  # noqa: PLR0913 - what to run, and how
    ctx: typer.Context,
    what: What,
    source: Source = None,
    registry: RegistryAt = None,
    live: Annotated[bool, typer.Option("--live", help="Go on when the end is reached.")] = False,
    batch_events: Annotated[
        int, typer.Option(min=1, help="How many events a batch has at most.")
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
    """Run a handler on Spark; duplicates, crashes and other workers give one effect an event."""
    with session(ctx, Common(url, tenant, as_json)) as one:
        handler = load_handler(what, role)
        wanted = whose(one, all_tenants=all_tenants)
        target = None if source is None else kafka_target(source, kafka, kafka_config)
        letters = None if dead_letters is None else kafka_target(dead_letters, kafka, kafka_config)
        settings = registering(on_outage=on_outage)
        if not settings.enabled:
            one.notice("the registry is OFF: duplicates and crashes will repeat effects")
        named = one.url if source is None else one.given_url or default_url()
        with (
            observed(
                "seriatim-worker", metrics=metrics, otel=otel, log_format=log_format
            ) as shown_there,
            spark_session(one, master, conf) as spark,
            watching(one, handler.name, shown_there) as watch,
        ):
            from seriatim.pipeline.work.working import Worker  # noqa: PLC0415 - an extra

            with Worker(
                spark,
                handler,
                url=named,
                source=target,
                registry=registry,
                tenant_id=wanted,
                settings=settings,
                letters=letters,
                batch_events=batch_events,
                redeclare=redeclare,
                watcher=watch,
                metrics=shown_there,
            ) as worker:
                if live:
                    one.notice("following the source; Ctrl-C stops")
                done = worker.run(live=live)
        shown = {"handler": handler.name, **msgspec.to_builtins(done)}
        if one.as_json:
            write_json(shown)
        else:
            one.out.print(pairs(shown))


def load_handler(what: str, role: str | None = None) -> Handler:
    """Find a handler by module:name, with the attempts of a role if one is named."""
    found = declared(what, "handler")
    if not isinstance(found, Handler):
        raise bad("handler", f"{what!r:.80} is no handler: decorate its function")
    if role is None:
        return found
    if role not in _ROLES:
        raise bad("role", f"is one of {', '.join(_ROLES)}")
    policy = msgspec.structs.replace(found.retry, attempts=getattr(retries(), role))
    return checked(msgspec.structs.replace(found, retry=policy))
