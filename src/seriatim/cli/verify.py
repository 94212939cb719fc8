"""`seriatim verify`: re-read the whole log and prove what it promises."""

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


def verify(  # noqa: PLR0913 - how thoroughly, and where
    ctx: typer.Context,
    lookups: Annotated[
        int, typer.Option(min=1, help="How many records to look up by their keys too.")
    ] = 1000,
    full: Annotated[bool, typer.Option("--full", help="Look every record up.")] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Prove that positions, appends, hashes, streams and indexes are right, for all tenants."""
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as one:
        with one.open() as log:
            report = _verified(one, log, None if full else lookups)
        _show(one, report)
        if not report.ok:
            raise typer.Exit(exits.FOUND_PROBLEMS)


def _verified(one: Session, log: Log, lookups: int | None) -> Report:
    with counting(one.err, "verify", quiet=one.as_json) as tell:
        return verify_log(log.store, lookups=lookups, progress=tell)


def _show(one: Session, report: Report) -> None:
    if one.as_json:
        shown = msgspec.structs.asdict(report)
        shown["findings"] = [msgspec.structs.asdict(finding) for finding in report.findings]
        write_json(shown | {"ok": report.ok})
        return
    one.out.print(findings_table(report.findings))
    verdict = "[green]the log is sound[/]" if report.ok else "[bold red]the log is damaged[/]"
    rate = report.events / report.seconds if report.seconds else 0.0
    one.out.print(f"{verdict}: {report.events:,} events in {report.seconds:.1f} s ({rate:,.0f}/s)")
