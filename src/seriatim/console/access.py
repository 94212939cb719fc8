"""Access: tokens, quotas, and the operators' journal."""

from __future__ import annotations

from typing import Any

from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.core.tenants import ALL_TENANTS

_PAGE = 50


async def show_journal(page: ConsolePage) -> ConsoleResponse:
    """List the actions of operators, newest first."""
    before = page.params.get("before")
    whole = page.caller.tenant_id == ALL_TENANTS
    affected = page.params.get("affected", "") if whole else None
    found = await page.get("/v1/operations", tenant_id=affected, before=before, limit=_PAGE + 1)
    operations: list[dict[str, Any]] = found["operations"]
    following = ""
    if len(operations) > _PAGE:
        last = operations[_PAGE - 1]["position"]
        following = page.url("/journal", affected=affected, before=last)
    return await page.render(
        "journal.html",
        operations=operations[:_PAGE],
        following=following,
        first=page.url("/journal", affected=affected) if before else "",
        affected=affected or "",
    )


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(method="GET", path="/journal", show=show_journal, title="Journal", right="operate"),
)
