"""The log as the source of a handler's events: ranges by cursor, the same for every engine."""

from __future__ import annotations

import msgspec

from seriatim.core.errors import LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.core.handler import Handler
from seriatim.delivery.reset import LogCursor
from seriatim.store.log_identity import find_cursor_problem
from seriatim.store.port import Store


class LogRange(msgspec.Struct, frozen=True):
    """A range of positions to handle.

    Attributes:
        after: The position before the range.
        until: Its last position.
        head: The head of the log.
        log: The identity of the log.

    """

    after: int
    until: int
    head: int
    log: LogIdentity

    @property
    def events(self) -> int:
        """The number of positions."""
        return self.until - self.after


class LogSource:
    """Divides the log into ranges of at most `batch_events` positions.

    Attributes:
        name: The name of the cursor in the registry: a handler continues at it on every engine.
        position: The position of the last cursor that was used.

    """

    def __init__(self, store: Store, tenant_id: str | None, batch_events: int) -> None:
        """Create a source.

        Args:
            store: The store of the log.
            tenant_id: The tenant whose events are handled; None for all.
            batch_events: How many positions a range has at most.

        """
        self._store = store
        self._batch_events = batch_events
        # A reset finds the cursors of a log by this name: see `seriatim.delivery.reset`.
        self.name = f"log:{store.identity().log_id}:{'*' if tenant_id is None else tenant_id}"
        self.position = 0

    def next_range(self, handler: Handler, cursor: str | None) -> LogRange | None:
        """Return the range after a cursor, or None if there are no further events yet.

        Raises:
            LogIdentityChanged: The log was restored or replaced since the cursor was stored.

        """
        after = self.position = self._find_position(handler, cursor)
        head = self._store.head()
        identity = self._store.identity()  # of the log whose head was just read
        until = min(head, after + self._batch_events)
        return LogRange(after, until, head, identity) if until > after else None

    def make_cursor(self, log: LogIdentity, position: int, last_event_id: str | None = None) -> str:
        """Return the cursor at a position.

        Args:
            log: The identity of the log.
            position: The position.
            last_event_id: The id of the event there; by default it is looked up.

        """
        event_id = last_event_id or self._store.event_id_at(position) or ""
        cursor = LogCursor(log.log_id, log.epoch, position, event_id)
        return msgspec.json.encode(cursor).decode()

    def _find_position(self, handler: Handler, cursor: str | None) -> int:
        """Return the position of a cursor, or the handler's start if there is none."""
        if cursor is None:
            return min(handler.start, self._store.head())
        stored = msgspec.json.decode(cursor, type=LogCursor)
        identity = LogIdentity(stored.log_id, stored.epoch)
        problem = find_cursor_problem(self._store, identity, stored.position, stored.last_event_id)
        if problem is not None:
            msg = (
                f"the cursor of handler {handler.name} {problem}: the log was restored or "
                "replaced. Compare the handler's effects with the log, then run seriatim registry "
                f"reset {handler.name} --reason …"
            )
            raise LogIdentityChanged(msg, details={"handler": handler.name})
        return stored.position
