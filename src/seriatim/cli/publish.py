"""The commands `seriatim publish` and `seriatim reconcile`: send the log to Kafka, compare both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

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
    observe_command,
)
from seriatim.cli.output import escape_unprintable, format_pairs, make_table, write_json
from seriatim.cli.spark_session import (
    SparkMaster,
    SparkSettings,
    parse_key_values,
    report_job_progress,
    spark_session,
)
from seriatim.config.delivery import load_publisher_settings
from seriatim.core.errors import BackendFailure
from seriatim.log.arguments import invalid_argument

if TYPE_CHECKING:
    from seriatim.pipeline.kafka.address import Target
    from seriatim.pipeline.publish.reconciliation import ReconciliationReport

KafkaUrl = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="URL",
        help="kafka://host:port,host:port/topic; the topic may contain {tenant} and {stream_type}.",
    ),
]
KafkaSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka",
        metavar="KEY=VALUE",
        help="A setting of the Kafka client, such as security.protocol=SASL_SSL; may be repeated.",
        show_default=False,
    ),
]
KafkaSettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--kafka-config",
        metavar="FILE",
        help="A file of such settings, one KEY=VALUE per line. Use it for passwords.",
        show_default=False,
    ),
]
_CHECKPOINTS = "checkpoints"
AllTenants = Annotated[
    bool, typer.Option("--all-tenants", help="Process the events of every tenant.")
]


def publish(
    ctx: typer.Context,
    to: KafkaUrl,
    checkpoints: Annotated[
        str,
        typer.Option(
            "--checkpoints",
            metavar="PLACE",
            help="Where checkpoints are stored: a folder or s3://bucket/prefix. Use a separate one "
            "for each target and tenant.",
        ),
    ] = _CHECKPOINTS,
    live: Annotated[
        bool, typer.Option("--live", help="Continue after the end is reached, until Ctrl-C.")
    ] = False,
    create_topics: Annotated[
        bool, typer.Option("--create-topics", help="Create missing topics.")
    ] = False,
    partitions: Annotated[
        int, typer.Option(min=1, help="The number of partitions of created topics.")
    ] = 6,
    replication: Annotated[
        int, typer.Option(min=1, help="The number of replicas of created topics.")
    ] = 1,
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
    """Publish the log to Kafka on Spark, at least once and in order per stream."""
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        tenant_id = select_tenant(command, all_tenants=all_tenants)
        target = parse_kafka_target(to, kafka, kafka_config)
        settings = load_publisher_settings()
        with (
            observe_command(
                "seriatim-publisher", metrics=metrics, otel=otel, log_format=log_format
            ) as job_metrics,
            spark_session(command, master, conf) as spark,
            report_job_progress(command, "publisher", job_metrics) as report,
        ):
            with require_kafka():
                from seriatim.pipeline.publish.publisher import Publisher

            if live:
                command.notice("following the log; press Ctrl-C to stop")
            with Publisher(
                spark,
                command.url,
                target,
                checkpoints,
                tenant_id=tenant_id,
                settings=settings,
                create_topics=(partitions, replication) if create_topics else None,
                on_progress=report,
            ) as publisher:
                published = publisher.run(live=live)
        summary = {"target": str(target), **msgspec.to_builtins(published)}
        if command.as_json:
            write_json(summary)
        else:
            command.stdout.print(format_pairs(summary))


def reconcile(
    ctx: typer.Context,
    to: KafkaUrl,
    checkpoints: Annotated[
        str | None,
        typer.Option(
            "--checkpoints",
            metavar="PLACE",
            help="The place of the publisher's checkpoints: the result is kept beside them. "
            "[default: checkpoints, if it has those of this target]",
            show_default=False,
        ),
    ] = None,
    kafka: KafkaSettings = None,
    kafka_config: KafkaSettingsFile = None,
    all_tenants: AllTenants = False,
    master: SparkMaster = None,
    conf: SparkSettings = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Compare topics with the log and report missing, repeated, moved and changed events."""
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        tenant_id = select_tenant(command, all_tenants=all_tenants)
        target = parse_kafka_target(to, kafka, kafka_config)
        with spark_session(command, master, conf) as spark:
            with require_kafka():
                from seriatim.pipeline.publish.reconciliation import reconcile as compare

            place = checkpoints or _find_checkpoints(target, tenant_id)
            report = compare(spark, command.url, target, tenant_id=tenant_id, checkpoints=place)
        _print_report(command, report)
        if not report.equal:
            raise typer.Exit(exit_codes.FOUND_PROBLEMS)


def _find_checkpoints(target: Target, tenant_id: str | None) -> str | None:
    """Return the default place of checkpoints if it has those of a target."""
    from seriatim.pipeline.publish.reconciliation_record import is_published_to, name_target

    name = name_target(target, tenant_id)
    return _CHECKPOINTS if is_published_to(_CHECKPOINTS, name) else None


def select_tenant(command: CommandSession, *, all_tenants: bool) -> str | None:
    """Return the tenant whose events a command processes, or None for all tenants."""
    if all_tenants and command.tenant is not None:
        raise invalid_argument("tenant", "cannot be combined with --all-tenants")
    return None if all_tenants else command.tenant or "default"


@contextmanager
def require_kafka() -> Iterator[None]:
    """Turn a failed import of the Kafka client into an error that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        msg = f"this command needs the module {error.name}: pip install 'seriatim[kafka,spark]'"
        raise BackendFailure(msg, retryable=False) from error


def parse_kafka_target(url: str, kafka: list[str] | None, file: Path | None) -> Target:
    """Parse a Kafka URL and merge the client settings of a file and of the command line.

    Raises:
        BackendFailure: If the extra `kafka` is not installed.
        InvalidArgument: If the URL, the file or a setting is invalid.

    """
    with require_kafka():  # checked before Spark starts, which takes seconds
        import_module("seriatim.pipeline.kafka.client")
        from seriatim.pipeline.kafka.address import parse_target

    settings: dict[str, str] = {}
    if file is not None:
        try:
            lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise invalid_argument(
                "kafka-config", f"cannot be read: {type(error).__name__}"
            ) from error
        settings |= parse_key_values(
            "kafka-config", [line for line in lines if line and not line.startswith("#")]
        )
    return parse_target(url, settings | parse_key_values("kafka", kafka))


def _print_report(command: CommandSession, report: ReconciliationReport) -> None:
    if command.as_json:
        write_json({**msgspec.to_builtins(report), "equal": report.equal})
        return
    rows = make_table("difference", "count", "examples", right=("count",))
    for name, finding in report.findings.items():
        rows.add_row(name, f"{finding.count:,}", escape_unprintable(", ".join(finding.examples)))
    command.stdout.print(rows)
    verdict = "[green]the topic equals the log[/]"
    if not report.equal:
        verdict = "[bold red]the topic differs from the log[/]"
    command.stdout.print(f"{verdict}: {report.events:,} events, {report.messages:,} messages")
