"""Check that a consumer continues on the log it has read: same id, same epoch, same history."""

from __future__ import annotations

from seriatim.core.errors import LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.store.port import Store


def find_cursor_problem(
    store: Store, identity: LogIdentity, position: int, last_event_id: str
) -> str | None:
    """Return why a consumer cannot continue, or None if it can.

    The consumer has read the log `seen` up to `position`, where the event was `last_event_id`.
    """
    current = store.identity()
    head = store.head()
    if identity.log_id != current.log_id:
        return "belongs to another log"
    if identity.epoch != current.epoch:
        return f"is of epoch {identity.epoch}, the log is in epoch {current.epoch}"
    if position > head:
        return f"is at position {position}, after the head {head}"
    if position and store.event_id_at(position) != last_event_id:
        return f"was stored with another event at position {position}"
    return None


def check_same_log(
    store: Store, identity: LogIdentity, position: int, last_event_id: str, head: int
) -> None:
    """Raise `LogIdentityChanged` if the log was restored or replaced while being followed."""
    # After a restore the log may have grown past the position again, with other events.
    diverged = head > position > 0 and store.event_id_at(position) != last_event_id
    if head < position or store.identity() != identity or diverged:
        raise changed_log_error(position, head)


def changed_log_error(position: int, head: int) -> LogIdentityChanged:
    """Build the error of a consumer whose log was restored or replaced while it followed it."""
    msg = f"the log was restored or replaced while it was followed at position {position}"
    return LogIdentityChanged(msg, details={"position": position, "head": head})
