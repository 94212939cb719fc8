"""Decision traces: the list, the timeline of one, and its graph."""

from __future__ import annotations

from seriatim.console.page import PageRoute

ROUTES: tuple[PageRoute, ...] = ()
