"""Whether a stream of an import has the same past here, so that no two histories are mixed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from seriatim.core.errors import Conflict
from seriatim.core.event import StreamRef
from seriatim.log.transfer import Line
from seriatim.store.port import Store

FOLLOWED_MAX = 100_000

_Stream = tuple[str, str, str]  # tenant, type, id


class Histories:
    """The ends of the streams that this log held before, compared with a file as it passes them.

    Numbers are kept by an import, so a hole in a stream lets nothing behind it in; only events of
    another past could fill it. Where the file has another event than the log at the number where
    the log's stream ended, the rest of that stream stays out. Only streams that went another way
    are remembered without a bound.
    """

    def __init__(self, store: Store, tenant_id: str) -> None:
        self._store = store
        self._tenant_id = tenant_id
        self._empty = store.head() == 0
        self._ends: dict[_Stream, tuple[int | None, str] | None] = {}
        self._diverged: set[_Stream] = set()

    def look_up(self, lines: Iterable[Line]) -> None:
        """Find where the streams of these lines ended, all at once, before any of them is sent."""
        if self._empty:
            return
        missing: dict[str, list[StreamRef]] = defaultdict(list)
        for stream in {found for line in lines if (found := self._stream(line)) is not None}:
            if stream not in self._ends:
                missing[stream[0]].append(stream[1:])
        for tenant_id, streams in missing.items():
            lasts = self._store.last_of_streams(tenant_id, streams)
            for ref, last in zip(streams, lasts, strict=True):
                if len(self._ends) >= FOLLOWED_MAX:
                    del self._ends[next(iter(self._ends))]
                end = None if last is None else (last.stream_seq, last.event_id)
                self._ends[tenant_id, *ref] = end

    def check(self, line: Line, number: int) -> None:
        """Refuse an event of a stream that has gone another way here."""
        if self._empty or (stream := self._stream(line)) is None:
            return
        if stream not in self._ends:  # more of them were looked up at once than are followed
            self.look_up([line])
        end = self._ends[stream]
        if end is not None and line.stream_seq == end[0] and line.event_id != end[1]:
            self._diverged.add(stream)
        if stream in self._diverged:
            msg = f"line {number}: its stream holds other events here"
            raise Conflict(msg, details={"line": number})

    def _stream(self, line: Line) -> _Stream | None:
        if line.stream_type is None or line.stream_id is None:
            return None
        return line.tenant_id or self._tenant_id, line.stream_type, line.stream_id
