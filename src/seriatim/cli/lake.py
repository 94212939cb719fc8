"""The commands `seriatim lake`: export the log to Delta and Iceberg tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from seriatim.cli import exit_codes
from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.output import format_pairs, write_json
from seriatim.cli.spark_session import SparkMaster, spark_session
from seriatim.core.errors import BackendFailure
from seriatim.log.arguments import invalid_argument

if TYPE_CHECKING:
    from seriatim.pipeline.lake.table_export import ExportReport

app = typer.Typer(
    no_args_is_help=True,
    help="Export the log to Delta or Iceberg tables; each run adds new events exactly once.",
)

Until = Annotated[
    int | None, typer.Option(min=0, help="Export events up to this position.", show_default=False)
]
AcceptEpoch = Annotated[
    bool,
    typer.Option(
        "--accept-epoch",
        help="Continue a table that was written before the log was restored. Check first that its "
        "events are those of this log.",
    ),
]


@app.command("delta", epilog=exit_codes.format_exit_codes())
def delta(
    ctx: typer.Context,
    place: Annotated[
        str, typer.Argument(metavar="TABLE", help="The table: a folder or s3://bucket/prefix.")
    ],
    until: Until = None,
    accept_epoch: AcceptEpoch = False,
    master: SparkMaster = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Add the new events of the log to a Delta table; the table is created if it is missing."""
    with (
        command_session(ctx, CommonOptions(url, tenant, as_json), whole_log=True) as command,
        spark_session(command, master) as spark,
    ):
        try:
            from seriatim.pipeline.lake.delta import export_delta
        except ModuleNotFoundError as error:
            raise _missing_module(error) from error
        report = export_delta(spark, command.url, place, until=until, accept_epoch=accept_epoch)
        _print_report(command, report)


@app.command("iceberg", epilog=exit_codes.format_exit_codes())
def iceberg(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TABLE", help="The table as namespace.name.")],
    catalog: Annotated[
        list[str],
        typer.Option(
            "--catalog",
            metavar="KEY=VALUE",
            help="A property of the pyiceberg catalog (type, uri, warehouse, …); may be repeated.",
        ),
    ],
    until: Until = None,
    accept_epoch: AcceptEpoch = False,
    master: SparkMaster = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Add the new events of the log to an Iceberg table; the table is created if it is missing."""
    with command_session(ctx, CommonOptions(url, tenant, as_json), whole_log=True) as command:
        properties = _parse_properties(catalog)
        with spark_session(command, master) as spark:
            try:
                from seriatim.pipeline.lake import iceberg as lake
            except ModuleNotFoundError as error:
                raise _missing_module(error) from error
            report = lake.export_iceberg(
                spark, command.url, name, properties, until=until, accept_epoch=accept_epoch
            )
        _print_report(command, report)


def _parse_properties(entries: list[str]) -> dict[str, str]:
    parts = [entry.partition("=") for entry in entries]
    if not all(equals for _, equals, _ in parts):
        raise invalid_argument("catalog", "must be given as KEY=VALUE")
    return {key: value for key, _, value in parts}


def _missing_module(error: ModuleNotFoundError) -> BackendFailure:
    msg = f"this command needs the module {error.name}: pip install 'seriatim[lake]'"
    return BackendFailure(msg, retryable=False)


def _print_report(command: CommandSession, report: ExportReport) -> None:
    if command.as_json:
        write_json(report)
        return
    summary = {"added": f"{report.events:,} events", "table ends at": f"{report.position:,}"}
    command.stdout.print(format_pairs(summary))
