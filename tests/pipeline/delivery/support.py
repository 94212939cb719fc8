"""Helpers for tests of the publisher and of workers: logs, topics and messages."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

import seriatim
from seriatim import NewEvent
from seriatim.core.event import EventRecord
from seriatim.pipeline.kafka.address import Target, parse_target
from seriatim.pipeline.kafka.client import create_topics, get_offsets
from seriatim.pipeline.kafka.messages import decode_record

WAIT_S = 30.0


def append_events(url: str, streams: int = 5, each: int = 20, *, kind: str = "order") -> int:
    """Append events to streams in turn, and some without a stream; return their number."""
    with seriatim.open(url) as log:
        for number in range(each):
            log.append(
                [
                    NewEvent("order.changed", {"n": number}, stream=(kind, f"o-{stream}"))
                    for stream in range(streams)
                ]
            )
            log.append(
                [NewEvent("note.made", {"n": number}, metadata={"traceparent": f"t-{number}"})]
            )
        return log.head()


def create_topic(url: str, partitions: int = 3) -> Target:
    """Create the topic of a URL."""
    target = parse_target(url)
    assert target.single_topic is not None
    create_topics(target, [target.single_topic], partitions, 1)
    return target


def read_messages(target: Target, topic: str | None = None) -> list[Message]:
    """Read all messages of a topic, each partition in order."""
    name = topic or target.single_topic or ""
    bounds = get_offsets(target, [name])[name]
    consumer = Consumer(
        {
            **target.client_settings,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
        }
    )
    consumer.assign([TopicPartition(name, number, first) for number, (first, _) in bounds.items()])
    wanted = sum(end - first for first, end in bounds.values())
    found: list[Message] = []
    while len(found) < wanted:
        found += consumer.consume(min(1000, wanted - len(found)), timeout=WAIT_S)
    consumer.close()
    return sorted(found, key=lambda one: (one.partition() or 0, one.offset() or 0))


def read_records(target: Target, topic: str | None = None) -> list[EventRecord]:
    """Return the records that a topic holds."""
    return [decode_record(message.value() or b"") for message in read_messages(target, topic)]


def decode_headers(message: Message) -> dict[str, str]:
    """Return the headers of a message as strings."""
    found: Any = message.headers() or []
    return {name: value.decode() for name, value in found}


def wait_until(true: Callable[[], bool], seconds: float = 180.0) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
