"""The command `seriatim doctor`: report problems of the log's database and their remedies."""

from __future__ import annotations

from collections import Counter
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
from seriatim.cli.output import make_findings_table, write_json
from seriatim.core.errors import BackendFailure
from seriatim.factory import diagnose
from seriatim.store.port import Finding


def doctor(
    ctx: typer.Context,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as problems.")] = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Check the database of the log: schema version, grants, and settings that risk data loss."""
    with command_session(ctx, CommonOptions(url, tenant, as_json), whole_log=True) as command:
        findings = list(diagnose(command.url))
        problems = ("error", "warning") if strict else ("error",)
        ok = all(finding.level not in problems for finding in findings)
        _print_findings(command, findings, ok)
        if not ok:
            raise typer.Exit(
                exit_codes.FOUND_PROBLEMS if _can_open(command) else exit_codes.BACKEND
            )


def _can_open(command: CommandSession) -> bool:
    """Return whether the log can be opened despite the findings."""
    try:
        command.open().close()
    except BackendFailure:
        return False
    return True


def _print_findings(command: CommandSession, findings: list[Finding], ok: bool) -> None:
    if command.as_json:
        write_json({"ok": ok, "findings": [msgspec.structs.asdict(item) for item in findings]})
        return
    command.stdout.print(make_findings_table(findings))
    counts = Counter(finding.level for finding in findings)
    command.stdout.print(" · ".join(f"{count} {level}" for level, count in counts.items()))
