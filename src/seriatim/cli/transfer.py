"""The commands `export` and `import`."""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO, cast

import msgspec
import typer
from rich.text import Text

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
    make_progress_bar,
    make_table,
    show_progress,
    write_json,
)
from seriatim.core.canonical import canonical_text
from seriatim.core.errors import InvalidEvent
from seriatim.factory import Log
from seriatim.log.arguments import check_name, check_position, invalid_argument
from seriatim.log.export_format import ExportFooter, ExportTruncatedError, export_log
from seriatim.log.importer import ImportReport, import_events


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
                # mtime=0: exports of the same events are the same file.
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


# A file without line ends, or one that decompresses to more and more, must not fill the memory.
LINE_BYTES_MAX = 32 * 1024 * 1024
_GZIP = b"\x1f\x8b"

POOL_BYTES_MIN = 64 * 1024 * 1024  # smaller files are imported before a pool pays off
POOL_PROCESSES_MAX = 4  # more would wait for the process that sends what they validate


def import_(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="The NDJSON file, compressed with gzip or not; - reads stdin."
        ),
    ],
    url: LogUrl = None,
    tenant: TenantOption = None,
    declarations: Annotated[
        bool,
        typer.Option(
            "--declarations",
            help="Also declare the kinds, types and indexes in the file, for every tenant.",
        ),
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes that validate events. "
            f"[default: 1; up to {POOL_PROCESSES_MAX} for large files on four cores or more]",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOutput = False,
) -> None:
    """Append the events of an export, for all tenants unless --tenant names one.

    Event ids, times, keys, tags and the boundaries of appends are preserved. Events that are
    already stored are recognised, so an import is safe to repeat. A missing log is created.
    """
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        if str(file) != "-" and not file.is_file():
            raise invalid_argument("FILE", f"does not exist: {file}")
        with command.open(create=True) as log:
            report = _import(command, log, file, declarations=declarations, processes=processes)
        _print_report(command, report)
        if not report.ok:
            raise typer.Exit(exit_codes.FOUND_PROBLEMS)


def _import(
    command: CommandSession, log: Log, file: Path, *, declarations: bool, processes: int | None
) -> ImportReport:
    size = None if str(file) == "-" else file.stat().st_size
    with (
        make_progress_bar(command.stderr, quiet=command.as_json) as bar,
        _open_source(file) as (raw, lines),
    ):
        task = bar.add_task("import", total=size)

        def update(_events: int) -> None:
            if size is not None:
                # Of the compressed file, whose size is known.
                bar.update(task, completed=raw.tell())

        return import_events(
            log,
            _read_lines(lines),
            tenant_id=command.tenant,
            declarations=declarations,
            progress=update,
            processes=processes or choose_processes(size, os.cpu_count() or 1),
        )


def choose_processes(size: int | None, cores: int) -> int:
    """Return how many processes validate a file of a size in bytes, None if it is not known.

    The importing process and the database need a core each, and starting a process takes as long
    as the import of some ten thousand events.
    """
    if size is None or size < POOL_BYTES_MIN:
        return 1
    return max(1, min(cores - 2, POOL_PROCESSES_MAX))


@contextmanager
def _open_source(file: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open a file; yield the raw file, for its progress, and the stream of decompressed lines."""
    if str(file) == "-":
        yield sys.stdin.buffer, sys.stdin.buffer
        return
    with file.open("rb") as raw:
        is_compressed = raw.read(2) == _GZIP
        raw.seek(0)
        if is_compressed:
            with gzip.GzipFile(fileobj=raw, mode="rb") as decompressed:
                yield raw, cast("BinaryIO", decompressed)
        else:
            yield raw, raw


def _read_lines(stream: BinaryIO) -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        try:
            line = stream.readline(LINE_BYTES_MAX + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise ExportTruncatedError from None  # a truncated gzip stream is a truncated export
        if not line:
            return
        if len(line) > LINE_BYTES_MAX:
            msg = f"line {number} is longer than {LINE_BYTES_MAX} bytes"
            raise InvalidEvent(msg, details={"line": number})
        yield line


def _print_report(command: CommandSession, report: ImportReport) -> None:
    if command.as_json:
        write_json(msgspec.structs.asdict(report) | {"ok": report.ok})
        return
    parts = [f"{report.appended:,} appended", f"{report.reused:,} already stored"]
    if report.skipped:
        parts.append(f"{report.skipped:,} of other tenants")
    if report.refused:
        reasons = ", ".join(f"{code} {count:,}" for code, count in report.reasons.items())
        parts.append(f"{report.refused:,} refused ({reasons})")
    command.stdout.print(f"events: {' · '.join(parts)}", markup=False)
    if report.refusals:
        refusals = make_table("line", "events", "code", "reason", right=("line", "events"))
        for refusal in report.refusals:
            reason = Text(escape_unprintable(refusal.message))
            refusals.add_row(str(refusal.line), str(refusal.events), refusal.code, reason)
        command.stdout.print(refusals)
    if report.undeclared:
        command.notice(
            f"{report.undeclared} declarations in the file were not applied: "
            "--declarations applies them to the whole log"
        )
    if not report.complete:
        command.notice(
            "the file is truncated or damaged: its end line is missing, its event count is wrong, "
            "or it cannot be decompressed completely"
        )
