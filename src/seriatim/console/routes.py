"""All pages and actions of the console, in the order of the navigation."""

from __future__ import annotations

from seriatim.console import (
    access,
    events,
    explanations,
    handlers,
    key_steps,
    overview,
    projections,
    queries,
    streams,
    topics,
    traces,
)
from seriatim.console.app import Console, ConsoleSettings
from seriatim.console.page import PageRoute

ROUTES: tuple[PageRoute, ...] = (
    *overview.ROUTES,
    *events.ROUTES,
    *streams.ROUTES,
    *queries.ROUTES,
    *explanations.ROUTES,
    *traces.ROUTES,
    *projections.ROUTES,
    *key_steps.ROUTES,
    *handlers.ROUTES,
    *topics.ROUTES,
    *access.ROUTES,
)


def make_console(settings: ConsoleSettings | None = None) -> Console:
    """Make the console of one process."""
    return Console(ROUTES, settings or ConsoleSettings())
