"""The command `seriatim export`: write the log to an NDJSON file, for all tenants or one."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import typer

from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.output import show_progress
from seriatim.core.canonical import canonical_text
from seriatim.factory import Log
from seriatim.log.arguments import check_name, check_position
from seriatim.log.export_format import ExportFooter, export_log


def export(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The NDJSON file to write, compressed with gzip if it ends in .gz; - is stdout.",
        ),
    ],
    after: Annotated[int, typer.Option(min=0, help="Only events after this position.")] = 0,
    until: Annotated[
        int | None, typer.Option(min=0, help="Only events up to this position.", show_default=False)
    ] = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Write every event to a file, for all tenants unless --tenant names one."""
    with (
        command_session(ctx, CommonOptions(url, tenant, as_json)) as command,
        command.open() as log,
    ):
        with _open_target(file) as stream:
            footer = _export(command, log, stream, after, until)
        _print_summary(command, file, footer)


def _export(
    command: CommandSession, log: Log, stream: BinaryIO, after: int, until: int | None
) -> ExportFooter:
    with show_progress(command.stderr, "export", quiet=command.as_json) as progress:
        return export_log(
            log.store,
            stream.write,
            tenant_id=None if command.tenant is None else check_name("tenant", command.tenant),
            after=check_position("after", after),
            until=until,
            progress=progress,
        )


@contextmanager
def _open_target(file: Path) -> Iterator[BinaryIO]:
    """Open the target file for writing.

    The data is written to a `.part` file, which is synced and then renamed: a file with the
    requested name is always complete.
    """
    if str(file) == "-":
        yield sys.stdout.buffer
        return
    part = file.with_name(file.name + ".part")
    try:
        with part.open("wb") as raw:
            if file.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0) as compressed:
                    yield cast("BinaryIO", compressed)
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _print_summary(command: CommandSession, file: Path, footer: ExportFooter) -> None:
    if str(file) == "-":
        command.notice(f"exported {footer.events:,} events")
    elif command.as_json:
        sys.stdout.write(canonical_text({"file": str(file), "events": footer.events}) + "\n")
    else:
        command.stdout.print(f"exported {footer.events:,} events to {file}", markup=False)
