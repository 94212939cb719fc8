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

SLICE_S = 0.02  # of a thread's time, before other tenants run
MATCH_BURST_S = 2.0  # of processor time for the predicates of one tail, at once
MATCH_SHARE = 0.1  # of a processor, permanently
_encode = msgspec.json.Encoder().encode

TailOffer = tuple[TailBuffer, TailChunk]


class TailMatcher:
    """Find the events of appends that match each tail; `run` continues where it stopped.

    Args:
        appends: New appends of the tenant.
        tails: The tails to match.
        tenant_id: The tenant.
        memory: Counts the encoded appends.
    """

    def __init__(
        self,
        appends: list[Batch],
        tails: Collection[TailBuffer],
        tenant_id: str,
        memory: MemoryBudget,
    ) -> None:
        self._tenant_id = tenant_id
        self._memory = memory
        self._texts: dict[int, bytes] = {}
        self._unrestricted: list[TailBuffer] = []
        self._by_stream: dict[StreamRef, list[TailBuffer]] = defaultdict(list)
        for tail in tails:
            streams = tail.streams()
            if streams is None:
                self._unrestricted.append(tail)
            for stream in streams or ():
                self._by_stream[stream].append(tail)
        self._steps = self._match(appends)
        self.done = False

    def run(self) -> list[TailOffer]:
        """Match for a slice of time, and return the matching events of each tail, in order."""
        offers: list[TailOffer] = []
        deadline = time.thread_time() + SLICE_S
        for offer in self._steps:
            if offer is not None:
                offers.append(offer)
            if time.thread_time() > deadline:
                return offers
        self.done = True
        return offers

    def _match(self, appends: list[Batch]) -> Iterator[TailOffer | None]:
        for append in appends:
            documents = [PayloadDocument(record.payload_json) for record in append]
            chunks: dict[tuple[int, ...], TailChunk] = {}
            for tail in self._candidates(append):
                if tail.lagging:
                    continue  # it has ended, or reads from the log
                yield self._offer(tail, append, documents, chunks)

    def _candidates(self, append: Batch) -> list[TailBuffer]:
        """Return the tails that an append may match, each once."""
        if not self._by_stream:
            return self._unrestricted
        tails = dict.fromkeys(self._unrestricted)
        for record in append:
            if record.stream is not None:
                tails.update(dict.fromkeys(self._by_stream.get(record.stream, ())))
        return list(tails)

    def _offer(
        self,
        tail: TailBuffer,
        append: Batch,
        documents: list[PayloadDocument],
        chunks: dict[tuple[int, ...], TailChunk],
    ) -> TailOffer | None:
        """Return a tail with the events of an append that it has to send; None without any."""
        min_position = tail.query.min_position or 0  # `Matcher` does not check it
        # Processor time: waiting for the interpreter lock must not count against the tail.
        started = time.thread_time()
        try:
            matching = [
                record
                for record, document in zip(append, documents, strict=True)
                if record.position > min_position and _matches(tail, record, document)
            ]
        except LimitExceeded as error:  # ends this tail only
            tail.match_failure = error
            return None
        finally:
            _charge_tail(tail, time.thread_time() - started)
        # The tail has read earlier appends itself, before it joined the channel.
        if not matching or matching[-1].position <= tail.position:
            return None
        key = tuple(record.position for record in matching)
        chunk = chunks.get(key)
        if chunk is None:
            text = b",".join([self._encode_once(record) for record in matching])
            chunk = chunks[key] = TailChunk(key[-1], text, self._tenant_id, self._memory)
        return tail, chunk

    def _encode_once(self, record: EventRecord) -> bytes:
        text = self._texts.get(record.position)
        if text is None:
            text = self._texts[record.position] = _encode(to_wire_record(record))
        return text


def _matches(tail: TailBuffer, record: EventRecord, document: PayloadDocument) -> bool:
    document.reset_steps()  # the bound on comparisons applies to each tail
    return tail.matcher.matches(record, document)


def _charge_tail(tail: TailBuffer, seconds: float) -> None:
    """Charge the time of predicates to a tail, minus its share since the last charge."""
    now = time.monotonic()
    share = (now - tail.matched_at) * MATCH_SHARE if tail.matched_at else 0.0
    tail.matched_at = now
    tail.match_s = max(0.0, tail.match_s - share) + seconds


def match_budget_error(tail: TailBuffer) -> LimitExceeded | None:
    """Return the error of a tail whose predicates take too long, or None."""
    if tail.match_failure is not None or tail.match_s <= MATCH_BURST_S:
        return tail.match_failure
    msg = (
        f"tail_match_s is {tail.match_s:.1f}, over the bound of {MATCH_BURST_S:g}: the predicates "
        "of this tail take too long at the present rate of appends; restrict types, tags or streams"
    )
    details = {"limit": "tail_match_s", "bound": MATCH_BURST_S, "actual": round(tail.match_s, 3)}
    return LimitExceeded(msg, details=details)
