"""The shared state of the demo steps: the log, the output and the results of all checks."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from seriatim import Log, SeriatimError

WIDTH: Final = 100


class DemoReport:
    """Prints the steps of the demo and collects the results of their checks."""

    def __init__(self, console: Console, log: Log, url: str) -> None:
        self.log = log
        self.url = url
        self.checks: list[tuple[str, bool]] = []
        self._console = console
        self._steps = 0

    @property
    def passed(self) -> bool:
        """Whether all checks so far have passed."""
        return all(passed for _, passed in self.checks)

    def start_step(self, title: str, purpose: str) -> None:
        """Print the heading of a step and one line about what it proves."""
        self._steps += 1
        self._console.print()
        heading = Text(f"{self._steps} · {title}", style="bold cyan")
        self._console.print(Rule(heading, align="left", style="cyan"))
        self._console.print(Text(purpose, style="italic"))

    def print(self, content: RenderableType) -> None:
        """Print a part of a step, indented."""
        self._console.print(Padding(content, (0, 0, 0, 2)))

    def check(self, claim: str, passed: bool) -> None:
        """Print a claim with the result of its check, and record it."""
        self.checks.append((claim, passed))
        mark, style = ("✓", "green") if passed else ("✗ failed:", "bold red")
        line = Text.assemble((f"  {mark} ", style), claim)
        self._console.print(line)

    def show_refusal(self, action: str, error: SeriatimError | None) -> None:
        """Print the error that refused an action; without an error, record a failed check."""
        if error is None:
            self.check(f"{action} is refused", passed=False)
            return
        line = Text.assemble(f"{action} → ", (error.code, "yellow"), f": {error.message}")
        self.print(line)


def make_demo_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table in the style of the demo."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table
