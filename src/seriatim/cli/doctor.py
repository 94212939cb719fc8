"""`seriatim doctor`: what is wrong with the database under a log, and how to cure it."""

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
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as problems.")] = False,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Look for missing grants, an old schema, unsafe settings and the like."""
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as one:
        findings = list(examine(one.url))
        problems = ("error", "warning") if strict else ("error",)
        ok = all(finding.level not in problems for finding in findings)
        _show(one, findings, ok)
        if not ok:
            raise typer.Exit(exits.FOUND_PROBLEMS if _opens(one) else exits.BACKEND)


def _opens(one: Session) -> bool:
    """Tell whether the log can be opened in spite of what was found."""
    try:
        one.open().close()
    except BackendFailure:
        return False
    return True


def _show(one: Session, findings: list[Finding], ok: bool) -> None:
    if one.as_json:
        shown = [msgspec.structs.asdict(finding) for finding in findings]
        write_json({"ok": ok, "findings": shown})
        return
    one.out.print(findings_table(findings))
    counts = Counter(finding.level for finding in findings)
    one.out.print(" · ".join(f"{count} {level}" for level, count in counts.items()))
