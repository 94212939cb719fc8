"""Everything a command prints: JSON lines for programs, aligned lines and tables for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import msgspec
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

from seriatim.core.event import EventRecord
from seriatim.store.port import Finding

_NO_END = 100_000  # columns of what is no terminal
_FRAME = 100
_TEXT_MIN = 20  # columns that free text needs to be read
_PAYLOAD_MIN = 30
# Columns of free text, which may be wrapped; all others hold ids, names and numbers.
_FREE_TEXT = {"error", "reason", "finding", "note", "examples", "types", "rights", "quota", "runs"}
_LEVELS = {"ok": "green", "warning": "yellow", "error": "bold red"}


class Terminal(Console):
    """A console that lets a broken pipe through instead of ending the program itself.

    Into a pipe or a file it writes lines as long as they are: nothing is wrapped or cut.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.is_terminal and options.get("width") is None:
            self.width = _NO_END

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, leaving a line that is too long to the terminal instead of cutting it."""
        if not self.is_terminal and any(isinstance(one, Panel | Rule) for one in objects):
            options.setdefault("width", _FRAME)  # frames and rules would fill the whole line
        super().print(*objects, **{"crop": False, **options})

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
    """Events as aligned lines, printed as they come, in flat memory.

    On a terminal the payload is cut at the end of its line, and has a line of its own where the
    first one has too little room. Names and ids are never cut.
    """

    _WIDTHS: ClassVar = {
        "position": 8,
        "recorded (UTC)": 19,
        "type": 18,
        "stream": 18,
        "actor": 12,
    }

    def __init__(self, console: Console) -> None:
        self._console = console
        self._headed = False

    def show(self, record: EventRecord) -> None:
        """Print one event, the first one under a heading."""
        if not self._headed:
            self._headed = True
            self._print([(name, "bold") for name in self._WIDTHS], "payload", "bold")
        cells = [
            (str(record.position), "cyan"),
            (record.recorded_at[:19].replace("T", " "), "dim"),
            (record.event_type, "green"),
            (stream_label(record), "magenta"),
            (actor_label(record), "blue"),
        ]
        self._print(cells, record.payload, "")

    def _print(self, cells: list[tuple[str, str]], payload: str, style: str) -> None:
        line = Text()
        for index, ((text, colour), width) in enumerate(
            zip(cells, self._WIDTHS.values(), strict=True)
        ):
            shown = plain(text)
            missing = " " * max(0, width - cell_len(shown))
            line.append(missing + shown if index == 0 else shown + missing, colour)
            line.append("  ")
        room = self._console.width - line.cell_len
        text = plain(payload)
        if room < _PAYLOAD_MIN and cell_len(text) > room:
            line.rstrip()
            line.append("\n" + " " * 10)
            room = self._console.width - 10
        line.append(_cut(text, room), style or None)
        line.rstrip()
        self._console.print(line, no_wrap=True, overflow="ignore")


def _cut(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"


def actor_label(record: EventRecord) -> str:
    """Return who did it, for people."""
    if record.actor_id is None:
        return record.actor_type or "–"
    return (
        record.actor_id if record.actor_type is None else f"{record.actor_type} {record.actor_id}"
    )


def stream_label(record: EventRecord) -> str:
    """Return a stream and the event's number in it, for people."""
    if record.stream_type is None:
        return "–"
    return f"{record.stream_type} {record.stream_id} #{record.stream_seq}"


class Listing(Table):
    """A table that never breaks an id: where it does not fit, its rows stand below each other."""

    def add_row(self, *cells: RenderableType | None, **more: Any) -> None:
        """Add a row; what stands in brackets is text, and no markup."""
        super().add_row(*(Text(one) if isinstance(one, str) else one for one in cells), **more)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render as a table if ids, names and numbers fit in their columns, else row by row."""
        room = options.max_width
        widths = [
            Measurement.get(console, options.update(max_width=_NO_END), cell).maximum
            for cell in map(_widest, self.columns)
        ]
        free = [str(column.header) in _FREE_TEXT for column in self.columns]
        gaps = 3 * len(widths)
        needed = sum(
            min(width, _TEXT_MIN) if may_wrap else width
            for width, may_wrap in zip(widths, free, strict=True)
        )
        if needed + gaps <= room:
            for column, width, may_wrap in zip(self.columns, widths, free, strict=True):
                if not may_wrap:
                    column.no_wrap, column.min_width = True, width
            yield from super().__rich_console__(console, options)
            return
        rows = zip(*(list(column.cells) for column in self.columns), strict=True)
        for row in rows:
            for column, cell in zip(self.columns, row, strict=True):
                text = cell if isinstance(cell, Text) else Text(str(cell))
                line = Text(f"{column.header}: ", style="bold") if column.header else Text()
                line.append_text(Text("", style="not bold").append_text(text))
                yield Text.assemble(
                    line, overflow="fold" if column.header in _FREE_TEXT else "ignore"
                )
            yield Text("")


def _widest(column: Column) -> Text:
    cells = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in column.cells]
    return max([Text(str(column.header)), *cells], key=_longest_line)


def _longest_line(text: Text) -> int:
    return max((cell_len(line) for line in text.plain.splitlines()), default=0)


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table in the style of all commands."""
    made = Listing(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made


def pairs(values: Mapping[str, object]) -> Text:
    """Return names and values as aligned lines; a long one is left to the terminal."""
    width = max(map(cell_len, values), default=0)
    made = Text(no_wrap=True, overflow="ignore")
    for number, (name, value) in enumerate(values.items()):
        made.append("\n" if number else "")
        made.append(set_cell_size(name, width), "bold")
        made.append(f"  {plain(value)}")
    return made


class EventFields:
    """Events with every field, one below the other."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._first = True

    def show(self, record: EventRecord) -> None:
        """Print one event, after an empty line unless it is the first."""
        if not self._first:
            self._console.print()
        self._first = False
        fields = record.as_dict() | {"payload": record.payload}
        shown = {name: value for name, value in fields.items() if value not in (None, {}, [])}
        self._console.print(pairs(shown))


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
