"""Clients of Kafka: a producer that loses and repeats nothing by itself, topics, and offsets."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial

from seriatim.core.errors import BackendFailure, NotFound
from seriatim.core.extras import explained
from seriatim.core.limits import DEFAULT_LIMITS, KIB
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.java import java_settings
from seriatim.pipeline.kafka.messages import Header

try:
    from confluent_kafka import (
        Consumer,
        KafkaError,
        KafkaException,
        Message,
        Producer,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
except ModuleNotFoundError as error:
    raise explained(error) from error

logger = logging.getLogger("seriatim.kafka")

_LOOK_S = 15.0
# Above what one event of a log can be, with its envelope and the escapes of its JSON.
MESSAGE_BYTES = 2 * DEFAULT_LIMITS.append_bytes
_PRODUCER = {
    "enable.idempotence": "true",
    "acks": "all",
    "linger.ms": "5",
    "compression.type": "lz4",
    "queue.buffering.max.messages": "200000",
    "queue.buffering.max.kbytes": "262144",
    "message.max.bytes": str(MESSAGE_BYTES),
}
# A larger message is sent alone: should the broker refuse it, nothing after it was delivered.
ALONE_BYTES = 64 * KIB
_TOO_LARGE = ("MSG_SIZE_TOO_LARGE", "_MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")

_NO_LEADER_YET = (
    "FENCED_LEADER_EPOCH",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "UNKNOWN_LEADER_EPOCH",
    "UNKNOWN_TOPIC_OR_PART",
)


class TooLarge(Exception):  # noqa: N818 - the sender decides what it means
    """The broker, or the client, refuses a message because of its size: trying again is no help.

    `number` is what the sender called it by. Every message with a lower one is delivered. Unless it
    was sent `alone`, it may be its batch that is too large.
    """

    def __init__(self, number: int, topic: str, size: int, said: str, *, alone: bool) -> None:
        super().__init__(f"{size} bytes for topic {topic}: {said}")
        self.number = number
        self.size = size
        self.alone = alone


class Sending:
    """A producer, and what it has not delivered yet."""

    def __init__(self, target: Target, timeout_s: float, *, alone_bytes: int = ALONE_BYTES) -> None:
        self._alone_bytes = alone_bytes
        self._target = target
        self._timeout_s = timeout_s
        self._producer = _producer(os.getpid(), *_hashable(target))
        self._error: KafkaError | None = None
        self._refused: list[TooLarge] = []
        self._topics: dict[tuple[str, str | None], str] = {}

    def topic(self, tenant_id: str, stream_type: str | None) -> str:
        """Return the topic of an event."""
        found = self._topics.get((tenant_id, stream_type))
        if found is None:
            found = self._target.topic(tenant_id, stream_type)
            self._topics[tenant_id, stream_type] = found
        return found

    def send(  # noqa: PLR0913 - a message is its parts
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: list[Header],
        time_ms: int,
        number: int = 0,
    ) -> None:
        """Hand over a message; it is delivered when `flush` returns.

        A message that the broker may refuse for its size is sent alone, so that none of its stream
        overtakes it. Raise `TooLarge` for one that was refused.
        """
        size = len(key) + len(value)
        if size > self._alone_bytes:
            self.flush()
        self._hand_over(topic, key, value, headers, time_ms, partial(self._told, number, size))
        if size > self._alone_bytes:
            self.flush()

    def _hand_over(  # noqa: PLR0913 - a message is its parts
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: list[Header],
        time_ms: int,
        told: partial[None],
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    topic, value, key, on_delivery=told, timestamp=time_ms, headers=headers
                )
            except BufferError:
                self._producer.poll(0.1)  # the queue is full: let it drain
                self._check()
            except KafkaException as error:
                if error.args[0].name() not in _TOO_LARGE:
                    raise failure(error, "sending to Kafka") from error
                number, size = told.args
                told_why = error.args[0].str()
                self._refused.append(TooLarge(number, topic, size, told_why, alone=True))
                self.flush()
            else:
                return

    def poll(self) -> None:
        """Let the client say what became of messages."""
        self._producer.poll(0)
        self._check()

    def flush(self) -> None:
        """Wait until all is delivered; if that takes too long or fails, say so."""
        left = self._producer.flush(self._timeout_s)
        self._raise_failure()
        if left:
            self._purge()
            msg = (
                f"Kafka at {self._target.servers} did not take {left} messages within "
                f"{self._timeout_s:g} s; they are sent again"
            )
            raise BackendFailure(msg)
        if self._refused:
            refused, self._refused = self._refused, []
            raise min(refused, key=lambda one: one.number)

    def _told(self, number: int, size: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        if error.name() in _TOO_LARGE:
            alone = size > self._alone_bytes
            topic = message.topic() or ""
            self._refused.append(TooLarge(number, topic, size, error.str(), alone=alone))
        elif self._error is None:
            self._error = error

    def _check(self) -> None:
        self._raise_failure()
        if self._refused:
            self.flush()  # the messages before it are delivered first

    def _raise_failure(self) -> None:
        if self._error is not None:
            error = self._error
            self._purge()
            raise failure(KafkaException(error), "sending to Kafka")

    def _purge(self) -> None:
        self._producer.purge()
        self._producer.flush(1.0)
        self._error = None
        self._refused = []


def _hashable(target: Target) -> tuple[str, tuple[tuple[str, str], ...]]:
    return target.servers, tuple(sorted(target.client.items()))


@lru_cache(maxsize=4)  # a producer keeps its connections; by process, for forks
def _producer(_process: int, _servers: str, client: tuple[tuple[str, str], ...]) -> Producer:
    return Producer({**_PRODUCER, **dict(client)}, logger=logger)


def failure(error: KafkaException, doing: str) -> BackendFailure:
    """Explain an error of the client."""
    told: KafkaError = error.args[0]
    msg = f"Kafka failed while {doing}: {told.str()} ({told.name()})"
    retryable = not told.fatal() and told.name() not in _TOO_LARGE
    return BackendFailure(msg, details={"kafka": told.name()}, retryable=retryable)


def make_topics(
    target: Target, topics: Iterable[str], partitions: int, replication: int
) -> list[str]:
    """Make the topics that are not there yet; tell which."""
    admin = AdminClient({**target.client}, logger=logger)
    try:
        known = admin.list_topics(timeout=_LOOK_S).topics
        missing = sorted(set(topics) - set(known))
        if missing:
            config = {"max.message.bytes": str(MESSAGE_BYTES)}
            wanted = [NewTopic(one, partitions, replication, config=config) for one in missing]
            for made in admin.create_topics(wanted).values():
                _made(made)
    except KafkaException as error:
        raise failure(error, "making topics") from error
    return missing


def _made(future: object) -> None:
    try:
        future.result()  # type: ignore[attr-defined]
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def topics_of(target: Target, tenant_id: str | None) -> set[str]:
    """Return the topics that a template may have made, of one tenant or of all."""
    try:
        known = AdminClient({**target.client}, logger=logger).list_topics(timeout=_LOOK_S).topics
    except KafkaException as error:
        raise failure(error, "looking for topics") from error
    return {topic for topic in known if target.may_be(topic, tenant_id)}


def cluster_id(target: Target) -> str:
    """Return by which name a cluster knows itself, whatever address it was found at."""
    try:
        found = AdminClient({**target.client}, logger=logger).list_topics(timeout=_LOOK_S)
    except KafkaException as error:
        raise failure(error, "looking for the cluster") from error
    return str(found.cluster_id)


def offsets(target: Target, topics: Iterable[str]) -> dict[str, dict[int, tuple[int, int]]]:
    """Return the first and the next offset of every partition of some topics."""
    consumer = Consumer({**target.client, "group.id": "seriatim-offsets"}, logger=logger)
    try:
        return {topic: _offsets_of(consumer, topic) for topic in topics}
    except KafkaException as error:
        raise failure(error, "looking at topics") from error
    finally:
        consumer.close()


def _offsets_of(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    until = time.monotonic() + _LOOK_S
    while True:
        found = consumer.list_topics(topic, timeout=_LOOK_S).topics[topic]
        if found.error is None and found.partitions:
            break
        if time.monotonic() > until or found.error is None:
            msg = f"there is no topic {topic!r:.80}: publish to it, or create it"
            raise NotFound(msg, details={"topic": topic})
        time.sleep(0.1)
    return {number: _watermarks(consumer, topic, number, until) for number in found.partitions}


def _watermarks(consumer: Consumer, topic: str, number: int, until: float) -> tuple[int, int]:
    """Return the offsets of a partition; one that was just made, or moved, has no leader yet."""
    while True:
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_LOOK_S)
        except KafkaException as error:
            if error.args[0].name() not in _NO_LEADER_YET or time.monotonic() > until:
                raise
        time.sleep(0.1)


def spark_options(target: Target) -> Mapping[str, str]:
    """Return the target's settings as Spark's Kafka source takes them."""
    wanted = {**target.settings, "bootstrap.servers": target.servers}
    return {f"kafka.{name}": value for name, value in java_settings(wanted).items()}
