"""`seriatim export`: the log as NDJSON, of all tenants or of one."""

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


def export(  # noqa: PLR0913 - what, where to, and which part of it
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="NDJSON, gzipped if it ends in .gz; - is stdout.")
    ],
    after: Annotated[int, typer.Option(min=0, help="From the position behind this one.")] = 0,
    until: Annotated[
        int | None, typer.Option(min=0, help="Up to this position.", show_default=False)
    ] = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Write every event to a file, of all tenants unless --tenant names one."""
    with session(ctx, Common(url, tenant, as_json)) as one, one.open() as log:
        with _opened(file) as stream:
            footer = _export(one, log, stream, after, until)
        _show(one, file, footer)


def _export(one: Session, log: Log, stream: BinaryIO, after: int, until: int | None) -> Footer:
    with counting(one.err, "export", quiet=one.as_json) as tell:
        return export_log(
            log.store,
            stream.write,
            tenant_id=None if one.tenant is None else check_name("tenant", one.tenant),
            after=check_position("after", after),
            until=until,
            progress=tell,
        )


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    """Open the target; a file appears under its name only when it is whole and on the disk."""
    if str(file) == "-":
        yield sys.stdout.buffer
        return
    part = file.with_name(file.name + ".part")
    try:
        with part.open("wb") as raw:
            if file.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed:
                    yield cast("BinaryIO", packed)
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _show(one: Session, file: Path, footer: Footer) -> None:
    if str(file) == "-":
        one.notice(f"exported {footer.events:,} events")
    elif one.as_json:
        sys.stdout.write(canonical_text({"file": str(file), "events": footer.events}) + "\n")
    else:
        one.out.print(f"exported {footer.events:,} events to {file}", markup=False)
