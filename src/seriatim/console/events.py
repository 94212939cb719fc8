"""Events: the list with filters, its live tail, and one event."""

from __future__ import annotations

from seriatim.console.page import PageRoute

ROUTES: tuple[PageRoute, ...] = ()
