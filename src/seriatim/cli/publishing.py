"""`seriatim publish` and `seriatim reconcile`: the log to Kafka, and the proof that it is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from seriatim.cli import exits
from seriatim.cli.observing import LogFormat, MetricsAt, Otel, observed
from seriatim.cli.output import pairs, plain, table, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.cli.sparking import (
    Master,
    SparkConf,
    pairs_of,
    spark_session,
    watching,
)
from seriatim.config.delivery import publishing
from seriatim.core.errors import BackendFailure
from seriatim.log.arguments import bad

if TYPE_CHECKING:
    from seriatim.pipeline.kafka.address import Target
    from seriatim.pipeline.reconcile import Reconciled

To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="URL",
        help="kafka://host:port/topic; the topic may hold {tenant} and {stream_type}.",
    ),
]
KafkaConf = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka",
        metavar="KEY=VALUE",
        help="A setting of the Kafka client, such as security.protocol=SASL_SSL; may be repeated.",
        show_default=False,
    ),
]
KafkaFile = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        metavar="FILE",
        help="A file of such settings, one KEY=VALUE a line: the place for passwords.",
        show_default=False,
    ),
]
AllTenants = Annotated[bool, typer.Option("--all-tenants", help="The events of every tenant.")]


def publish(  # noqa: PLR0913 - what to publish, and how
    ctx: typer.Context,
    to: To,
    checkpoints: Annotated[
        str,
        typer.Option(
            "--checkpoints",
            metavar="PLACE",
            help="Where it is remembered how far it came: a folder or s3://bucket/prefix.",
        ),
    ] = "checkpoints",
    live: Annotated[bool, typer.Option("--live", help="Go on when the end is reached.")] = False,
    create_topics: Annotated[
        bool, typer.Option("--create-topics", help="Make topics that are not there.")
    ] = False,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of topics it makes.")] = 6,
    replication: Annotated[int, typer.Option(min=1, help="Replicas of topics it makes.")] = 1,
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
    """Publish the log to Kafka on Spark: at least once, in order per stream."""
    with session(ctx, Common(url, tenant, as_json)) as one:
        wanted = whose(one, all_tenants=all_tenants)
        target = kafka_target(to, kafka, kafka_config)
        settings = publishing()
        with (
            observed(
                "seriatim-publisher", metrics=metrics, otel=otel, log_format=log_format
            ) as shown_there,
            spark_session(one, master, conf) as spark,
            watching(one, "publisher", shown_there) as watch,
        ):
            with needing_kafka():
                from seriatim.pipeline.publish.publishing import Publisher  # noqa: PLC0415

            if live:
                one.notice("following the log; Ctrl-C stops")
            with Publisher(
                spark,
                one.url,
                target,
                checkpoints,
                tenant_id=wanted,
                settings=settings,
                create_topics=(partitions, replication) if create_topics else None,
                watcher=watch,
            ) as publisher:
                done = publisher.run(live=live)
        shown = {"target": str(target), **msgspec.to_builtins(done)}
        if one.as_json:
            write_json(shown)
        else:
            one.out.print(pairs(shown))


def reconcile(  # noqa: PLR0913 - what to compare
    ctx: typer.Context,
    to: To,
    kafka: KafkaConf = None,
    kafka_config: KafkaFile = None,
    all_tenants: AllTenants = False,
    master: Master = None,
    conf: SparkConf = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Compare topics with the log, and name what is missing, doubled, moved or different."""
    with session(ctx, Common(url, tenant, as_json)) as one:
        wanted = whose(one, all_tenants=all_tenants)
        target = kafka_target(to, kafka, kafka_config)
        with spark_session(one, master, conf) as spark:
            with needing_kafka():
                from seriatim.pipeline.reconcile import reconcile as run  # noqa: PLC0415

            report = run(spark, one.url, target, tenant_id=wanted)
        _show(one, report)
        if not report.equal:
            raise typer.Exit(exits.FOUND_PROBLEMS)


def whose(one: Session, *, all_tenants: bool) -> str | None:
    """Return the tenant whose events are meant, None for all."""
    if all_tenants and one.tenant is not None:
        raise bad("tenant", "and --all-tenants exclude each other")
    return None if all_tenants else one.tenant or "default"


@contextmanager
def needing_kafka() -> Iterator[None]:
    """Say what to install when a part that needs Kafka's client cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        msg = f"this command misses {error.name}: pip install 'seriatim[kafka,spark]'"
        raise BackendFailure(msg, retryable=False) from error


def kafka_target(url: str, kafka: list[str] | None, file: Path | None) -> Target:
    """Return where Kafka is, with settings from a file and from the command line."""
    with needing_kafka():  # before Spark starts
        from seriatim.pipeline.kafka import client  # noqa: F401, PLC0415
        from seriatim.pipeline.kafka.address import parse_target  # noqa: PLC0415 - slow to import

    settings: dict[str, str] = {}
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise bad("kafka-config", f"cannot be read: {type(error).__name__}") from error
        settings |= pairs_of(
            "kafka-config", [line for line in lines if line and not line.startswith("#")]
        )
    return parse_target(url, settings | pairs_of("kafka", kafka))


def _show(one: Session, report: Reconciled) -> None:
    if one.as_json:
        write_json({**msgspec.to_builtins(report), "equal": report.equal})
        return
    made = table("what", "count", "examples", right=("count",))
    for name, found in report.findings.items():
        made.add_row(name, f"{found.count:,}", plain(", ".join(found.examples)))
    one.out.print(made)
    verdict = "[green]the topic equals the log[/]"
    if not report.equal:
        verdict = "[bold red]the topic differs from the log[/]"
    one.out.print(f"{verdict}: {report.events:,} events, {report.messages:,} messages")
