"""The log that a registry's events come from: its identity, and where its streams begin."""

from __future__ import annotations

from collections.abc import Sequence

from seriatim.core.event import EventRecord, LogIdentity
from seriatim.core.handling import Delivery, Handler
from seriatim.delivery.claims import Claim, Line, Passed
from seriatim.store.port import ReadSpec, Store


class LogOrigin:
    """Turns records of one log into deliveries."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._first_seqs: dict[str, int] = {}

    def identity(self) -> LogIdentity:
        """Return which log this is, and its epoch."""
        return self._store.identity()

    def delivery(self, event: EventRecord, log: LogIdentity) -> Delivery:
        """Return a record as the registry must know it; `log` is what `identity` returned."""
        kind = event.stream_type
        return Delivery.of(event, 1 if kind is None else self._first_seq(kind), log)

    def starts(self, handler: Handler, blocked: Sequence[Claim]) -> list[Passed]:
        """Look up where streams stand at the handler's start."""
        return starts_in(self._store, handler, blocked)

    def _first_seq(self, stream_type: str) -> int:
        found = self._first_seqs.get(stream_type)
        if found is None:
            kind = self._store.rules().kinds.get(stream_type)
            found = self._first_seqs[stream_type] = 1 if kind is None else kind.first_seq
        return found


def starts_in(store: Store, handler: Handler, blocked: Sequence[Claim]) -> list[Passed]:
    """Return the numbers of blocked events' streams that lie before the handler's start."""
    found: dict[Line, Passed] = {}
    for claim in blocked:
        one = claim.delivery
        if one.line is None or one.line in found:
            continue
        tenant_id, stream_type, stream_id = one.line
        spec = ReadSpec(
            tenant_id=tenant_id,
            stream=(stream_type, stream_id),
            after=handler.start,
            until=one.position,
            limit=1,
        )
        for first in store.read(spec):
            last = (first.stream_seq or 0) - 1
            found[one.line] = Passed(one.line, one.first_seq, one.first_seq, last)
    return [one for one in found.values() if one.to_seq >= one.from_seq]
