"""The events that every subject stores: orders with payloads of about 325 bytes and unique ids."""

import itertools
import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import msgspec

from seriatim import Filter, NewEvent, PayloadIndex, Query
from seriatim.log.appender import IdGenerator

STREAM_TYPE = "order"
EVENTS_PER_STREAM = 20
STREAMS_OPEN = 1000
CUSTOMERS = 100_000
REGIONS = ("eu", "us", "asia", "africa")
EVENT_TYPES = ("order.placed", "order.paid", "order.packed", "order.sent")
PAYLOADS_KEPT = 4096

NOTE = (
    "Leave it with the neighbours on the second floor if nobody answers the bell, "
    "thanks a lot, Ada Byron"
)

new_id = IdGenerator()


def customer(index: int) -> str:
    """Return the customer of the event at an index, deterministic and evenly spread."""
    return f"c-{index * 7919 % CUSTOMERS:06d}"


def payload(index: int, year: int | None) -> dict[str, Any]:
    """Return the payload of the event at an index; some have the label of a year."""
    labels = [f"zone-{index % 97:02d}"]
    if year is not None:
        labels.append(f"year-{year}")
    return {
        "order": f"o-{index:010d}",
        "customer": customer(index),
        "region": REGIONS[index % 4],
        "amount_cents": 100 + index % 90_000,
        "currency": "EUR",
        "express": index % 5 == 0,
        "labels": labels,
        "items": [
            {"sku": f"sku-{index % 5003:05d}", "count": 1 + index % 3},
            {"sku": f"sku-{index % 4999:05d}", "count": 1},
        ],
        "note": NOTE,
    }


def payload_text(index: int) -> bytes:
    """Return the payload at an index as JSON, as competitors store it."""
    return msgspec.json.encode(payload(index, None))


def payload_bytes() -> float:
    """Return the mean size of a stored payload in bytes."""
    sizes = [
        len(msgspec.json.encode(payload(index, year_of(index, 1000)))) for index in range(1000)
    ]
    return sum(sizes) / len(sizes)


def year_of(index: int, total: int) -> int | None:
    """Return the year label of every second event: 2024 in the first half, then 2025."""
    if index % 2:
        return None
    return 2024 if index < total // 2 else 2025


def stream_of(index: int) -> tuple[str, str]:
    """Return the stream of a prefilled event; streams have 20 events, 1,000 interleave."""
    block, within = divmod(index, STREAMS_OPEN * EVENTS_PER_STREAM)
    return STREAM_TYPE, f"o-{block * STREAMS_OPEN + within % STREAMS_OPEN:08d}"


def streams_in(total: int) -> int:
    """Return the approximate number of streams in a prefilled log of this size."""
    return max(STREAMS_OPEN, total // EVENTS_PER_STREAM)


def make_prefill_event(index: int, total: int) -> NewEvent:
    """Return the event at an index of a log that is filled before appends are measured."""
    year = year_of(index, total)
    tags = [f"customer:{customer(index)}", f"region:{REGIONS[index % 4]}"]
    if year is not None:
        tags.append(f"year:{year}")
    return NewEvent(
        EVENT_TYPES[index // STREAMS_OPEN % len(EVENT_TYPES)],
        payload(index, year),
        stream=stream_of(index),
        tags=tuple(tags),
    )


def make_order_event(index: int) -> NewEvent:
    """Return the event at an index of a log for reads, with an actor and sometimes a tag."""
    return NewEvent(
        EVENT_TYPES[index // STREAMS_OPEN % len(EVENT_TYPES)],
        payload(index, None),
        stream=stream_of(index),
        actor_type="user",
        actor_id=customer(index),
        correlation_id=f"basket-{index // EVENTS_PER_STREAM:08d}",
        tags=("express",) if index % 10 == 0 else (),
    )


def make_order_batches(start: int, total: int, size: int) -> Iterator[list[NewEvent]]:
    """Yield the events of a log for reads from `start` to `total` in batches."""
    for first in range(start, total, size):
        yield [make_order_event(index) for index in range(first, min(first + size, total))]


def make_prefill_batches(start: int, total: int, size: int) -> Iterator[list[NewEvent]]:
    """Yield the events of a log for appends from `start` to `total` in batches."""
    for first in range(start, total, size):
        yield [make_prefill_event(index, total) for index in range(first, min(first + size, total))]


class Orders:
    """Generates the measured events, with a new id, for existing streams.

    Their regions and customers differ from the prefilled ones, so that they match no context.
    """

    def __init__(self, streams: int, seed: int = 1) -> None:
        self._streams = streams
        self._random = random.Random(seed)
        self._payloads = itertools.cycle(
            [
                payload(index, None) | {"region": "lab", "customer": f"x-{index:06d}"}
                for index in range(PAYLOADS_KEPT)
            ]
        )

    def stream_id(self) -> str:
        """Return the id of a random existing stream."""
        return f"o-{self._random.randrange(self._streams):08d}"

    def event(self, stream_id: str | None = None) -> NewEvent:
        """Return one event for Seriatim, with an id of the caller that the log must check."""
        return NewEvent(
            "order.changed",
            next(self._payloads),
            stream=(STREAM_TYPE, stream_id or self.stream_id()),
            event_id=new_id(),
        )

    def batch(self, size: int, streams: int) -> list[NewEvent]:
        """Return a batch over `streams` streams."""
        ids = [self.stream_id() for _ in range(streams)]
        return [self.event(ids[index % streams]) for index in range(size)]

    def raw(self, stream_id: str | None = None) -> tuple[UUID, str, bytes]:
        """Return id, stream id and payload of an event, for competitors."""
        return (
            UUID(new_id()),
            stream_id or self.stream_id(),
            msgspec.json.encode(next(self._payloads)),
        )


ABSENT_CUSTOMER = "c-nobody"

TAG_CONTEXTS = {
    "absent key": Query([Filter(tags=[f"customer:{ABSENT_CUSTOMER}"])]),
    "selective": Query([Filter(tags=[f"customer:{customer(7)}"])]),
    "dense": Query([Filter(tags=["region:eu"])]),
    "dense, last match old": Query([Filter(tags=["year:2024"])]),
}
PAYLOAD_INDEXES = [
    PayloadIndex(event_type, path)
    for event_type in EVENT_TYPES
    for path in ("customer", "region", "labels[]")
]
PAYLOAD_CONTEXTS = {
    name: Query([Filter(types=EVENT_TYPES, payload=[predicate])])
    for name, predicate in {
        "absent key": {"customer": ABSENT_CUSTOMER},
        "selective": {"customer": customer(7)},
        "dense": {"region": "eu"},
        "dense, last match old": {"labels": ["year-2024"]},
    }.items()
}
# Two frequent tags that no event has both of: a scan of one for the other reads half the log.
WORST_TAGS = Query([Filter(tags=["year:2024", "year:2025"])])
WORST_PAYLOAD = Query([Filter(types=EVENT_TYPES, payload=[{"labels": ["year-2024", "year-2025"]}])])
