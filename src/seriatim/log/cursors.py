"""Cursors that know their log: made with its identity, checked against it before use."""

from __future__ import annotations

from typing import Literal

from seriatim.core.canonical import canonical_text
from seriatim.core.errors import Conflict, LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.core.query import Query
from seriatim.log.arguments import bad, check_position
from seriatim.store.port import Cursor, Store


def new_cursor(  # noqa: PLR0913 - a cursor is its fields
    store: Store,
    tenant_id: str,
    purpose: Literal["subscription", "projection"],
    name: str,
    position: int,
    query: str = "",
) -> Cursor:
    """Make a cursor at a position that the log has reached."""
    check_position("position", position)
    if position > store.head():
        raise bad("position", "must not lie beyond the head")
    identity = store.identity()
    return Cursor(
        tenant_id=tenant_id,
        purpose=purpose,
        name=name,
        position=position,
        log_id=identity.log_id,
        epoch=identity.epoch,
        tip=store.event_id_at(position) or "" if position else "",
        query=query,
    )


def reset_subscription(
    store: Store, tenant_id: str, name: str, position: int, query: Query
) -> None:
    """Move a subscription anywhere, also backwards, and accept the log's present identity."""
    text = canonical_text(query.as_dict())
    cursor = new_cursor(store, tenant_id, "subscription", name, position, text)
    store.put_cursor(cursor, lease=None, reset=True)


def check_cursor(store: Store, cursor: Cursor, query: str) -> None:
    """Stop a consumer whose cursor has another query, another log or a lost future behind it."""
    if cursor.query != query:
        msg = f"{cursor.name!r} is known with another query"
        raise Conflict(msg, details={"name": cursor.name})
    seen = LogIdentity(cursor.log_id, cursor.epoch)
    problem = problem_with(store, seen, cursor.position, cursor.tip)
    if problem is not None:
        msg = (
            f"the cursor of {cursor.name!r} {problem}: the log was restored or replaced; "
            "check what its consumer has seen, then reset the cursor"
        )
        raise LogIdentityChanged(msg, details={"name": cursor.name, "position": cursor.position})


def problem_with(store: Store, seen: LogIdentity, position: int, tip: str) -> str | None:
    """Say why a consumer that has seen this log up to a position cannot go on with a store."""
    identity = store.identity()
    head = store.head()
    if seen.log_id != identity.log_id:
        return "belongs to another log"
    if seen.epoch != identity.epoch:
        return f"is of epoch {seen.epoch}, the log is in epoch {identity.epoch}"
    if position > head:
        return f"stands at {position}, the log ends at {head}"
    if position and store.event_id_at(position) != tip:
        return f"has seen another event at position {position}"
    return None


def check_same_log(store: Store, identity: LogIdentity, position: int, tip: str, head: int) -> None:
    """Stop whoever follows the log when it was restored or replaced under them."""
    grown_past = head > position > 0 and store.event_id_at(position) != tip
    if head < position or store.identity() != identity or grown_past:
        msg = f"the log was restored or replaced while it was followed at position {position}"
        raise LogIdentityChanged(msg, details={"position": position, "head": head})
