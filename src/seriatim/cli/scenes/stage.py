"""What every scene plays on: a log, a console, and a list of what held."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from seriatim.cli.output import plain
from seriatim.core.errors import SeriatimError
from seriatim.opening import Log

WIDTH: Final = 100


class Stage:
    """Prints scenes and remembers whether each claim held."""

    def __init__(self, console: Console, log: Log, url: str) -> None:
        self.log = log
        self.url = url
        self.claims: list[tuple[str, bool]] = []
        self._console = console
        self._scenes = 0

    @property
    def ok(self) -> bool:
        """Whether everything held."""
        return all(held for _, held in self.claims)

    def scene(self, title: str, proves: str) -> None:
        """Begin a scene with one line on what it proves."""
        self._scenes += 1
        self._console.print()
        heading = Text(f"{self._scenes} · {title}", style="bold cyan")
        self._console.print(Rule(heading, align="left", style="cyan"))
        self._console.print(Text(proves, style="italic"))

    def show(self, shown: RenderableType) -> None:
        """Print something of a scene."""
        self._console.print(Padding(shown, (0, 0, 0, 2)))

    def check(self, claim: str, held: bool) -> None:
        """Print a claim with its tick, and remember it."""
        self.claims.append((claim, held))
        mark, style = ("✓", "green") if held else ("✗ does not hold:", "bold red")
        line = Text.assemble((f"  {mark} ", style), plain(claim))
        self._console.print(line)

    def refused(self, what: str, error: SeriatimError | None) -> None:
        """Show how an act was refused."""
        if error is None:
            self.check(f"{what} is refused", held=False)
            return
        code = Text.assemble(f"{what} → ", (error.code, "yellow"), f": {plain(error.message)}")
        self.show(code)


def sheet(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table in the style of the demo."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        made.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return made
