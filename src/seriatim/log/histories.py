"""Whether a stream of an import has the same past here, so that no two histories are mixed."""

from __future__ import annotations

from seriatim.core.errors import Conflict
from seriatim.core.event import StreamRef
from seriatim.core.ids import stream_key
from seriatim.log.transfer import Line
from seriatim.store.port import Store

FOLLOWED_MAX = 100_000


class Histories:
    """The ends of the streams that this log held before, compared with a file as it passes them.

    Numbers are kept by an import, so a hole in a stream lets nothing behind it in; only events of
    another past could fill it. Where the file has another event than the log at the number where
    the log's stream ended, the rest of that stream stays out. Only streams that went another way
    are remembered without a bound.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._empty = store.head() == 0
        self._ends: dict[bytes, tuple[int, str] | None] = {}
        self._diverged: set[bytes] = set()

    def check(self, tenant_id: str, line: Line, number: int) -> None:
        """Refuse an event of a stream that has gone another way here."""
        if self._empty or line.stream_type is None or line.stream_id is None:
            return
        key = stream_key(tenant_id, line.stream_type, line.stream_id)
        end = self._end(key, tenant_id, (line.stream_type, line.stream_id))
        if end is not None and line.stream_seq == end[0] and line.event_id != end[1]:
            self._diverged.add(key)
        if key in self._diverged:
            msg = f"line {number}: its stream holds other events here"
            raise Conflict(msg, details={"line": number})

    def _end(self, key: bytes, tenant_id: str, stream: StreamRef) -> tuple[int, str] | None:
        if key not in self._ends:
            if len(self._ends) >= FOLLOWED_MAX:
                del self._ends[next(iter(self._ends))]
            last = self._store.last_of_stream(tenant_id, stream)
            self._ends[key] = None if last is None else (last.stream_seq or 0, last.event_id)
        return self._ends[key]
