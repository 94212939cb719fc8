"""The Spark tasks of a worker: open the registry and run the handler loop on their events."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import msgspec
import pyarrow as pa

from seriatim.config import Settings
from seriatim.config.delivery import Registering
from seriatim.core.errors import LogIdentityChanged
from seriatim.core.event import EventRecord, LogIdentity
from seriatim.core.handling import Delivery, Handler
from seriatim.core.patterns import ALL, Names
from seriatim.delivery.claims import Claim, Passed
from seriatim.delivery.letters import Letters
from seriatim.delivery.loop import Loop, Tally
from seriatim.delivery.origin import starts_in
from seriatim.delivery.outage import Outage
from seriatim.delivery.registry import Registry
from seriatim.opening import open_registry, open_store
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.messages import HEADER, record_of
from seriatim.pipeline.reading import settle
from seriatim.pipeline.spread import Part
from seriatim.pipeline.wanted import Scan
from seriatim.pipeline.work.traced import traced
from seriatim.store.port import Store
from seriatim.telemetry.exporting import Exporting, joined

TALLY = ", ".join(f"{name} bigint" for name in Tally.__struct_fields__)


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A handler, its registry and its settings, sent to every task."""

    handler: Handler
    registry: str
    settings: Registering
    log: str | None = None  # URL of the log, to look up sequence numbers before the handler's start
    zero_based: frozenset[str] = frozenset()  # stream types whose first number is 0
    letters: Target | None = None
    exporting: Exporting | None = None  # where the task's process exports spans to

    def handled(self, deliveries: Iterable[Delivery]) -> pa.RecordBatch:
        """Handle events, and return the number of events by outcome as one row."""
        settle()
        with joined(self.exporting):
            counts = self._loop().handle(deliveries)
        columns = [[getattr(counts, name)] for name in Tally.__struct_fields__]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, pa.int64()) for column in columns],
            names=list(Tally.__struct_fields__),
        )

    def _loop(self) -> Loop:
        outage = Outage(self.settings.on_outage)
        registry = outage.through(lambda: _registry(os.getpid(), self.registry, self.settings))
        starts = None if self.log is None else self.starts
        return Loop(registry, traced(self.handler), starts=starts, letters=self._letters())

    def _letters(self) -> Letters | None:
        if self.letters is None:
            return None
        from seriatim.pipeline.kafka.letters import TopicLetters  # noqa: PLC0415 - an extra

        return TopicLetters(self.letters)

    def delivery(self, event: EventRecord, log: LogIdentity) -> Delivery:
        """Convert a record to a delivery."""
        return Delivery.of(event, 0 if event.stream_type in self.zero_based else 1, log)

    def starts(self, handler: Handler, blocked: Sequence[Claim]) -> list[Passed]:
        """Find the sequence numbers before the handler's start, which are passed over."""
        if self.log is None:
            return []
        return starts_in(_store(os.getpid(), self.log), handler, blocked)


# Cached, as one Python worker process runs many tasks; by process id, because of forks.
@lru_cache(maxsize=4)
def _registry(_process: int, url: str, settings: Registering) -> Registry:
    return open_registry(url, settings)


# Cached, so that looking up streams does not open a connection for each.
@lru_cache(maxsize=4)
def _store(_process: int, url: str) -> Store:
    return open_store(url, Settings(pool_size=1), create=False)


class LogTask(msgspec.Struct, frozen=True, kw_only=True):
    """Handles one partition of a range of the log."""

    work: Work
    part: Part
    log: LogIdentity

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Handle the partitions with the given numbers, and yield counts for each."""
        for batch in batches:
            for nth in batch.column(0).to_pylist():
                deliveries = (self.work.delivery(one, self.log) for one in self._events(nth))
                yield self.work.handled(deliveries)

    def _events(self, nth: int) -> Iterator[EventRecord]:
        handler = self.work.handler
        # In strict mode the loop needs every event, to know which numbers are passed over.
        if handler.mode == "strict":
            return self.part.events(nth)
        types = None if ALL in handler.events else Names.of(handler.events)
        stream_types = None if handler.stream_types is None else Names(handler.stream_types)
        return self.part.events(nth, Scan(types=types, stream_types=stream_types))


class KeptTask(msgspec.Struct, frozen=True, kw_only=True):
    """Handles deferred events of the registry."""

    work: Work

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Handle deliveries that are passed as JSON, and yield counts."""
        yield self.work.handled(_decode_deliveries(batches))


class _DeferredDelivery(Delivery, frozen=True, kw_only=True):
    """A delivery whose event stays encoded until the handler is called."""

    event: msgspec.Raw


def _decode_deliveries(batches: Iterable[pa.RecordBatch]) -> Iterator[Delivery]:
    for batch in batches:
        for text in batch.column("delivery").to_pylist():
            yield msgspec.json.decode(text, type=_DeferredDelivery)


class KafkaTask(msgspec.Struct, frozen=True, kw_only=True):
    """Handles the messages of a topic's partition in offset order."""

    work: Work
    tenant_id: str | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Handle messages, and yield counts."""
        yield self.work.handled(self._deliveries(batches))

    def _deliveries(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Delivery]:
        for batch in batches:
            for row in batch.to_pylist():
                found = self._delivery(row)
                if found is not None:
                    yield found

    def _delivery(self, row: dict[str, object]) -> Delivery | None:
        """Convert a message to a delivery; return None if it is of another tenant."""
        value, first = row["value"], row["first_seq"]
        try:
            event = record_of(value)  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            return strange(row, error)
        if self.tenant_id is not None and event.tenant_id != self.tenant_id:
            return None
        return Delivery.of(event, 0 if first == b"0" else 1, self._log(row))

    def _log(self, row: dict[str, object]) -> LogIdentity:
        """Return the log identity from a message's headers, or raise `LogIdentityChanged`."""
        log_id, epoch = row["log_id"], row["epoch"]
        if log_id is None or epoch is None:
            place = f"{row['topic']}/{row['partition']}/{row['offset']}"
            msg = (
                f"message {place} lacks the identity of its log (headers {HEADER}log and "
                f"{HEADER}epoch). Handler {self.work.handler.name} stops, because it cannot "
                "distinguish new events from handled ones; publish with seriatim publish"
            )
            raise LogIdentityChanged(msg, details={"handler": self.work.handler.name})
        return LogIdentity(str(log_id), int(str(epoch)))


def strange(row: dict[str, object], error: Exception) -> Delivery:
    """Convert a message that is not an event to a delivery, to be stored as a dead letter."""
    value = row["value"]
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else None
    return Delivery(
        event_id=f"{row['topic']}/{row['partition']}/{row['offset']}",
        event={"flaw": str(error)[:500], "value": text},
        flaw=str(error)[:500],
    )
