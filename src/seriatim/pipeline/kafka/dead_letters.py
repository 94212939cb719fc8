"""Dead letters in a Kafka topic: the message as published, with the failure in its headers."""

from __future__ import annotations

import logging
import time

import msgspec

from seriatim.core.event import EventRecord
from seriatim.delivery.dead_letters import DeadLetter
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import MessageSender, MessageTooLarge
from seriatim.pipeline.kafka.messages import HEADER_PREFIX, KafkaHeader, encode_key, encode_value

logger = logging.getLogger("seriatim")

_TIMEOUT_S = 30.0


class DeadLetterTopic:
    """Sends dead letters to a topic, from which a worker can process them again."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def send(self, dead_letters: list[DeadLetter]) -> None:
        """Deliver dead letters; one that is too large for the topic is sent without its event.

        Raises:
            BackendFailure: Not all of them were delivered.

        """
        sending = MessageSender(self._target, _TIMEOUT_S, alone_bytes=0)
        for letter in dead_letters:
            topic = sending.topic_for(letter.delivery.tenant_id, None)
            key, value, headers = _encode_message(letter)
            try:
                sending.send(topic, key, value, headers, _now_ms())
            except MessageTooLarge as refused:
                logger.warning("a dead letter is sent without its event: %s", refused)
                sending.send(topic, key, _encode_reference(letter, refused), headers, _now_ms())
        sending.flush()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _encode_reference(letter: DeadLetter, refused: MessageTooLarge) -> bytes:
    """Return the message value for an event that is too large for the dead-letter topic."""
    one = letter.delivery
    return msgspec.json.encode(
        {
            "flaw": f"the event has {refused.size} bytes, which is too large for this topic: read "
            "it from the log by its id, or raise max.message.bytes",
            "tenant_id": one.tenant_id,
            "event_id": one.event_id,
            "position": one.position,
        }
    )


def _encode_message(letter: DeadLetter) -> tuple[bytes, bytes, list[KafkaHeader]]:
    """Return key, value and headers of a dead letter."""
    one = letter.delivery
    headers: list[KafkaHeader] = [
        (f"{HEADER_PREFIX}handler", letter.handler.encode()),
        (f"{HEADER_PREFIX}error", letter.error.encode()),
        (f"{HEADER_PREFIX}attempts", b"%d" % letter.attempts),
        (f"{HEADER_PREFIX}tenant", one.tenant_id.encode()),
        (f"{HEADER_PREFIX}position", b"%d" % one.position),
        (f"{HEADER_PREFIX}event-id", one.event_id.encode()),
        (f"{HEADER_PREFIX}event-type", one.event_type.encode()),
        (f"{HEADER_PREFIX}first-seq", b"%d" % one.first_seq),
    ]
    if one.log is not None:  # a worker that reads this topic requires the log's identity
        headers.append((f"{HEADER_PREFIX}log", one.log.log_id.encode()))
        headers.append((f"{HEADER_PREFIX}epoch", b"%d" % one.log.epoch))
    event = one.event
    if isinstance(event, msgspec.Raw):
        try:
            event = msgspec.json.decode(event, type=EventRecord)
        except msgspec.ValidationError:
            return one.event_id.encode(), bytes(event), headers
    if isinstance(event, EventRecord):
        return encode_key(event), encode_value(event), headers
    return one.event_id.encode(), msgspec.json.encode(event), headers
