"""The commands `seriatim archive`: copy the log to Parquet segments, verify and restore them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from seriatim.cli import exit_codes
from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
    merge_options,
)
from seriatim.cli.output import (
    escape_unprintable,
    format_pairs,
    make_table,
    show_progress,
    write_json,
)
from seriatim.cli.spark_session import SparkMaster, spark_session
from seriatim.log.arguments import invalid_argument

if TYPE_CHECKING:
    from seriatim.pipeline.archive.verification import ArchiveVerificationReport

app = typer.Typer(
    invoke_without_command=True,
    epilog=exit_codes.format_exit_codes(),
)

ArchiveArgument = Annotated[
    str, typer.Argument(metavar="PLACE", help="The archive: a folder or s3://bucket/prefix.")
]


@app.callback()
def archive(
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
    master: SparkMaster = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Copy the log to sealed Parquet segments; run it again to continue where it stopped."""
    common = CommonOptions(url, tenant, as_json)
    if ctx.invoked_subcommand is not None:
        ctx.obj = merge_options(ctx, common)
        return
    with command_session(ctx, common, whole_log=True) as command:
        if to is None:
            raise invalid_argument(
                "to", "is required: a folder or s3://bucket/prefix for the segments"
            )
        with (
            spark_session(command, master) as spark,
            show_progress(command.stderr, "archive", quiet=command.as_json) as progress,
        ):
            from seriatim.pipeline.archive.archiver import archive as write_archive

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
        command.stdout.print(
            format_pairs(
                {
                    "newly sealed": f"{report.events:,} events in {len(report.sealed)} segments",
                    "archive ends at": f"{report.end:,} of {report.head:,}",
                    "digest": report.digest,
                }
            )
        )


@app.command("verify", epilog=exit_codes.format_exit_codes())
def verify(
    ctx: typer.Context,
    at: ArchiveArgument,
    archive_only: Annotated[
        bool,
        typer.Option("--alone", help="Check only the archive, without comparing it to the log."),
    ] = False,
    master: SparkMaster = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Read every segment and compare it with its seal and with the log."""
    with command_session(ctx, CommonOptions(url, tenant, as_json), whole_log=True) as command:
        with (
            spark_session(command, master) as spark,
            show_progress(command.stderr, "verify", quiet=command.as_json) as progress,
        ):
            from seriatim.pipeline.archive.verification import verify_archive

            log = None if archive_only else command.url
            report = verify_archive(spark, log, at, progress=progress)
        _print_report(command, report)
        if report.problems:
            raise typer.Exit(exit_codes.FOUND_PROBLEMS)


@app.command("restore", epilog=exit_codes.format_exit_codes())
def restore(
    ctx: typer.Context,
    at: ArchiveArgument,
    master: SparkMaster = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Create a log from an archive, with the same positions, ids, times and hashes.

    The log named by --url must be empty, or hold the first events of the archive after an
    interrupted restore.
    """
    with command_session(ctx, CommonOptions(url, tenant, as_json), whole_log=True) as command:
        with (
            spark_session(command, master) as spark,
            show_progress(command.stderr, "restore", quiet=command.as_json) as progress,
        ):
            from seriatim.pipeline.archive.restore import restore as restore_log

            report = restore_log(spark, at, command.url, progress=progress)
        if command.as_json:
            write_json(report)
        else:
            command.stdout.print(format_pairs(msgspec.structs.asdict(report)))


def _print_report(command: CommandSession, report: ArchiveVerificationReport) -> None:
    if command.as_json:
        write_json(report)
        return
    if report.problems:
        rows = make_table("problem")
        for problem in report.problems:
            rows.add_row(
                escape_unprintable(f"{problem.file}: {problem.message}".removeprefix(": "))
            )
        command.stdout.print(rows)
    verdict = "[bold red]the archive is damaged[/]" if report.problems else "[green]sound[/]"
    command.stdout.print(
        f"{verdict}: {report.segments:,} segments up to position {report.end:,}, {report.digest}"
    )
