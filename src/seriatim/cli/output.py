"""Everything a command prints: JSON lines for programs, aligned lines and tables for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from rich import box
from rich.cells import set_cell_size
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from seriatim.core.event import EventRecord
from seriatim.store.port import Finding

_LEVELS = {"ok": "green", "warning": "yellow", "error": "bold red"}


class Terminal(Console):
    """A console that lets a broken pipe through instead of ending the program itself."""

    def on_broken_pipe(self) -> None:
        """Leave it to the session, which ends quietly."""
        raise BrokenPipeError


def plain(text: object) -> str:
    """Return text that cannot move the cursor or hide: what is not printable is escaped."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def write_json(value: Any, *, flush: bool = False) -> None:
    """Write one line of JSON to stdout."""
    write_line(msgspec.json.encode(value) + b"\n", flush=flush)


def write_line(line: bytes, *, flush: bool = False) -> None:
    """Write a finished line to stdout."""
    sys.stdout.buffer.write(line)
    if flush:
        sys.stdout.buffer.flush()


def silence_stdout() -> None:
    """Point stdout to nowhere, so that the interpreter's last flush meets no broken pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


class EventLines:
    """Events as aligned lines, printed as they come, in flat memory."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._headed = False
        room = max(0, console.width - 80)
        self._widths = {
            "position": 8,
            "recorded (UTC)": 19,
            "type": 18 + room // 5,
            "stream": 18 + room // 5,
        }

    def show(self, record: EventRecord) -> None:
        """Print one event, the first one under a heading."""
        if not self._headed:
            self._headed = True
            self._print([(name, "bold") for name in (*self._widths, "payload")])
        self._print(
            [
                (str(record.position), "cyan"),
                (record.recorded_at[:19].replace("T", " "), "dim"),
                (record.event_type, "green"),
                (stream_label(record), "magenta"),
                (record.payload, ""),
            ]
        )

    def _print(self, cells: list[tuple[str, str]]) -> None:
        line = Text(no_wrap=True, overflow="ellipsis")
        widths = [*self._widths.values(), None]
        for index, ((text, style), width) in enumerate(zip(cells, widths, strict=True)):
            shown = plain(text)
            if index == 0:
                shown = shown.rjust(width or 0)
            elif width is not None:
                shown = _fitted(shown, width)
            line.append(shown, style or None)
            line.append("  ")
        line.rstrip()
        self._console.print(line, no_wrap=True, overflow="ellipsis")


def _fitted(text: str, width: int) -> str:
    fitted = set_cell_size(text, width)
    return fitted if fitted.rstrip() == text else set_cell_size(text, width - 1) + "…"


def stream_label(record: EventRecord) -> str:
    """Return a stream and the event's number in it, for people."""
    if record.stream_type is None:
        return "–"
    return f"{record.stream_type} {record.stream_id} #{record.stream_seq}"


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table in the style of all commands."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made


def pairs(values: Mapping[str, object]) -> Table:
    """Return names and values as a table without lines."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold")
    made.add_column(overflow="fold")
    for name, value in values.items():
        made.add_row(name, Text(plain(value)))
    return made


def findings_table(findings: Iterable[Finding]) -> Table:
    """Return findings with their cures."""
    made = table("", "check", "finding")
    for one in findings:
        message = Text(plain(one.message))
        if one.cure and one.level != "ok":
            message.append(f"\n→ {plain(one.cure)}", style="dim")
        made.add_row(Text(one.level, style=_LEVELS[one.level]), plain(one.check), message)
    return made


def progress_bar(console: Console, *, quiet: bool) -> Progress:
    """Return a progress bar on stderr that only a person at a terminal sees."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=quiet or not console.is_terminal,
    )


@contextmanager
def counting(console: Console, name: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show a bar for work that tells how much is done, and of how much."""
    with progress_bar(console, quiet=quiet) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
