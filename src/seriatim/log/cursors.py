"""Cursors: created with the log's identity and checked against it before use."""

from __future__ import annotations

from typing import Literal

from seriatim.core.canonical import canonical_text
from seriatim.core.errors import Conflict, LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.core.query import Query
from seriatim.log.arguments import check_position, invalid_argument
from seriatim.store.log_identity import find_cursor_problem
from seriatim.store.port import Cursor, Store


def make_cursor(
    store: Store,
    tenant_id: str,
    purpose: Literal["subscription", "projection"],
    name: str,
    position: int,
    query: str = "",
) -> Cursor:
    """Return a cursor at a position; raises `InvalidArgument` if it is after the head."""
    check_position("position", position)
    if position > (head := store.head()):
        raise invalid_argument("position", f"must not be after the head: {position} > {head}")
    identity = store.identity()
    return Cursor(
        tenant_id=tenant_id,
        purpose=purpose,
        name=name,
        position=position,
        log_id=identity.log_id,
        epoch=identity.epoch,
        last_event_id=store.event_id_at(position) or "" if position else "",
        query=query,
    )


def reset_subscription(
    store: Store, tenant_id: str, name: str, position: int, query: Query
) -> None:
    """Set the cursor of a subscription to any position and accept the log's current identity.

    Its owner loses the lease, so that it continues there.
    """
    text = canonical_text(query.as_dict())
    cursor = make_cursor(store, tenant_id, "subscription", name, position, text)
    store.put_cursor(cursor, lease=None, reset=True)


def check_cursor(store: Store, cursor: Cursor, query: str) -> None:
    """Raise an error if a consumer cannot continue from its cursor.

    Raises:
        Conflict: The cursor was stored with another query.
        LogIdentityChanged: The log was restored or replaced since the cursor was stored.
    """
    if cursor.query != query:
        msg = (
            f"{cursor.name!r} exists with another query: use another name, or reset it with the "
            "new query"
        )
        raise Conflict(msg, details={"name": cursor.name})
    identity = LogIdentity(cursor.log_id, cursor.epoch)
    problem = find_cursor_problem(store, identity, cursor.position, cursor.last_event_id)
    if problem is not None:
        msg = (
            f"the cursor of {cursor.name!r} {problem}: the log was restored or replaced; "
            "check which events its consumer has processed, then reset the cursor"
        )
        raise LogIdentityChanged(msg, details={"name": cursor.name, "position": cursor.position})
