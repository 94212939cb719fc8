"""The commands `init`, `doctor`, `verify` and `audit`."""

from __future__ import annotations

from collections import Counter
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
)
from seriatim.cli.output import (
    escape_unprintable,
    format_pairs,
    make_findings_table,
    make_table,
    show_progress,
    write_json,
)
from seriatim.cli.spark_session import ArchiveLocation, SparkMaster, spark_session
from seriatim.core.errors import BackendFailure
from seriatim.factory import Log, diagnose, redact_url
from seriatim.log.arguments import invalid_argument
from seriatim.log.verification import VerificationReport
from seriatim.log.verification import verify as verify_log
from seriatim.store.port import Finding

if TYPE_CHECKING:
    from seriatim.pipeline.audit.report import AuditReport


def init(
    ctx: typer.Context,
    app_role: Annotated[
        str | None,
        typer.Option(
            help="Postgres: grant this role the privileges that an application needs, and no more."
        ),
    ] = None,
    raise_epoch: Annotated[
        bool,
        typer.Option(
            "--raise-epoch",
            help="After a restore: raise the epoch, so that consumers detect the change and stop.",
        ),
    ] = False,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Create the log, or upgrade its schema; safe to repeat."""
    with command_session(ctx, CommonOptions(url, tenant, as_json), whole_log=True) as command:
        if _is_postgres(command.url):
            _prepare_postgres(command.url, app_role)
        elif app_role is not None:
            raise invalid_argument("--app-role", "applies only to a Postgres log")
        with command.open(create=True) as log:
            identity = log.store.raise_epoch() if raise_epoch else log.identity()
            summary = {
                "url": redact_url(command.url),
                "backend": log.store.name,
                **msgspec.structs.asdict(identity),
                "head": log.head(),
            }
        _print_summary(command, summary)


def _print_summary(command: CommandSession, summary: dict[str, object]) -> None:
    if command.as_json:
        write_json(summary)
    else:
        command.stdout.print(format_pairs(summary))


def _is_postgres(url: str) -> bool:
    return url.startswith(("postgresql:", "postgres:"))


def _prepare_postgres(url: str, app_role: str | None) -> None:
    """Migrate the schema and grant privileges, which only the owner of the log may do."""
    from seriatim.store.postgres import migrate

    migrate.migrate(url)
    if app_role is not None:
        migrate.grant(url, app_role)


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
        _print_verification(command, report)
        if not report.ok:
            raise typer.Exit(exit_codes.FOUND_PROBLEMS)


def _verify_log(command: CommandSession, log: Log, lookups: int | None) -> VerificationReport:
    with show_progress(command.stderr, "verify", quiet=command.as_json) as progress:
        return verify_log(log.store, lookups=lookups, progress=progress)


def _print_verification(command: CommandSession, report: VerificationReport) -> None:
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
        _print_audit(command, report)
        if not report.ok:
            raise typer.Exit(exit_codes.FOUND_PROBLEMS)


def _print_audit(command: CommandSession, report: AuditReport) -> None:
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
