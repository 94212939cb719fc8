"""The command `seriatim verify`: read the whole log again and check its guarantees."""

from __future__ import annotations

from typing import Annotated

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
from seriatim.cli.output import make_findings_table, show_progress, write_json
from seriatim.factory import Log
from seriatim.log.verification import VerificationReport
from seriatim.log.verification import verify as verify_log


def verify(
    ctx: typer.Context,
    lookups: Annotated[
        int, typer.Option(min=1, help="The number of events that are also looked up by their keys.")
    ] = 1000,
    full: Annotated[bool, typer.Option("--full", help="Look up every event by its keys.")] = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Check positions, appends, hashes, streams and indexes of the whole log, for all tenants."""
    with command_session(ctx, CommonOptions(url, tenant, as_json), whole_log=True) as command:
        with command.open() as log:
            report = _verify_log(command, log, None if full else lookups)
        _print_report(command, report)
        if not report.ok:
            raise typer.Exit(exit_codes.FOUND_PROBLEMS)


def _verify_log(command: CommandSession, log: Log, lookups: int | None) -> VerificationReport:
    with show_progress(command.stderr, "verify", quiet=command.as_json) as progress:
        return verify_log(log.store, lookups=lookups, progress=progress)


def _print_report(command: CommandSession, report: VerificationReport) -> None:
    if command.as_json:
        summary = msgspec.structs.asdict(report)
        summary["findings"] = [msgspec.structs.asdict(finding) for finding in report.findings]
        write_json(summary | {"ok": report.ok})
        return
    command.stdout.print(make_findings_table(report.findings))
    verdict = "[green]the log is sound[/]" if report.ok else "[bold red]the log is damaged[/]"
    rate = report.events / report.seconds if report.seconds else 0.0
    command.stdout.print(
        f"{verdict}: {report.events:,} events in {report.seconds:.1f} s ({rate:,.0f}/s)"
    )
