"""The log that a registry's events come from: its identity and the start of its streams."""

from __future__ import annotations

from collections.abc import Sequence

from seriatim.core.event import EventRecord, LogIdentity
from seriatim.core.handler import Delivery, Handler
from seriatim.delivery.claims import Claim, PassedRange, StreamKey
from seriatim.store.port import ReadSpec, Store


class LogOrigin:
    """Converts records of one log to deliveries."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._first_seqs: dict[str, int] = {}

    def identity(self) -> LogIdentity:
        """Return the id and the epoch of the log."""
        return self._store.identity()

    def to_delivery(self, event: EventRecord, log: LogIdentity) -> Delivery:
        """Convert a record to a delivery; `log` is the result of `identity`."""
        stream_type = event.stream_type
        first_seq = 1 if stream_type is None else self._get_first_seq(stream_type)
        return Delivery.of(event, first_seq, log)

    def ranges_before_start(self, handler: Handler, blocked: Sequence[Claim]) -> list[PassedRange]:
        """Find the sequence numbers before the handler's start; see `find_ranges_before_start`."""
        return find_ranges_before_start(self._store, handler, blocked)

    def _get_first_seq(self, stream_type: str) -> int:
        """Return the first sequence number of a stream type, looked up once."""
        first_seq = self._first_seqs.get(stream_type)
        if first_seq is None:
            kind = self._store.rules().kinds.get(stream_type)
            first_seq = self._first_seqs[stream_type] = 1 if kind is None else kind.first_seq
        return first_seq


def find_ranges_before_start(
    store: Store, handler: Handler, blocked: Sequence[Claim]
) -> list[PassedRange]:
    """Find the sequence numbers of blocked streams that lie before the handler's start.

    Args:
        store: The store of the log.
        handler: A handler with a start position.
        blocked: Claims whose streams the registry has not seen before.

    Returns:
        One range for each stream that has events at or before the start.

    """
    ranges: dict[StreamKey, PassedRange] = {}
    for claim in blocked:
        delivery = claim.delivery
        if delivery.ordered_stream is None or delivery.ordered_stream in ranges:
            continue
        tenant_id, stream_type, stream_id = delivery.ordered_stream
        spec = ReadSpec(
            tenant_id=tenant_id,
            stream=(stream_type, stream_id),
            after=handler.start,
            until=delivery.position,
            limit=1,
        )
        # The first event after the start: everything before it in its stream is passed over.
        for first in store.read(spec):
            last = (first.stream_seq or 0) - 1
            ranges[delivery.ordered_stream] = PassedRange(
                delivery.ordered_stream, delivery.first_seq, delivery.first_seq, last
            )
    return [item for item in ranges.values() if item.to_seq >= item.from_seq]
