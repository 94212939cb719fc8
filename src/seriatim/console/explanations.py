"""Why an append is accepted, replayed or refused, and look-ups of receipts."""

from __future__ import annotations

from seriatim.console.page import PageRoute

ROUTES: tuple[PageRoute, ...] = ()
