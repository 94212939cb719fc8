"""Results of actions: a redirection whose address names the outcome, and its text on the page."""

from __future__ import annotations

from typing import Any

from seriatim.console.page import ConsolePage, ConsoleResponse, Param
from seriatim.core.errors import InvalidArgument

_DIGITS_MAX = 18  # fewer than those of 2**63, the bound of positions
# The address holds the name of an outcome, never its text: a link must not put words on a page.
_OUTCOMES = {
    "paused": "Paused.",
    "resumed": "Resumed.",
    "retried": "Retried",
    "skipped": "Skipped",
    "pruned": "Deleted the entries of",
    "reset": "The handler is reset. Deleted the entries of",
    "revoked": "The token is revoked.",
    "quota_set": "The quota is set.",
    "quota_removed": "The quota is removed: the default applies.",
    "started": "The job is started.",
}
_COUNTED = ("retried", "skipped", "pruned", "reset")


def finish_action(
    page: ConsolePage, path: str, outcome: str, result: Any = None, **params: Param
) -> ConsoleResponse:
    """Redirect to a page after an action, with its outcome in the address.

    Args:
        page: The request.
        path: The page to display.
        outcome: A key of `_OUTCOMES`.
        result: The response of the API: the number of affected things, and whether the action
            was recorded in the journal.
        params: Further parameters of the page.
    """
    response = result if isinstance(result, dict) else {}
    count = response.get("count") if outcome in _COUNTED else None
    unrecorded = None if response.get("recorded", True) else "yes"
    return page.redirect(path, **params, done=outcome, count=count, unrecorded=unrecorded)


def list_notices(page: ConsolePage) -> list[tuple[str, str]]:
    """Return the colour and text of each notice about the action before this page."""
    text = _OUTCOMES.get(page.params.get("done", ""))
    if text is None:
        return []
    if page.params["done"] in _COUNTED:
        text = f"{text} {_read_affected(page)} event(s)."
    notices = [("good", text)]
    if page.params.get("unrecorded"):
        msg = "The action succeeded, but could not be recorded in the operators' journal."
        notices.append(("warn", msg))
    return notices


def _read_affected(page: ConsolePage) -> str:
    text = page.params.get("count", "")
    return f"{int(text):,}" if _is_number(text) else "some"


def read_count(page: ConsolePage, name: str) -> int:
    """Return the whole number in a field of the submitted form.

    Raises:
        InvalidArgument: It is not a whole number.
    """
    return parse_count(page.form.get(name, ""), name)


def parse_count(text: str, name: str) -> int:
    """Return the whole number that a text represents.

    Raises:
        InvalidArgument: It is not a whole number.
    """
    if not _is_number(text):
        msg = f"{name} must be a whole number"
        raise InvalidArgument(msg, details={"argument": name})
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX
