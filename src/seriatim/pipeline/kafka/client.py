"""Kafka clients: an idempotent producer with confirmed delivery, topics, and offsets."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import lru_cache, partial

import msgspec

from seriatim.core.errors import BackendFailure, NotFound
from seriatim.core.event import EventRecord
from seriatim.core.extras import explain_missing_module
from seriatim.core.limits import DEFAULT_LIMITS, KIB
from seriatim.delivery.entries import DeadLetter
from seriatim.pipeline.kafka.address import Target, java_settings
from seriatim.pipeline.kafka.messages import HEADER_PREFIX, KafkaHeader, encode_key, encode_value

try:
    from confluent_kafka import (
        Consumer,
        KafkaError,
        KafkaException,
        Message,
        Producer,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # re-exported
except ModuleNotFoundError as error:
    raise explain_missing_module(error) from error

logger = logging.getLogger("seriatim")
client_logger = logging.getLogger("seriatim.kafka")  # the messages of librdkafka

_METADATA_TIMEOUT_S = 15.0
# Twice the largest append: room for the envelope of an event and for escapes in its JSON.
MAX_MESSAGE_BYTES = 2 * DEFAULT_LIMITS.append_bytes
_PRODUCER = {
    # The client repeats lost requests: idempotence keeps the order per partition and adds no
    # duplicates, and with acks=all a report of delivery survives the loss of a broker.
    "enable.idempotence": "true",
    "acks": "all",
    "linger.ms": "5",
    "compression.type": "lz4",
    "queue.buffering.max.messages": "200000",
    "queue.buffering.max.kbytes": "262144",
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
}
# A larger message is sent alone: if the broker refuses it, no later message was delivered.
SEND_ALONE_BYTES = 64 * KIB
_TOO_LARGE = ("MSG_SIZE_TOO_LARGE", "_MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")

# Errors of a partition that was just created or is moving to another broker.
_NO_LEADER_YET = (
    "FENCED_LEADER_EPOCH",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "OFFSET_NOT_AVAILABLE",
    "UNKNOWN_LEADER_EPOCH",
    "UNKNOWN_TOPIC_OR_PART",
)


class MessageTooLarge(Exception):  # noqa: N818 - the sender decides whether it is an error
    """The broker or the client refused a message because of its size; a retry does not help.

    Attributes:
        number: The number that the sender gave the message. All lower ones are delivered.
        size: The size of key and value in bytes.
        alone: Whether the message was sent alone. If not, its batch may be too large.

    """

    def __init__(self, number: int, topic: str, size: int, reason: str, *, alone: bool) -> None:
        super().__init__(f"{size} bytes for topic {topic}: {reason}")
        self.number = number
        self.size = size
        self.sent_alone = alone


class MessageSender:
    """Sends messages with a shared producer and reports their delivery.

    Call `flush` before relying on delivery: `send` only queues a message.
    """

    def __init__(
        self, target: Target, timeout_s: float, *, alone_bytes: int = SEND_ALONE_BYTES
    ) -> None:
        self._alone_bytes = alone_bytes
        self._target = target
        self._timeout_s = timeout_s
        self._producer = _open_producer(os.getpid(), *_cache_key(target))
        self._error: KafkaError | None = None
        self._refused: list[MessageTooLarge] = []
        self._topics: dict[tuple[str, str | None], str] = {}

    def topic_for(self, tenant_id: str, stream_type: str | None) -> str:
        """Return the topic of an event, cached by tenant and stream type."""
        topic = self._topics.get((tenant_id, stream_type))
        if topic is None:
            topic = self._target.topic_for(tenant_id, stream_type)
            self._topics[tenant_id, stream_type] = topic
        return topic

    def send(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: list[KafkaHeader],
        time_ms: int,
        number: int = 0,
    ) -> None:
        """Queue a message; it is delivered when `flush` returns.

        A message above the limit `alone_bytes` is sent alone, so that no later message of its
        stream is delivered before it.

        Args:
            topic: The topic.
            key: The key, which selects the partition.
            value: The value.
            headers: The headers.
            time_ms: The timestamp in milliseconds since 1970.
            number: The number by which `MessageTooLarge` identifies the message.

        Raises:
            MessageTooLarge: A message was refused because of its size.
            BackendFailure: Delivery failed.

        """
        size = len(key) + len(value)
        # Alone on both sides: the messages before it are delivered, those after it not yet sent.
        if size > self._alone_bytes:
            self.flush()
        on_delivery = partial(self._on_delivery, number, size)
        self._produce(topic, key, value, headers, time_ms, on_delivery)
        if size > self._alone_bytes:
            self.flush()

    def _produce(
        self,
        topic: str,
        key: bytes,
        value: bytes,
        headers: list[KafkaHeader],
        time_ms: int,
        on_delivery: partial[None],
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    topic, value, key, on_delivery=on_delivery, timestamp=time_ms, headers=headers
                )
            except BufferError:
                self._producer.poll(0.1)  # the local queue is full: serve callbacks, try again
                self._check()
            except KafkaException as error:
                if error.args[0].name() not in _TOO_LARGE:
                    raise kafka_error(error, "sending to Kafka") from error
                number, size = on_delivery.args
                reason = error.args[0].str()
                self._refused.append(MessageTooLarge(number, topic, size, reason, alone=True))
                self.flush()
            else:
                return

    def poll(self) -> None:
        """Process delivery reports, and raise the first failure."""
        self._producer.poll(0)
        self._check()

    def flush(self) -> None:
        """Wait until all queued messages are delivered.

        Raises:
            MessageTooLarge: The refused message with the lowest number.
            BackendFailure: Delivery failed or timed out. Undelivered messages are discarded.

        """
        unacknowledged = self._producer.flush(self._timeout_s)
        self._raise_failure()
        if unacknowledged:
            self._purge()
            msg = (
                f"Kafka at {self._target.servers} did not acknowledge {unacknowledged} messages "
                f"within {self._timeout_s:g} s; they will be sent again. Check the brokers, or "
                "raise the flush timeout"
            )
            raise BackendFailure(msg)
        if self._refused:
            refused, self._refused = self._refused, []
            raise min(refused, key=lambda error: error.number)

    def _on_delivery(
        self, number: int, size: int, error: KafkaError | None, message: Message
    ) -> None:
        """Note a delivery report; called by the client within `poll` and `flush`."""
        if error is None:
            return
        # Noted, not raised: `flush` first waits for the reports of the other messages.
        if error.name() in _TOO_LARGE:
            alone = size > self._alone_bytes
            topic = message.topic() or ""
            self._refused.append(MessageTooLarge(number, topic, size, error.str(), alone=alone))
        elif self._error is None:
            self._error = error

    def _check(self) -> None:
        self._raise_failure()
        if self._refused:
            self.flush()  # deliver the messages before the refused one, then raise

    def _raise_failure(self) -> None:
        if self._error is not None:
            error = self._error
            self._purge()
            raise kafka_error(KafkaException(error), "sending to Kafka")

    def _purge(self) -> None:
        """Discard queued messages: the producer is shared, and the caller sends them again."""
        self._producer.purge()
        self._producer.flush(1.0)
        self._error = None
        self._refused = []


def _cache_key(target: Target) -> tuple[str, tuple[tuple[str, str], ...]]:
    return target.servers, tuple(sorted(target.client_settings.items()))


# Cached, as a producer owns connections and threads. The process id is part of the key, because
# these do not survive a fork.
@lru_cache(maxsize=4)
def _open_producer(_process: int, _servers: str, client: tuple[tuple[str, str], ...]) -> Producer:
    return Producer({**_PRODUCER, **dict(client)}, logger=client_logger)


def kafka_error(error: KafkaException, activity: str) -> BackendFailure:
    """Convert an error of the client; `activity` completes "Kafka failed while …"."""
    cause: KafkaError = error.args[0]
    msg = f"Kafka failed while {activity}: {cause.str()} ({cause.name()})"
    retryable = not cause.fatal() and cause.name() not in _TOO_LARGE
    return BackendFailure(msg, details={"kafka": cause.name()}, retryable=retryable)


def create_topics(
    target: Target, topics: Iterable[str], partitions: int, replication: int
) -> list[str]:
    """Create the topics that do not exist yet.

    Args:
        target: The cluster.
        topics: The names.
        partitions: The number of partitions of a new topic.
        replication: Its replication factor.

    Returns:
        The names of the created topics, sorted.

    """
    admin = AdminClient({**target.client_settings}, logger=client_logger)
    try:
        known = admin.list_topics(timeout=_METADATA_TIMEOUT_S).topics
        missing = sorted(set(topics) - set(known))
        if missing:
            config = {"max.message.bytes": str(MAX_MESSAGE_BYTES)}
            new_topics = [
                NewTopic(name, partitions, replication, config=config) for name in missing
            ]
            for future in admin.create_topics(new_topics).values():
                _wait_created(future)
    except KafkaException as error:
        raise kafka_error(error, "creating topics") from error
    return missing


def _wait_created(future: Future[None]) -> None:
    """Wait for the creation of a topic; another process may have created it meanwhile."""
    try:
        future.result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def find_topics(target: Target, tenant_id: str | None) -> set[str]:
    """Return the existing topics that match a template, of one tenant or (None) of all."""
    try:
        known = (
            AdminClient({**target.client_settings}, logger=client_logger)
            .list_topics(timeout=_METADATA_TIMEOUT_S)
            .topics
        )
    except KafkaException as error:
        raise kafka_error(error, "listing topics") from error
    return {topic for topic in known if target.matches_topic(topic, tenant_id)}


def get_cluster_id(target: Target) -> str:
    """Return the id of a cluster, which does not depend on the address."""
    try:
        metadata = AdminClient({**target.client_settings}, logger=client_logger).list_topics(
            timeout=_METADATA_TIMEOUT_S
        )
    except KafkaException as error:
        raise kafka_error(error, "reading the cluster id") from error
    return str(metadata.cluster_id)


def get_offsets(target: Target, topics: Iterable[str]) -> dict[str, dict[int, tuple[int, int]]]:
    """Return, by topic and partition, the first offset and the offset after the last message."""
    # librdkafka requires a group, which stays empty: this consumer never subscribes.
    consumer = Consumer(
        {**target.client_settings, "group.id": "seriatim-offsets"}, logger=client_logger
    )
    try:
        return {topic: _get_topic_offsets(consumer, topic) for topic in topics}
    except KafkaException as error:
        raise kafka_error(error, "reading offsets") from error
    finally:
        consumer.close()


def _get_topic_offsets(consumer: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    # A topic that was just created may not be in the metadata of every broker yet.
    deadline = time.monotonic() + _METADATA_TIMEOUT_S
    while True:
        metadata = consumer.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics[topic]
        if metadata.error is None and metadata.partitions:
            break
        if time.monotonic() > deadline or metadata.error is None:
            msg = f"topic {topic!r:.80} does not exist: publish to it, or create it"
            raise NotFound(msg, details={"topic": topic})
        time.sleep(0.1)
    return {
        number: _get_partition_offsets(consumer, topic, number, deadline)
        for number in metadata.partitions
    }


def _get_partition_offsets(
    consumer: Consumer, topic: str, number: int, deadline: float
) -> tuple[int, int]:
    """Return the offsets of a partition; wait if it has no leader yet."""
    while True:
        try:
            return consumer.get_watermark_offsets(
                TopicPartition(topic, number), timeout=_METADATA_TIMEOUT_S
            )
        except KafkaException as error:
            if error.args[0].name() not in _NO_LEADER_YET or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def spark_options(target: Target) -> Mapping[str, str]:
    """Return the target's settings as options of Spark's Kafka source."""
    settings = {**target.settings, "bootstrap.servers": target.servers}
    return {f"kafka.{name}": value for name, value in java_settings(settings).items()}


_FLUSH_TIMEOUT_S = 30.0


class DeadLetterTopic:
    """Sends dead letters to a topic, from which a worker can process them again."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def send(self, dead_letters: list[DeadLetter]) -> None:
        """Deliver dead letters; one that is too large for the topic is sent without its event.

        Raises:
            BackendFailure: Not all of them were delivered.

        """
        sender = MessageSender(self._target, _FLUSH_TIMEOUT_S, alone_bytes=0)
        for dead_letter in dead_letters:
            topic = sender.topic_for(dead_letter.delivery.tenant_id, None)
            key, value, headers = _encode_message(dead_letter)
            try:
                sender.send(topic, key, value, headers, _now_ms())
            except MessageTooLarge as refused:
                logger.warning("a dead letter is sent without its event: %s", refused)
                sender.send(topic, key, _encode_reference(dead_letter, refused), headers, _now_ms())
        sender.flush()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _encode_reference(dead_letter: DeadLetter, refused: MessageTooLarge) -> bytes:
    """Return the message value for an event that is too large for the dead-letter topic."""
    delivery = dead_letter.delivery
    return msgspec.json.encode(
        {
            "flaw": f"the event has {refused.size} bytes, which is too large for this topic: read "
            "it from the log by its id, or raise max.message.bytes",
            "tenant_id": delivery.tenant_id,
            "event_id": delivery.event_id,
            "position": delivery.position,
        }
    )


def _encode_message(dead_letter: DeadLetter) -> tuple[bytes, bytes, list[KafkaHeader]]:
    """Return key, value and headers of a dead letter."""
    delivery = dead_letter.delivery
    headers: list[KafkaHeader] = [
        (f"{HEADER_PREFIX}handler", dead_letter.handler.encode()),
        (f"{HEADER_PREFIX}error", dead_letter.error.encode()),
        (f"{HEADER_PREFIX}attempts", b"%d" % dead_letter.attempts),
        (f"{HEADER_PREFIX}tenant", delivery.tenant_id.encode()),
        (f"{HEADER_PREFIX}position", b"%d" % delivery.position),
        (f"{HEADER_PREFIX}event-id", delivery.event_id.encode()),
        (f"{HEADER_PREFIX}event-type", delivery.event_type.encode()),
        (f"{HEADER_PREFIX}first-seq", b"%d" % delivery.first_seq),
    ]
    if delivery.log is not None:  # a worker that reads this topic requires the log's identity
        headers.append((f"{HEADER_PREFIX}log", delivery.log.log_id.encode()))
        headers.append((f"{HEADER_PREFIX}epoch", b"%d" % delivery.log.epoch))
    event = delivery.event
    if isinstance(event, msgspec.Raw):
        try:
            event = msgspec.json.decode(event, type=EventRecord)
        except msgspec.ValidationError:
            return delivery.event_id.encode(), bytes(event), headers
    if isinstance(event, EventRecord):
        return encode_key(event), encode_value(event), headers
    return delivery.event_id.encode(), msgspec.json.encode(event), headers
