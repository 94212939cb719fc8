"""The command `seriatim audit`: check the whole log on Spark and report its contents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import typer

from seriatim.cli import exits
from seriatim.cli.output import findings_table, plain, table, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.cli.sparking import ArchiveAt, Master, spark_session

if TYPE_CHECKING:
    from seriatim.pipeline.audit import AuditReport


def audit(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    archive: ArchiveAt = None,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Check the whole log on Spark for gaps, duplicates, wrong hashes and broken streams.

    The audit covers all tenants and also reports the number and size of events by type.
    """
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as command:
        with spark_session(command, master) as spark:
            from seriatim.pipeline.audit import audit as run_audit  # noqa: PLC0415 - an extra

            report = run_audit(
                spark,
                command.url,
                archive=archive,
                progress=lambda step: command.notice(f"{step} …"),
            )
        _print_report(command, report)
        if not report.ok:
            raise typer.Exit(exits.FOUND_PROBLEMS)


def _print_report(command: Session, report: AuditReport) -> None:
    if command.as_json:
        write_json({**msgspec.to_builtins(report), "ok": report.ok})
        return
    command.out.print(findings_table(report.findings))
    types = table("type", "events", "payload bytes", "first", "last", right=("events",))
    for summary in report.types:
        types.add_row(
            plain(summary.event_type),
            f"{summary.events:,}",
            f"{summary.payload_bytes:,}",
            f"{summary.first_position:,}",
            f"{summary.last_position:,}",
        )
    command.out.print(types)
    verdict = "[green]the log is sound[/]" if report.ok else "[bold red]the log is damaged[/]"
    command.out.print(
        f"{verdict}: {report.events:,} events in {report.seconds:.1f} s, {report.digest}"
    )
