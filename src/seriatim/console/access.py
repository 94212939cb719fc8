"""Access: tokens, quotas, and the operators' journal."""

from __future__ import annotations

from seriatim.console.page import PageRoute

ROUTES: tuple[PageRoute, ...] = ()
