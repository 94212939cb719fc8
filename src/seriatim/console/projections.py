"""Projections: status, lag, failures, verification and rebuilds."""

from __future__ import annotations

from seriatim.console.page import PageRoute

ROUTES: tuple[PageRoute, ...] = ()
