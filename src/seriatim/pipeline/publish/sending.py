"""The Spark task of the publisher: read one partition of the streams and send it in order."""

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
_RESULT_SCHEMA = pa.schema(
    [
        ("sent", pa.int64()),
        ("skipped", pa.int64()),
        ("position", pa.int64()),
        ("reason", pa.string()),
    ]
)


class Share(msgspec.Struct):
    """The number of events sent and skipped, and the refused event that ended the task, if any."""

    sent: int = 0
    skipped: int = 0
    position: int | None = None
    reason: str | None = None


class ShareSender(msgspec.Struct, frozen=True, kw_only=True):
    """Sends one partition of a range of the log."""

    target: Target
    part: Part
    log: LogIdentity
    zero_based: frozenset[str]
    settings: Publishing
    known: frozenset[Key] = frozenset()  # delivered events, not sent again

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the partitions with the given numbers, and yield one result for each."""
        settle()
        for batch in batches:
            for nth in batch.column(0).to_pylist():
                result = self._send_partition(nth)
                values = [[getattr(result, name)] for name in _RESULT_SCHEMA.names]
                yield pa.RecordBatch.from_pydict(
                    dict(zip(_RESULT_SCHEMA.names, values, strict=True)), schema=_RESULT_SCHEMA
                )

    def _send_partition(self, nth: int) -> Share:
        """Send a partition up to its end or to the first event that is too large."""
        result = Share()
        try:
            try:
                self._send(nth, self.part, result, ALONE_BYTES)
            except TooLarge as refused:
                if refused.alone:
                    raise
                # Either the batch or one of its messages was too large: send them again one by one.
                rest = msgspec.structs.replace(self.part, after=refused.number - 1)
                self._send(nth, rest, result, 0)
        except TooLarge as refused:
            result.position, result.reason = refused.number, str(refused)
        return result

    def _send(self, nth: int, part: Part, result: Share, alone_bytes: int) -> None:
        sending = Sending(self.target, self.settings.flush_timeout_s, alone_bytes=alone_bytes)
        headers = Headers(self.log, self.zero_based)
        flush_every = self.settings.flush_batch_size or self.settings.batch_size
        for event in part.events(nth):
            if (event.tenant_id, event.event_id) in self.known:
                result.skipped += 1
                continue
            time_ms = (instant_us(event.recorded_at) or 0) // 1000
            topic = sending.topic(event.tenant_id, event.stream_type)
            message = key_of(event), value_of(event), headers.of(event)
            sending.send(topic, *message, time_ms, event.position)
            result.sent += 1
            if not result.sent % flush_every:
                sending.flush()
            elif not result.sent % self.settings.batch_size:
                sending.poll()
        sending.flush()
