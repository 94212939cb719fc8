"""Detect imported streams whose history differs from the log's, so that histories never mix."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from seriatim.core.errors import Conflict
from seriatim.core.event import StreamRef
from seriatim.log.export_format import ExportLine
from seriatim.store.port import Store

TRACKED_STREAMS_MAX = 100_000

_Stream = tuple[str, str, str]  # tenant, type, id


class DivergenceDetector:
    """Compare the last events of the log's streams with the events of an import file.

    An import preserves sequence numbers, so a gap in a stream keeps all later events out; only
    events of another history could fill it. If the file has another event than the log at the
    sequence number where the log's stream ended, the rest of that stream is refused.

    Memory is bounded except for the set of diverged streams.
    """

    def __init__(self, store: Store, tenant_id: str) -> None:
        self._store = store
        self._tenant_id = tenant_id
        self._empty = store.head() == 0
        self._ends: dict[_Stream, tuple[int | None, str] | None] = {}
        self._diverged: set[_Stream] = set()

    def load_stream_ends(self, lines: Iterable[ExportLine]) -> None:
        """Load the last events of the streams of these lines, in one query per tenant.

        Must be called before any of the lines is committed.
        """
        if self._empty:
            return
        missing: dict[str, list[StreamRef]] = defaultdict(list)
        for stream in {found for line in lines if (found := self._stream_key(line)) is not None}:
            if stream not in self._ends:
                missing[stream[0]].append(stream[1:])
        for tenant_id, streams in missing.items():
            lasts = self._store.last_of_streams(tenant_id, streams)
            for ref, last in zip(streams, lasts, strict=True):
                if len(self._ends) >= TRACKED_STREAMS_MAX:
                    del self._ends[next(iter(self._ends))]
                end = None if last is None else (last.stream_seq, last.event_id)
                self._ends[tenant_id, *ref] = end

    def check(self, line: ExportLine, number: int) -> None:
        """Raise `Conflict` for an event of a stream that has diverged."""
        if self._empty or (stream := self._stream_key(line)) is None:
            return
        if stream not in self._ends:  # evicted: the page had more streams than are tracked
            self.load_stream_ends([line])
        end = self._ends[stream]
        if end is not None and line.stream_seq == end[0] and line.event_id != end[1]:
            self._diverged.add(stream)
        if stream in self._diverged:
            msg = f"line {number}: the log has a stream of that name with other events"
            raise Conflict(msg, details={"line": number})

    def _stream_key(self, line: ExportLine) -> _Stream | None:
        if line.stream_type is None or line.stream_id is None:
            return None
        return line.tenant_id or self._tenant_id, line.stream_type, line.stream_id
