"""`seriatim lake`: the log as Delta and Iceberg tables, each event once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from seriatim.cli import exits
from seriatim.cli.output import pairs, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.cli.sparking import Master, spark_session
from seriatim.core.errors import BackendFailure
from seriatim.log.arguments import bad

if TYPE_CHECKING:
    from seriatim.pipeline.lake.exporting import ExportReport

app = typer.Typer(
    no_args_is_help=True, help="Tables for the lake: new events are added, each of them once."
)

Until = Annotated[int | None, typer.Option(min=0, help="Up to this position.", show_default=False)]
AcceptEpoch = Annotated[
    bool,
    typer.Option(
        "--accept-epoch",
        help="The table was checked to be this log's past, though it was restored since.",
    ),
]


@app.command("delta", epilog=exits.as_help())
def delta(  # noqa: PLR0913 - what goes where
    ctx: typer.Context,
    place: Annotated[str, typer.Argument(metavar="TABLE", help="A folder, or s3://bucket/prefix.")],
    until: Until = None,
    accept_epoch: AcceptEpoch = False,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Add the log's new events to a Delta table, which is made if it is not there."""
    with (
        session(ctx, Common(url, tenant, as_json), whole_log=True) as one,
        spark_session(one, master) as spark,
    ):
        try:
            from seriatim.pipeline.lake.delta import export_delta  # noqa: PLC0415 - an extra
        except ModuleNotFoundError as error:
            raise _missing(error) from error
        report = export_delta(spark, one.url, place, until=until, accept_epoch=accept_epoch)
        _show(one, report)


@app.command("iceberg", epilog=exits.as_help())
def iceberg(  # noqa: PLR0913 - what goes where
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TABLE", help="As namespace.name.")],
    catalog: Annotated[
        list[str],
        typer.Option(
            "--catalog",
            metavar="KEY=VALUE",
            help="A property of the catalog, as pyiceberg takes it (type, uri, warehouse, …); "
            "repeat it.",
        ),
    ],
    until: Until = None,
    accept_epoch: AcceptEpoch = False,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Add the log's new events to an Iceberg table, which is made if it is not there."""
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as one:
        properties = _properties(catalog)
        with spark_session(one, master) as spark:
            try:
                from seriatim.pipeline.lake import iceberg as lake  # noqa: PLC0415 - an extra
            except ModuleNotFoundError as error:
                raise _missing(error) from error
            report = lake.export_iceberg(
                spark, one.url, name, properties, until=until, accept_epoch=accept_epoch
            )
        _show(one, report)


def _properties(given: list[str]) -> dict[str, str]:
    parts = [one.partition("=") for one in given]
    if not all(equals for _, equals, _ in parts):
        raise bad("catalog", "is written key=value")
    return {key: value for key, _, value in parts}


def _missing(error: ModuleNotFoundError) -> BackendFailure:
    msg = f"the lake's tables miss {error.name}: pip install 'seriatim[lake]'"
    return BackendFailure(msg, retryable=False)


def _show(one: Session, report: ExportReport) -> None:
    if one.as_json:
        write_json(report)
        return
    said = {"added": f"{report.events:,} events", "table ends at": f"{report.position:,}"}
    one.out.print(pairs(said))
