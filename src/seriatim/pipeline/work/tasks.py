"""The Spark tasks of a worker: open the registry and run the handler loop on their events."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from seriatim.config import Settings
from seriatim.config.delivery import RegistrySettings
from seriatim.core.errors import LogIdentityChanged
from seriatim.core.event import EventRecord, LogIdentity
from seriatim.core.handler import Delivery, Handler
from seriatim.core.patterns import WILDCARD, NameFilter
from seriatim.delivery.claims import Claim, PassedRange
from seriatim.delivery.entries import DeadLetterTarget
from seriatim.delivery.handler_loop import Counts, HandlerLoop
from seriatim.delivery.handler_spans import trace_handler
from seriatim.delivery.log_origin import find_ranges_before_start
from seriatim.delivery.registry import Registry
from seriatim.delivery.registry_database import OutageRetry
from seriatim.factory import open_registry, open_store
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.messages import HEADER_PREFIX, decode_record
from seriatim.pipeline.project.stream_partitions import PartitionedRange
from seriatim.pipeline.scan.options import ScanSpec
from seriatim.pipeline.source.partition_reader import freeze_imports
from seriatim.store.port import Store
from seriatim.telemetry.span_export import SpanExport, join_span_export

COUNTS_SCHEMA = ", ".join(f"{name} bigint" for name in Counts.__struct_fields__)


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A handler, its registry and its settings, sent to every task."""

    handler: Handler
    registry_url: str
    settings: RegistrySettings
    log_url: str | None = None  # to look up sequence numbers before the handler's start
    zero_based: frozenset[str] = frozenset()  # stream types whose first number is 0
    dead_letters: Target | None = None
    span_export: SpanExport | None = None  # where the task's process exports spans to

    def handle(self, deliveries: Iterable[Delivery]) -> pa.RecordBatch:
        """Handle events, and return the number of events by outcome as one row."""
        freeze_imports()
        with join_span_export(self.span_export):
            counts = self._loop().handle(deliveries)
        columns = [[getattr(counts, name)] for name in Counts.__struct_fields__]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, pa.int64()) for column in columns],
            names=list(Counts.__struct_fields__),
        )

    def _loop(self) -> HandlerLoop:
        outage = OutageRetry(self.settings.on_outage)
        registry = outage.run(
            lambda: _open_cached_registry(os.getpid(), self.registry_url, self.settings)
        )
        start_lookup = None if self.log_url is None else self.ranges_before_start
        return HandlerLoop(
            registry,
            trace_handler(self.handler),
            start_lookup=start_lookup,
            dead_letters=self._dead_letter_target(),
        )

    def _dead_letter_target(self) -> DeadLetterTarget | None:
        if self.dead_letters is None:
            return None
        from seriatim.pipeline.kafka.client import DeadLetterTopic  # noqa: PLC0415 - an extra

        return DeadLetterTopic(self.dead_letters)

    def to_delivery(self, event: EventRecord, log: LogIdentity) -> Delivery:
        """Convert a record to a delivery."""
        return Delivery.of(event, 0 if event.stream_type in self.zero_based else 1, log)

    def ranges_before_start(self, handler: Handler, blocked: Sequence[Claim]) -> list[PassedRange]:
        """Find the sequence numbers before the handler's start, which are passed over."""
        if self.log_url is None:
            return []
        return find_ranges_before_start(
            _open_cached_store(os.getpid(), self.log_url), handler, blocked
        )


# Cached, as one Python worker process runs many tasks; by process id, because of forks.
@lru_cache(maxsize=4)
def _open_cached_registry(_process: int, url: str, settings: RegistrySettings) -> Registry:
    return open_registry(url, settings)


# Cached, so that looking up streams does not open a connection for each.
@lru_cache(maxsize=4)
def _open_cached_store(_process: int, url: str) -> Store:
    return open_store(url, Settings(pool_size=1), create=False)


class LogTask(msgspec.Struct, frozen=True, kw_only=True):
    """Handles one partition of a range of the log."""

    spec: TaskSpec
    part: PartitionedRange
    log: LogIdentity

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Handle the partitions with the given numbers, and yield counts for each."""
        for batch in batches:
            for nth in batch.column(0).to_pylist():
                deliveries = (self.spec.to_delivery(event, self.log) for event in self._events(nth))
                yield self.spec.handle(deliveries)

    def _events(self, nth: int) -> Iterator[EventRecord]:
        handler = self.spec.handler
        # In strict mode the loop needs every event, to know which numbers are passed over.
        if handler.mode == "strict":
            return self.part.events(nth)
        types = None if WILDCARD in handler.events else NameFilter.parse(handler.events)
        stream_types = None if handler.stream_types is None else NameFilter(handler.stream_types)
        return self.part.events(nth, ScanSpec(types=types, stream_types=stream_types))


class DeferredTask(msgspec.Struct, frozen=True, kw_only=True):
    """Handles deferred events of the registry."""

    spec: TaskSpec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Handle deliveries that are passed as JSON, and yield counts."""
        yield self.spec.handle(_decode_deliveries(batches))


class _DeferredDelivery(Delivery, frozen=True, kw_only=True):
    """A delivery whose event stays encoded until the handler is called."""

    # An event whose claim is refused is never decoded.

    event: msgspec.Raw


def _decode_deliveries(batches: Iterable[pa.RecordBatch]) -> Iterator[Delivery]:
    for batch in batches:
        for text in batch.column("delivery").to_pylist():
            yield msgspec.json.decode(text, type=_DeferredDelivery)


class KafkaTask(msgspec.Struct, frozen=True, kw_only=True):
    """Handles the messages of a topic's partition in offset order."""

    spec: TaskSpec
    tenant_id: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Handle messages, and yield counts."""
        yield self.spec.handle(self._deliveries(batches))

    def _deliveries(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Delivery]:
        for batch in batches:
            for row in batch.to_pylist():
                delivery = self._delivery(row)
                if delivery is not None:
                    yield delivery

    def _delivery(self, row: dict[str, Any]) -> Delivery | None:
        """Convert a message to a delivery; return None if it is of another tenant."""
        value, first = row["value"], row["first_seq"]
        try:
            event = decode_record(value)
        except (ValueError, TypeError) as error:
            return invalid_delivery(row, error)
        if self.tenant_id is not None and event.tenant_id != self.tenant_id:
            return None
        return Delivery.of(event, 0 if first == b"0" else 1, self._log(row))

    def _log(self, row: dict[str, object]) -> LogIdentity:
        """Return the log identity from a message's headers, or raise `LogIdentityChanged`."""
        log_id, epoch = row["log_id"], row["epoch"]
        if log_id is None or epoch is None:
            place = f"{row['topic']}/{row['partition']}/{row['offset']}"
            msg = (
                f"message {place} lacks the identity of its log (headers {HEADER_PREFIX}log and "
                f"{HEADER_PREFIX}epoch). Handler {self.spec.handler.name} stops, because it cannot "
                "distinguish new events from handled ones; publish with seriatim publish"
            )
            raise LogIdentityChanged(msg, details={"handler": self.spec.handler.name})
        return LogIdentity(str(log_id), int(str(epoch)))


def invalid_delivery(row: dict[str, object], error: Exception) -> Delivery:
    """Convert a message that is not an event to a delivery, to be stored as a dead letter."""
    value = row["value"]
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else None
    return Delivery(
        event_id=f"{row['topic']}/{row['partition']}/{row['offset']}",
        event={"flaw": str(error)[:500], "value": text},
        flaw=str(error)[:500],
    )
