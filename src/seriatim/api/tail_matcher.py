"""Match new appends against the tails of a tenant: in a thread, in slices, within a budget."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator

import msgspec

from seriatim.api.memory_budget import MemoryBudget
from seriatim.api.tail_buffer import TailBuffer, TailChunk
from seriatim.core.errors import LimitExceeded
from seriatim.core.event import EventRecord, StreamRef
from seriatim.core.predicate import PayloadDocument
from seriatim.log.batches import Batch
from seriatim.wire.records import to_wire_record

SLICE_S = 0.02  # of a thread's time, before others have their turn
MATCH_BURST_S = 2.0  # of processor time that one tail's predicates may use at once
MATCH_SHARE = 0.1  # of a processor that they may use for good
_encode = msgspec.json.Encoder().encode

TailOffer = tuple[TailBuffer, TailChunk]


class TailMatcher:
    """Finds what of some appends each of some tails wants; `run` goes on where it stopped."""

    def __init__(
        self,
        groups: list[Batch],
        tails: Collection[TailBuffer],
        tenant_id: str,
        memory: MemoryBudget,
    ) -> None:
        self._tenant_id = tenant_id
        self._memory = memory
        self._texts: dict[int, bytes] = {}
        self._anywhere: list[TailBuffer] = []
        self._by_stream: dict[StreamRef, list[TailBuffer]] = defaultdict(list)
        for tail in tails:
            streams = tail.streams()
            if streams is None:
                self._anywhere.append(tail)
            for stream in streams or ():
                self._by_stream[stream].append(tail)
        self._steps = self._matched(groups)
        self.done = False

    def run(self) -> list[TailOffer]:
        """Match for a slice of time, and return what was found, in order."""
        found: list[TailOffer] = []
        until = time.thread_time() + SLICE_S
        for offer in self._steps:
            if offer is not None:
                found.append(offer)
            if time.thread_time() > until:
                return found
        self.done = True
        return found

    def _matched(self, groups: list[Batch]) -> Iterator[TailOffer | None]:
        for group in groups:
            documents = [PayloadDocument(record.payload_json) for record in group]
            pieces: dict[tuple[int, ...], TailChunk] = {}
            for tail in self._concerned(group):
                if tail.lagging:
                    continue  # its reader has left, or reads on by itself
                yield self._offer(tail, group, documents, pieces)

    def _concerned(self, group: Batch) -> list[TailBuffer]:
        """Return the tails that one append may be for, each once."""
        if not self._by_stream:
            return self._anywhere
        found = dict.fromkeys(self._anywhere)
        for record in group:
            if record.stream is not None:
                found.update(dict.fromkeys(self._by_stream.get(record.stream, ())))
        return list(found)

    def _offer(
        self,
        tail: TailBuffer,
        group: Batch,
        documents: list[PayloadDocument],
        pieces: dict[tuple[int, ...], TailChunk],
    ) -> TailOffer | None:
        begins = tail.query.min_position or 0  # which is no part of what matches
        began = time.thread_time()
        try:
            wanted = [
                record
                for record, document in zip(group, documents, strict=True)
                if record.position > begins and _matches(tail, record, document)
            ]
        except LimitExceeded as error:  # this tail's predicates, and no concern of the others
            tail.match_failure = error
            return None
        finally:
            _charge(tail, time.thread_time() - began)
        if not wanted or wanted[-1].position <= tail.position:
            return None
        key = tuple(record.position for record in wanted)
        piece = pieces.get(key)
        if piece is None:
            text = b",".join([self._text(record) for record in wanted])
            piece = pieces[key] = TailChunk(key[-1], text, self._tenant_id, self._memory)
        return tail, piece

    def _text(self, record: EventRecord) -> bytes:
        found = self._texts.get(record.position)
        if found is None:
            found = self._texts[record.position] = _encode(to_wire_record(record))
        return found


def _matches(tail: TailBuffer, record: EventRecord, document: PayloadDocument) -> bool:
    document.reset_steps()  # each tail has the whole bound on comparisons
    return tail.matcher.matches(record, document)


def _charge(tail: TailBuffer, seconds: float) -> None:
    """Count the time that a tail's predicates took; its share of a processor is given back."""
    now = time.monotonic()
    given = (now - tail.matched_at) * MATCH_SHARE if tail.matched_at else 0.0
    tail.matched_at = now
    tail.match_s = max(0.0, tail.match_s - given) + seconds


def match_budget_error(tail: TailBuffer) -> LimitExceeded | None:
    """Return the error of a tail whose predicates cost too much, None if they do not."""
    if tail.match_failure is not None or tail.match_s <= MATCH_BURST_S:
        return tail.match_failure
    msg = (
        f"tail_match_s is {tail.match_s:.1f}, over the bound of {MATCH_BURST_S:g}: the predicates "
        "of this tail cost too much for what is appended; narrow it by types, tags or streams"
    )
    details = {"limit": "tail_match_s", "bound": MATCH_BURST_S, "actual": round(tail.match_s, 3)}
    return LimitExceeded(msg, details=details)
