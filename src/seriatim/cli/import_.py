"""`seriatim import`: the events of an export into a log, as often as you like."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import msgspec
import typer
from rich.text import Text

from seriatim.cli import exits
from seriatim.cli.output import plain, progress_bar, table, write_json
from seriatim.cli.session import AsJson, Common, Session, Tenant, Url, session
from seriatim.core.errors import InvalidEvent
from seriatim.log.arguments import bad
from seriatim.log.importing import ImportReport, import_events
from seriatim.log.transfer import CutOff
from seriatim.opening import Log

LINE_BYTES_MAX = 32 * 1024 * 1024
_GZIP = b"\x1f\x8b"


def import_(  # noqa: PLR0913 - a command's arguments and options
    ctx: typer.Context,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="NDJSON, gzipped or not; - reads stdin.")
    ],
    url: Url = None,
    tenant: Tenant = None,
    declarations: Annotated[
        bool,
        typer.Option(
            "--declarations",
            help="Also declare the file's kinds, types and indexes, for every tenant of the log.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Append the events of an export, of all tenants unless --tenant names one.

    Event ids, times, keys, tags and the borders of appends are kept; what is stored already is
    recognised, so an import can be repeated. A log that is not there yet is made.
    """
    with session(ctx, Common(url, tenant, as_json)) as one:
        if str(file) != "-" and not file.is_file():
            raise bad("FILE", f"is not there: {file}")
        with one.open(create=True) as log:
            report = _import(one, log, file, declarations=declarations)
        _show(one, report)
        if not report.ok:
            raise typer.Exit(exits.FOUND_PROBLEMS)


def _import(one: Session, log: Log, file: Path, *, declarations: bool) -> ImportReport:
    size = None if str(file) == "-" else file.stat().st_size
    with progress_bar(one.err, quiet=one.as_json) as bar, _opened(file) as (raw, lines):
        task = bar.add_task("import", total=size)

        def update(_events: int) -> None:
            if size is not None:
                bar.update(task, completed=raw.tell())

        return import_events(
            log,
            _lines(lines),
            tenant_id=one.tenant,
            declarations=declarations,
            progress=update,
        )


@contextmanager
def _opened(file: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open a file, and the lines in it, which may be packed."""
    if str(file) == "-":
        yield sys.stdin.buffer, sys.stdin.buffer
        return
    with file.open("rb") as raw:
        packed = raw.read(2) == _GZIP
        raw.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
                yield raw, cast("BinaryIO", unpacked)
        else:
            yield raw, raw


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        try:
            line = stream.readline(LINE_BYTES_MAX + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise CutOff from None
        if not line:
            return
        if len(line) > LINE_BYTES_MAX:
            msg = f"line {number} is longer than {LINE_BYTES_MAX} bytes"
            raise InvalidEvent(msg, details={"line": number})
        yield line


def _show(one: Session, report: ImportReport) -> None:
    if one.as_json:
        write_json(msgspec.structs.asdict(report) | {"ok": report.ok})
        return
    parts = [f"{report.appended:,} appended", f"{report.reused:,} there before"]
    if report.skipped:
        parts.append(f"{report.skipped:,} of other tenants")
    if report.refused:
        reasons = ", ".join(f"{code} {count:,}" for code, count in report.reasons.items())
        parts.append(f"{report.refused:,} refused ({reasons})")
    one.out.print(f"events: {' · '.join(parts)}", markup=False)
    if report.refusals:
        shown = table("line", "events", "code", "reason", right=("line", "events"))
        for each in report.refusals:
            reason = Text(plain(each.message))
            shown.add_row(str(each.line), str(each.events), each.code, reason)
        one.out.print(shown)
    if report.undeclared:
        one.notice(
            f"{report.undeclared} declarations of the file were not applied: "
            "--declarations applies them, to the whole log"
        )
    if not report.whole:
        one.notice(
            "the file was cut off or damaged: it has no end line, other events than it says, or "
            "cannot be unpacked to its end"
        )
