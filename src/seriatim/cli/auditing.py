"""`seriatim audit`: the whole log checked on Spark, and what it holds."""

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


def audit(  # noqa: PLR0913 - what to audit, and where
    ctx: typer.Context,
    archive: ArchiveAt = None,
    master: Master = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Check gaps, duplicates, hashes and streams over the whole log on Spark, for all tenants."""
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as one:
        with spark_session(one, master) as spark:
            from seriatim.pipeline.audit import audit as run  # noqa: PLC0415 - an extra

            report = run(
                spark, one.url, archive=archive, progress=lambda step: one.notice(f"{step} …")
            )
        _show(one, report)
        if not report.ok:
            raise typer.Exit(exits.FOUND_PROBLEMS)


def _show(one: Session, report: AuditReport) -> None:
    if one.as_json:
        write_json({**msgspec.to_builtins(report), "ok": report.ok})
        return
    one.out.print(findings_table(report.findings))
    made = table("type", "events", "payload bytes", "first", "last", right=("events",))
    for kind in report.types:
        made.add_row(
            plain(kind.event_type),
            f"{kind.events:,}",
            f"{kind.payload_bytes:,}",
            f"{kind.first_position:,}",
            f"{kind.last_position:,}",
        )
    one.out.print(made)
    verdict = "[green]the log is sound[/]" if report.ok else "[bold red]the log is damaged[/]"
    one.out.print(f"{verdict}: {report.events:,} events in {report.seconds:.1f} s, {report.digest}")
