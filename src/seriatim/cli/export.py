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

from seriatim.cli.output import counting
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.core.canonical import canonical_text
from seriatim.log.arguments import check_name, check_position
from seriatim.log.transfer import Footer, export_log
from seriatim.opening import Log


def export(  # noqa: PLR0913 - one parameter for each option
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
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Write every event to a file, for all tenants unless --tenant names one."""
    with session(ctx, Common(url, tenant, as_json)) as command, command.open() as log:
        with _open_target(file) as stream:
            footer = _export(command, log, stream, after, until)
        _print_summary(command, file, footer)


def _export(command: Session, log: Log, stream: BinaryIO, after: int, until: int | None) -> Footer:
    with counting(command.err, "export", quiet=command.as_json) as progress:
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


def _print_summary(command: Session, file: Path, footer: Footer) -> None:
    if str(file) == "-":
        command.notice(f"exported {footer.events:,} events")
    elif command.as_json:
        sys.stdout.write(canonical_text({"file": str(file), "events": footer.events}) + "\n")
    else:
        command.out.print(f"exported {footer.events:,} events to {file}", markup=False)
