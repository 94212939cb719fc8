"""`seriatim archive`: the log as sealed Parquet segments, proved and restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from seriatim.cli import exits
from seriatim.cli.output import counting, pairs, plain, table, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, merged, session
from seriatim.cli.sparking import Master, spark_session
from seriatim.log.arguments import bad

if TYPE_CHECKING:
    from seriatim.pipeline.archive.comparing import VerifyReport

app = typer.Typer(
    invoke_without_command=True,
    epilog=exits.as_help(),
)

At = Annotated[
    str, typer.Argument(metavar="PLACE", help="The archive: a folder, or s3://bucket/prefix.")
]


@app.callback()
def archive(  # noqa: PLR0913 - what to seal, and where
    ctx: typer.Context,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Where segments go: a folder, or s3://bucket/prefix.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        int | None, typer.Option(min=0, help="Up to this position.", show_default=False)
    ] = None,
    segment_events: Annotated[
        int, typer.Option(min=1, help="How many events a segment has.")
    ] = 500_000,
    seal_tail: Annotated[
        bool, typer.Option("--seal-tail", help="Seal the end of the log too, in a short segment.")
    ] = False,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Copy the log to sealed Parquet segments; run it again to go on where it stopped."""
    common = Common(url, tenant, as_json)
    if ctx.invoked_subcommand is not None:
        ctx.obj = merged(ctx, common)
        return
    with session(ctx, common, whole_log=True) as one:
        if to is None:
            raise bad("to", "says where the segments go: a folder, or s3://bucket/prefix")
        with (
            spark_session(one, master) as spark,
            counting(one.err, "archive", quiet=one.as_json) as tell,
        ):
            from seriatim.pipeline.archive.writing import archive as write  # noqa: PLC0415

            report = write(
                spark,
                one.url,
                to,
                until=until,
                segment_events=segment_events,
                seal_tail=seal_tail,
                progress=tell,
            )
        if one.as_json:
            write_json({**msgspec.to_builtins(report), "events": report.events})
            return
        one.out.print(
            pairs(
                {
                    "sealed now": f"{report.events:,} events in {len(report.sealed)} segments",
                    "archive ends at": f"{report.end:,} of {report.head:,}",
                    "digest": report.digest,
                }
            )
        )


@app.command("verify", epilog=exits.as_help())
def verify(  # noqa: PLR0913 - which archive, and which log
    ctx: typer.Context,
    at: At,
    alone: Annotated[
        bool, typer.Option("--alone", help="Check the archive by itself, without its log.")
    ] = False,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Read every segment again, and compare it with its seal and with the log."""
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as one:
        with (
            spark_session(one, master) as spark,
            counting(one.err, "verify", quiet=one.as_json) as tell,
        ):
            from seriatim.pipeline.archive.comparing import verify_archive  # noqa: PLC0415

            log = None if alone else one.url
            report = verify_archive(spark, log, at, progress=tell)
        _show(one, report)
        if report.problems:
            raise typer.Exit(exits.FOUND_PROBLEMS)


@app.command("restore", epilog=exits.as_help())
def restore(  # noqa: PLR0913 - which archive, and where to
    ctx: typer.Context,
    at: At,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Make a log of an archive: the same positions, ids, times and hashes, as a log of its own."""
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as one:
        with (
            spark_session(one, master) as spark,
            counting(one.err, "restore", quiet=one.as_json) as tell,
        ):
            from seriatim.pipeline.archive.restoring import restore as make  # noqa: PLC0415

            report = make(spark, at, one.url, progress=tell)
        if one.as_json:
            write_json(report)
        else:
            one.out.print(pairs(msgspec.structs.asdict(report)))


def _show(one: Session, report: VerifyReport) -> None:
    if one.as_json:
        write_json(report)
        return
    if report.problems:
        made = table("what is wrong")
        for problem in report.problems:
            made.add_row(plain(f"{problem.file}: {problem.message}".removeprefix(": ")))
        one.out.print(made)
    verdict = "[bold red]the archive is damaged[/]" if report.problems else "[green]sound[/]"
    one.out.print(
        f"{verdict}: {report.segments:,} segments up to position {report.end:,}, {report.digest}"
    )
