"""The command `seriatim verify`: read the whole log again and check its guarantees."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from seriatim.cli import exits
from seriatim.cli.output import counting, findings_table, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.log.verify import Report
from seriatim.log.verify import verify as verify_log
from seriatim.opening import Log


def verify(  # noqa: PLR0913 - one parameter for each option
    ctx: typer.Context,
    lookups: Annotated[
        int, typer.Option(min=1, help="The number of events that are also looked up by their keys.")
    ] = 1000,
    full: Annotated[bool, typer.Option("--full", help="Look up every event by its keys.")] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Check positions, appends, hashes, streams and indexes of the whole log, for all tenants."""
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as command:
        with command.open() as log:
            report = _verify_log(command, log, None if full else lookups)
        _print_report(command, report)
        if not report.ok:
            raise typer.Exit(exits.FOUND_PROBLEMS)


def _verify_log(command: Session, log: Log, lookups: int | None) -> Report:
    with counting(command.err, "verify", quiet=command.as_json) as progress:
        return verify_log(log.store, lookups=lookups, progress=progress)


def _print_report(command: Session, report: Report) -> None:
    if command.as_json:
        summary = msgspec.structs.asdict(report)
        summary["findings"] = [msgspec.structs.asdict(finding) for finding in report.findings]
        write_json(summary | {"ok": report.ok})
        return
    command.out.print(findings_table(report.findings))
    verdict = "[green]the log is sound[/]" if report.ok else "[bold red]the log is damaged[/]"
    rate = report.events / report.seconds if report.seconds else 0.0
    command.out.print(
        f"{verdict}: {report.events:,} events in {report.seconds:.1f} s ({rate:,.0f}/s)"
    )
