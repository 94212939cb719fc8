"""What one task of the publisher does: read its share of the streams, and send it in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from seriatim.config.delivery import Publishing
from seriatim.core.event import LogIdentity
from seriatim.core.times import instant_us
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import ALONE_BYTES, Sending, TooLarge
from seriatim.pipeline.kafka.messages import Headers, key_of, value_of
from seriatim.pipeline.publish.lookback import Key
from seriatim.pipeline.reading import settle
from seriatim.pipeline.spread import Part

SENT = "sent bigint, skipped bigint, position bigint, reason string"
_SENT = pa.schema(
    [
        ("sent", pa.int64()),
        ("skipped", pa.int64()),
        ("position", pa.int64()),
        ("reason", pa.string()),
    ]
)


class Share(msgspec.Struct):
    """What a task sent of its share, and the event that the broker refused, which ended it."""

    sent: int = 0
    skipped: int = 0
    position: int | None = None
    reason: str | None = None


class ShareSender(msgspec.Struct, frozen=True, kw_only=True):
    """Sends one share of a range of the log."""

    target: Target
    part: Part
    log: LogIdentity
    zero_based: frozenset[str]
    settings: Publishing
    known: frozenset[Key] = frozenset()  # events that need not be sent again

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the numbers of shares, and give how many events were sent and left out."""
        settle()
        for batch in batches:
            for nth in batch.column(0).to_pylist():
                share = self._sent(nth)
                values = [[getattr(share, name)] for name in _SENT.names]
                yield pa.RecordBatch.from_pydict(
                    dict(zip(_SENT.names, values, strict=True)), schema=_SENT
                )

    def _sent(self, nth: int) -> Share:
        share = Share()
        try:
            try:
                self._send(nth, self.part, share, ALONE_BYTES)
            except TooLarge as refused:
                if refused.alone:
                    raise
                # The batch was too large, or one of its messages: they go again, one by one.
                rest = msgspec.structs.replace(self.part, after=refused.number - 1)
                self._send(nth, rest, share, 0)
        except TooLarge as refused:
            share.position, share.reason = refused.number, str(refused)
        return share

    def _send(self, nth: int, part: Part, share: Share, alone_bytes: int) -> None:
        sending = Sending(self.target, self.settings.flush_timeout_s, alone_bytes=alone_bytes)
        headers = Headers(self.log, self.zero_based)
        every = self.settings.flush_batch_size or self.settings.batch_size
        for event in part.events(nth):
            if (event.tenant_id, event.event_id) in self.known:
                share.skipped += 1
                continue
            time_ms = (instant_us(event.recorded_at) or 0) // 1000
            topic = sending.topic(event.tenant_id, event.stream_type)
            message = key_of(event), value_of(event), headers.of(event)
            sending.send(topic, *message, time_ms, event.position)
            share.sent += 1
            if not share.sent % every:
                sending.flush()
            elif not share.sent % self.settings.batch_size:
                sending.poll()
        sending.flush()
