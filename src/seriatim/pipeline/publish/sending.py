"""What one task of the publisher does: read its share of the streams, and send it in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from seriatim.config.delivery import Publishing
from seriatim.core.event import LogIdentity
from seriatim.core.times import instant_us
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import Sending
from seriatim.pipeline.kafka.messages import Headers, key_of, value_of
from seriatim.pipeline.reading import settle
from seriatim.pipeline.spread import Part

SENT = "sent bigint, skipped bigint"
_SENT = pa.schema([("sent", pa.int64()), ("skipped", pa.int64())])


class ShareSender(msgspec.Struct, frozen=True, kw_only=True):
    """Sends one share of a range of the log."""

    target: Target
    part: Part
    log: LogIdentity
    zero_based: frozenset[str]
    settings: Publishing
    known: frozenset[str] = frozenset()  # ids that need not be sent again

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take the numbers of shares, and give how many events were sent and left out."""
        settle()
        for batch in batches:
            for nth in batch.column(0).to_pylist():
                counts = [[count] for count in self._sent(nth)]
                yield pa.RecordBatch.from_arrays([pa.array(one) for one in counts], schema=_SENT)

    def _sent(self, nth: int) -> tuple[int, int]:
        sending = Sending(self.target, self.settings.flush_timeout_s)
        headers = Headers(self.log, self.zero_based)
        every = self.settings.flush_batch_size or self.settings.batch_size
        sent = skipped = 0
        for event in self.part.events(nth):
            if event.event_id in self.known:
                skipped += 1
                continue
            time_ms = (instant_us(event.recorded_at) or 0) // 1000
            topic = sending.topic(event.tenant_id, event.stream_type)
            sending.send(topic, key_of(event), value_of(event), headers.of(event), time_ms)
            sent += 1
            if not sent % every:
                sending.flush()
            elif not sent % self.settings.batch_size:
                sending.poll()
        sending.flush()
        return sent, skipped
