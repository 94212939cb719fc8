"""The command `seriatim doctor`: report problems of the log's database and their remedies."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import msgspec
import typer

from seriatim.cli import exits
from seriatim.cli.output import findings_table, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.core.errors import BackendFailure
from seriatim.opening import examine
from seriatim.store.port import Finding


def doctor(
    ctx: typer.Context,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as problems.")] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Check the database of the log: schema version, grants, and settings that risk data loss."""
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as command:
        findings = list(examine(command.url))
        problems = ("error", "warning") if strict else ("error",)
        ok = all(finding.level not in problems for finding in findings)
        _print_findings(command, findings, ok)
        if not ok:
            raise typer.Exit(exits.FOUND_PROBLEMS if _can_open(command) else exits.BACKEND)


def _can_open(command: Session) -> bool:
    """Return whether the log can be opened despite the findings."""
    try:
        command.open().close()
    except BackendFailure:
        return False
    return True


def _print_findings(command: Session, findings: list[Finding], ok: bool) -> None:
    if command.as_json:
        write_json({"ok": ok, "findings": [msgspec.structs.asdict(item) for item in findings]})
        return
    command.out.print(findings_table(findings))
    counts = Counter(finding.level for finding in findings)
    command.out.print(" · ".join(f"{count} {level}" for level, count in counts.items()))
