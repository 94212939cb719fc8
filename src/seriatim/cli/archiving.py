"""The commands `seriatim archive`: copy the log to Parquet segments, verify and restore them."""

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
    str, typer.Argument(metavar="PLACE", help="The archive: a folder or s3://bucket/prefix.")
]


@app.callback()
def archive(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="The archive to write to: a folder or s3://bucket/prefix. Required.",
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(min=0, help="Archive events up to this position.", show_default=False),
    ] = None,
    segment_events: Annotated[
        int, typer.Option(min=1, help="The number of events in a segment.")
    ] = 500_000,
    seal_tail: Annotated[
        bool,
        typer.Option("--seal-tail", help="Also seal the end of the log, in a shorter segment."),
    ] = False,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Copy the log to sealed Parquet segments; run it again to continue where it stopped."""
    common = Common(url, tenant, as_json)
    if ctx.invoked_subcommand is not None:
        ctx.obj = merged(ctx, common)
        return
    with session(ctx, common, whole_log=True) as command:
        if to is None:
            raise bad("to", "is required: a folder or s3://bucket/prefix for the segments")
        with (
            spark_session(command, master) as spark,
            counting(command.err, "archive", quiet=command.as_json) as progress,
        ):
            from seriatim.pipeline.archive.writing import archive as write_archive  # noqa: PLC0415

            report = write_archive(
                spark,
                command.url,
                to,
                until=until,
                segment_events=segment_events,
                seal_tail=seal_tail,
                progress=progress,
            )
        if command.as_json:
            write_json({**msgspec.to_builtins(report), "events": report.events})
            return
        command.out.print(
            pairs(
                {
                    "newly sealed": f"{report.events:,} events in {len(report.sealed)} segments",
                    "archive ends at": f"{report.end:,} of {report.head:,}",
                    "digest": report.digest,
                }
            )
        )


@app.command("verify", epilog=exits.as_help())
def verify(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    at: At,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Check only the archive, without comparing it to the log."),
    ] = False,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Read every segment and compare it with its seal and with the log."""
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as command:
        with (
            spark_session(command, master) as spark,
            counting(command.err, "verify", quiet=command.as_json) as progress,
        ):
            from seriatim.pipeline.archive.comparing import verify_archive  # noqa: PLC0415

            log = None if alone else command.url
            report = verify_archive(spark, log, at, progress=progress)
        _print_report(command, report)
        if report.problems:
            raise typer.Exit(exits.FOUND_PROBLEMS)


@app.command("restore", epilog=exits.as_help())
def restore(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    at: At,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Create a log from an archive, with the same positions, ids, times and hashes.

    The log named by --url must be empty, or hold the first events of the archive after an
    interrupted restore.
    """
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as command:
        with (
            spark_session(command, master) as spark,
            counting(command.err, "restore", quiet=command.as_json) as progress,
        ):
            from seriatim.pipeline.archive.restoring import restore as restore_log  # noqa: PLC0415

            report = restore_log(spark, at, command.url, progress=progress)
        if command.as_json:
            write_json(report)
        else:
            command.out.print(pairs(msgspec.structs.asdict(report)))


def _print_report(command: Session, report: VerifyReport) -> None:
    if command.as_json:
        write_json(report)
        return
    if report.problems:
        rows = table("problem")
        for problem in report.problems:
            rows.add_row(plain(f"{problem.file}: {problem.message}".removeprefix(": ")))
        command.out.print(rows)
    verdict = "[bold red]the archive is damaged[/]" if report.problems else "[green]sound[/]"
    command.out.print(
        f"{verdict}: {report.segments:,} segments up to position {report.end:,}, {report.digest}"
    )
