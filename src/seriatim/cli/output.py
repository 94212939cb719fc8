"""Output of commands: JSON lines for programs, aligned lines and tables for people."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal

import msgspec
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.panel import Panel
from rich.rule import Rule
from rich.style import StyleType
from rich.table import Column, Table
from rich.text import Text

from seriatim.core.event import EventRecord
from seriatim.store.port import Finding

if TYPE_CHECKING:
    from rich.progress import Progress

_UNLIMITED = 100_000  # the width of output that is not a terminal
_FRAME_WIDTH = 100
_TEXT_MIN = 20  # columns that free text needs to be readable
_PAYLOAD_MIN = 30
# Columns of free text, which may be wrapped. All others hold ids, names and numbers, which must
# stay whole so that they can be copied.
_FREE_TEXT = {"error", "reason", "finding", "note", "examples", "types", "rights", "quota", "runs"}
_LEVELS = {"ok": "green", "warning": "yellow", "error": "bold red"}


class Terminal(Console):
    """A console that raises `BrokenPipeError` instead of ending the program itself.

    Output to a pipe or a file is neither wrapped nor truncated.
    """

    def __init__(
        self,
        *,
        file: IO[str] | None = None,
        stderr: bool = False,
        width: int | None = None,
        highlight: bool = True,
        record: bool = False,
        force_terminal: bool | None = None,
        color_system: Literal["auto"] | None = "auto",
    ) -> None:
        super().__init__(
            file=file,
            stderr=stderr,
            width=width,
            highlight=highlight,
            record=record,
            force_terminal=force_terminal,
            color_system=color_system,
        )
        if not self.is_terminal and width is None:
            self.width = _UNLIMITED

    # The options are those of Rich, which has a dozen and adds to them.
    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects; the terminal wraps lines that are too long, none is truncated."""
        if not self.is_terminal and any(isinstance(item, Panel | Rule) for item in objects):
            options.setdefault("width", _FRAME_WIDTH)  # they would fill the whole width
        super().print(*objects, **{"crop": False, **options})

    def on_broken_pipe(self) -> None:
        """Let the command session handle it, which exits without a message."""
        raise BrokenPipeError


def escape_unprintable(text: object) -> str:
    """Return `text` with unprintable characters escaped.

    Event data may contain control characters that would move the cursor or hide other text.
    """
    raw = str(text)
    if raw.isprintable():
        return raw
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in raw)


def write_json(value: Any, *, flush: bool = False) -> None:
    """Write one line of JSON to stdout."""
    write_line(msgspec.json.encode(value) + b"\n", flush=flush)


def write_line(line: bytes, *, flush: bool = False) -> None:
    """Write a complete line to stdout."""
    sys.stdout.buffer.write(line)
    if flush:
        sys.stdout.buffer.flush()


def silence_stdout() -> None:
    """Redirect stdout to the null device, so that the interpreter's final flush cannot fail."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())


class EventLines:
    """Print events as aligned lines, one at a time, in constant memory.

    On a terminal the payload is truncated at the end of the line, and moves to a line of its own
    if the first line has too little space left. Names and ids are never truncated.
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
        self._heading_printed = False

    def print_event(self, record: EventRecord) -> None:
        """Print one event; the first event is preceded by a heading."""
        if not self._heading_printed:
            self._heading_printed = True
            self._print([(name, "bold") for name in self._WIDTHS], "payload", "bold")
        cells = [
            (str(record.position), "cyan"),
            (record.recorded_at[:19].replace("T", " "), "dim"),
            (record.event_type, "green"),
            (format_stream(record), "magenta"),
            (format_actor(record), "blue"),
        ]
        self._print(cells, record.payload_json, "")

    def _print(self, cells: list[tuple[str, str]], payload: str, style: str) -> None:
        line = Text()
        for index, ((text, colour), width) in enumerate(
            zip(cells, self._WIDTHS.values(), strict=True)
        ):
            cell = escape_unprintable(text)
            padding = " " * max(0, width - cell_len(cell))
            line.append(padding + cell if index == 0 else cell + padding, colour)
            line.append("  ")
        available = self._console.width - line.cell_len
        text = escape_unprintable(payload)
        if available < _PAYLOAD_MIN and cell_len(text) > available:
            line.rstrip()
            line.append("\n" + " " * 10)
            available = self._console.width - 10
        line.append(_truncate(text, available), style or None)
        line.rstrip()
        self._console.print(line, no_wrap=True, overflow="ignore")


def _truncate(text: str, width: int) -> str:
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"


def format_actor(record: EventRecord) -> str:
    """Return the actor of an event as text: its type and id, or a dash."""
    if record.actor_id is None:
        return record.actor_type or "–"
    return (
        record.actor_id if record.actor_type is None else f"{record.actor_type} {record.actor_id}"
    )


def format_stream(record: EventRecord) -> str:
    """Return the stream and sequence number of an event as text, or a dash."""
    if record.stream_type is None:
        return "–"
    return f"{record.stream_type} {record.stream_id} #{record.stream_seq}"


class AdaptiveTable(Table):
    """A table that never wraps an id: if it is too wide, each row becomes a list of fields."""

    def add_row(
        self,
        *cells: RenderableType | None,
        style: StyleType | None = None,
        end_section: bool = False,
    ) -> None:
        """Add a row; strings are printed literally, brackets in them are not Rich markup."""
        literal = (Text(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*literal, style=style, end_section=end_section)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render a table if ids, names and numbers fit into their columns, otherwise lists."""
        available = options.max_width
        widths = [
            Measurement.get(console, options.update(max_width=_UNLIMITED), cell).maximum
            for cell in map(_widest_cell, self.columns)
        ]
        wrappable = [str(column.header) in _FREE_TEXT for column in self.columns]
        gaps = 3 * len(widths)
        needed = sum(
            min(width, _TEXT_MIN) if may_wrap else width
            for width, may_wrap in zip(widths, wrappable, strict=True)
        )
        if needed + gaps <= available:
            for column, width, may_wrap in zip(self.columns, widths, wrappable, strict=True):
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


def _widest_cell(column: Column) -> Text:
    cells = [cell if isinstance(cell, Text) else Text(str(cell)) for cell in column.cells]
    return max([Text(str(column.header)), *cells], key=_longest_line)


def _longest_line(text: Text) -> int:
    return max((cell_len(line) for line in text.plain.splitlines()), default=0)


def make_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table in the style of all commands; `right` names right-aligned columns."""
    listing = AdaptiveTable(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        listing.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return listing


def format_pairs(values: Mapping[str, object]) -> Text:
    """Return names and values as aligned lines; the terminal wraps long ones."""
    width = max(map(cell_len, values), default=0)
    text = Text(no_wrap=True, overflow="ignore")
    for number, (name, value) in enumerate(values.items()):
        text.append("\n" if number else "")
        text.append(set_cell_size(name, width), "bold")
        text.append(f"  {escape_unprintable(value)}")
    return text


class EventDetails:
    """Print events with all their fields, one field per line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._first = True

    def print_event(self, record: EventRecord) -> None:
        """Print one event; all but the first are preceded by an empty line."""
        if not self._first:
            self._console.print()
        self._first = False
        fields = record.as_dict() | {"payload": record.payload_json}
        present = {name: value for name, value in fields.items() if value not in (None, {}, [])}
        self._console.print(format_pairs(present))


def make_findings_table(findings: Iterable[Finding]) -> Table:
    """Return a table of findings with their remedies."""
    rows = make_table("", "check", "finding")
    for finding in findings:
        message = Text(escape_unprintable(finding.message))
        if finding.cure and finding.level != "ok":
            message.append(f"\n→ {escape_unprintable(finding.cure)}", style="dim")
        level = Text(finding.level, style=_LEVELS[finding.level])
        rows.add_row(level, escape_unprintable(finding.check), message)
    return rows


def make_progress_bar(console: Console, *, quiet: bool) -> Progress:
    """Return a progress bar that is displayed only on a terminal, and not if `quiet`."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

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
def show_progress(
    console: Console, name: str, *, quiet: bool
) -> Iterator[Callable[[int, int], None]]:
    """Display a progress bar; yield a function that takes the amount done and the total."""
    with make_progress_bar(console, quiet=quiet) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
