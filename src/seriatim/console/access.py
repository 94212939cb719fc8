"""Access: tokens, quotas, and the operators' journal."""

from __future__ import annotations

import math
import time
from typing import Any

from seriatim.access.rights import RIGHTS
from seriatim.console.actions import finish_action, list_notices
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.core.errors import Forbidden, InvalidArgument, LimitExceeded, SeriatimError
from seriatim.core.tenants import ALL_TENANTS
from seriatim.core.times import format_us

_PAGE = 50
_DAY_S = 86_400.0
_DAYS_MAX = 36_500.0


async def show_access(page: ConsolePage) -> ConsoleResponse:
    """Show tokens and quotas to operators of all tenants, and link to the journal."""
    return await _render_access(page)


async def _render_access(
    page: ConsolePage, error: SeriatimError | None = None, created: Any = None
) -> ConsoleResponse:
    tokens = quotas = None
    following = next_quotas = ""
    owner = page.params.get("owner", "").strip()
    if page.caller.tenant_id == ALL_TENANTS and page.caller.types is None:
        after = page.params.get("after")
        listing = await page.get("/v1/tokens", tenant_id=owner, after=after, limit=_PAGE + 1)
        tokens = listing["tokens"]
        if len(tokens) > _PAGE:
            following = page.url("/access", owner=owner, after=tokens[_PAGE - 1]["token_id"])
        quotas_after = page.params.get("quotas_after")
        quotas = await page.get("/v1/quotas", after=quotas_after, limit=_PAGE + 1)
        if len(quotas["quotas"]) > _PAGE:
            last = quotas["quotas"][_PAGE - 1]["tenant_id"]
            next_quotas = page.url("/access", owner=owner, quotas_after=last)
    return await page.render_form(
        "access.html",
        error,
        tokens=None if tokens is None else tokens[:_PAGE],
        following=following,
        quotas=quotas,
        quota_rows=[] if quotas is None else quotas["quotas"][:_PAGE],
        next_quotas=next_quotas,
        owner=owner,
        rights=[right for right in RIGHTS if right in page.caller.rights],
        now=format_us(time.time_ns() // 1000),
        form=page.form,
        created=created,
        notices=list_notices(page),
    )


# -- tokens


async def create_token(page: ConsolePage) -> ConsoleResponse:
    """Create a token and show its text once.

    The text is rendered in the response to the form: an address must not contain it, and only its
    hash is stored.
    """
    form = page.form
    try:
        created = await page.post(
            "/v1/tokens",
            {
                "subject": form.get("subject", "").strip() or None,
                "tenant_id": form.get("token_tenant", "").strip(),
                "rights": [right for right in RIGHTS if form.get(f"right_{right}")],
                "types": form.get("types", "").replace(",", " ").split(),
                "expires_in_s": read_days(form.get("days", "")),
                "note": form.get("note", "").strip(),
                "reason": page.reason,
            },
        )
    except (InvalidArgument, Forbidden, LimitExceeded) as error:
        if page.caller.tenant_id != ALL_TENANTS or not page.can("operate"):
            raise
        return await _render_access(page, error)
    return await _render_access(page, created=created)


def read_days(text: str) -> float | None:
    """Return a number of days in seconds, None for an empty text.

    Raises:
        InvalidArgument: The text is not a positive number.
    """
    if not text.strip():
        return None
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 < days <= _DAYS_MAX:
        msg = f"days must be a number above 0 and at most {_DAYS_MAX:g}, or empty"
        raise InvalidArgument(msg, details={"argument": "days"})
    return days * _DAY_S


async def confirm_revocation(page: ConsolePage) -> ConsoleResponse:
    """Ask for a confirmation before a token is revoked."""
    page.require_operator_of_all()
    token_id = page.params.get("token_id", "")
    return await page.render("access_revoke.html", token_id=token_id)


async def revoke_token(page: ConsolePage) -> ConsoleResponse:
    """Revoke a token."""
    body = {
        "token_id": page.form.get("token_id", ""),
        "reason": page.reason,
    }
    return finish_action(page, "/access", "revoked", await page.post("/v1/tokens/revoke", body))


# -- quotas


async def set_quota(page: ConsolePage) -> ConsoleResponse:
    """Set the quota of a tenant."""
    try:
        body = {
            "tenant_id": page.form.get("quota_tenant", "").strip(),
            "events_per_s": _read_rate(page, "events_per_s"),
            "bytes_per_s": _read_rate(page, "bytes_per_s"),
            "reason": page.reason,
        }
        result = await page.post("/v1/quotas", body)
    except InvalidArgument as error:
        return await _render_access(page, error)
    return finish_action(page, "/access", "quota_set", result)


def _read_rate(page: ConsolePage, name: str) -> float:
    text = page.form.get(name, "").strip() or "0"
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 <= rate < math.inf:
        msg = f"{name} must be a number from 0; 0 sets no limit"
        raise InvalidArgument(msg, details={"argument": name})
    return rate


async def remove_quota(page: ConsolePage) -> ConsoleResponse:
    """Remove the quota of a tenant."""
    body = {
        "tenant_id": page.form.get("quota_tenant", ""),
        "reason": page.reason,
    }
    result = await page.post("/v1/quotas/remove", body)
    return finish_action(page, "/access", "quota_removed", result)


# -- the journal


async def show_journal(page: ConsolePage) -> ConsoleResponse:
    """List the actions of operators, newest first."""
    before = page.params.get("before")
    sees_all_tenants = page.caller.tenant_id == ALL_TENANTS
    affected = page.params.get("affected", "").strip() if sees_all_tenants else None
    listing = await page.get("/v1/operations", tenant_id=affected, before=before, limit=_PAGE + 1)
    operations: list[dict[str, Any]] = listing["operations"]
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
    PageRoute(method="GET", path="/access", show=show_access, title="Access", right="operate"),
    PageRoute(method="GET", path="/access/revoke", show=confirm_revocation),
    PageRoute(method="POST", path="/access/create", show=create_token),
    PageRoute(method="POST", path="/access/revoke", show=revoke_token),
    PageRoute(method="POST", path="/access/quota", show=set_quota),
    PageRoute(method="POST", path="/access/quota/remove", show=remove_quota),
    PageRoute(method="GET", path="/journal", show=show_journal, title="Journal", right="operate"),
)
