"""The Spark task of the publisher: read one partition of the streams and send it in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

from seriatim.config.delivery import PublisherSettings
from seriatim.core.event import LogIdentity
from seriatim.core.times import parse_us
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import SEND_ALONE_BYTES, MessageSender, MessageTooLarge
from seriatim.pipeline.kafka.messages import HeaderBuilder, encode_key, encode_value
from seriatim.pipeline.project.stream_partitions import PartitionedRange
from seriatim.pipeline.publish.lookback import EventKey
from seriatim.pipeline.source.partition_reader import freeze_imports

SEND_RESULT_SCHEMA = "sent bigint, skipped bigint, position bigint, reason string"
_RESULT_SCHEMA = pa.schema(
    [
        ("sent", pa.int64()),
        ("skipped", pa.int64()),
        ("position", pa.int64()),
        ("reason", pa.string()),
    ]
)


class SendResult(msgspec.Struct):
    """The number of events sent and skipped, and the refused event that ended the task, if any."""

    sent: int = 0
    skipped: int = 0
    position: int | None = None
    reason: str | None = None


class SendTask(msgspec.Struct, frozen=True, kw_only=True):
    """Sends one partition of a range of the log."""

    target: Target
    part: PartitionedRange
    log: LogIdentity
    zero_based: frozenset[str]
    settings: PublisherSettings
    skip_keys: frozenset[EventKey] = frozenset()  # delivered events, not sent again

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the partitions with the given numbers, and yield one result for each."""
        freeze_imports()
        for batch in batches:
            for nth in batch.column(0).to_pylist():
                result = self._send_partition(nth)
                values = [[getattr(result, name)] for name in _RESULT_SCHEMA.names]
                yield pa.RecordBatch.from_pydict(
                    dict(zip(_RESULT_SCHEMA.names, values, strict=True)), schema=_RESULT_SCHEMA
                )

    def _send_partition(self, nth: int) -> SendResult:
        """Send a partition up to its end or to the first event that is too large."""
        result = SendResult()
        try:
            try:
                self._send(nth, self.part, result, SEND_ALONE_BYTES)
            except MessageTooLarge as refused:
                if refused.sent_alone:
                    raise
                # Either the batch or one of its messages was too large: send them again one by one.
                rest = msgspec.structs.replace(self.part, after=refused.number - 1)
                self._send(nth, rest, result, 0)
        except MessageTooLarge as refused:
            result.position, result.reason = refused.number, str(refused)
        return result

    def _send(self, nth: int, part: PartitionedRange, result: SendResult, alone_bytes: int) -> None:
        sending = MessageSender(self.target, self.settings.flush_timeout_s, alone_bytes=alone_bytes)
        headers = HeaderBuilder(self.log, self.zero_based)
        flush_every = self.settings.flush_batch_size or self.settings.batch_size
        for event in part.events(nth):
            if (event.tenant_id, event.event_id) in self.skip_keys:
                result.skipped += 1
                continue
            time_ms = (parse_us(event.recorded_at) or 0) // 1000
            topic = sending.topic_for(event.tenant_id, event.stream_type)
            message = encode_key(event), encode_value(event), headers.build(event)
            sending.send(topic, *message, time_ms, event.position)
            result.sent += 1
            if not result.sent % flush_every:
                sending.flush()
            elif not result.sent % self.settings.batch_size:
                sending.poll()
        sending.flush()
