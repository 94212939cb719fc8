"""Topics and archive: publisher checkpoints, reconciliation, sealed segments."""

from __future__ import annotations

from seriatim.console.page import PageRoute

ROUTES: tuple[PageRoute, ...] = ()
