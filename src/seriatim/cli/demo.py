"""`seriatim demo`: what the log does, shown on a log of its own in a minute."""

from __future__ import annotations

import typer


def demo(ctx: typer.Context) -> None:
    """Show it."""
