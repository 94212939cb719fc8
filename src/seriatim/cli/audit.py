"""The command `seriatim audit`: check the whole log on Spark and report its contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
)
from seriatim.cli.output import escape_unprintable, make_findings_table, make_table, write_json
from seriatim.cli.spark_session import ArchiveLocation, SparkMaster, spark_session

if TYPE_CHECKING:
    from seriatim.pipeline.audit.report import AuditReport


def audit(
    ctx: typer.Context,
    archive: ArchiveLocation = None,
    master: SparkMaster = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Check the whole log on Spark for gaps, duplicates, wrong hashes and broken streams.

    The audit covers all tenants and also reports the number and size of events by type.
    """
    with command_session(ctx, CommonOptions(url, tenant, as_json), whole_log=True) as command:
        with spark_session(command, master) as spark:
            from seriatim.pipeline.audit.report import audit as run_audit

            report = run_audit(
                spark,
                command.url,
                archive=archive,
                progress=lambda step: command.notice(f"{step} …"),
            )
        _print_report(command, report)
        if not report.ok:
            raise typer.Exit(exit_codes.FOUND_PROBLEMS)


def _print_report(command: CommandSession, report: AuditReport) -> None:
    if command.as_json:
        write_json({**msgspec.to_builtins(report), "ok": report.ok})
        return
    command.stdout.print(make_findings_table(report.findings))
    types = make_table("type", "events", "payload bytes", "first", "last", right=("events",))
    for summary in report.types:
        types.add_row(
            escape_unprintable(summary.event_type),
            f"{summary.events:,}",
            f"{summary.payload_bytes:,}",
            f"{summary.first_position:,}",
            f"{summary.last_position:,}",
        )
    command.stdout.print(types)
    verdict = "[green]the log is sound[/]" if report.ok else "[bold red]the log is damaged[/]"
    command.stdout.print(
        f"{verdict}: {report.events:,} events in {report.seconds:.1f} s, {report.digest}"
    )
