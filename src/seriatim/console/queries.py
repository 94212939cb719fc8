"""Queries: filters and predicates, their answer, and how it was found."""

from __future__ import annotations

from seriatim.console.page import PageRoute

ROUTES: tuple[PageRoute, ...] = ()
