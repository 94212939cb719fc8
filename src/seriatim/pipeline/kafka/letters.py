"""Dead letters as a Kafka topic: the message as it was published, and why it failed in headers."""

from __future__ import annotations

import time

import msgspec

from seriatim.core.event import EventRecord
from seriatim.delivery.letters import Letter
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import Sending
from seriatim.pipeline.kafka.messages import HEADER, Header, key_of, value_of

_TIMEOUT_S = 30.0


class TopicLetters:
    """Sends dead letters to a topic; a worker can read it like any other."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def send(self, letters: list[Letter]) -> None:
        """Deliver letters, or raise."""
        sending = Sending(self._target, _TIMEOUT_S)
        for letter in letters:
            topic = sending.topic(letter.delivery.tenant_id, None)
            sending.send(topic, *_message(letter), time.time_ns() // 1_000_000)
        sending.flush()


def _message(letter: Letter) -> tuple[bytes, bytes, list[Header]]:
    one = letter.delivery
    headers: list[Header] = [
        (f"{HEADER}handler", letter.handler.encode()),
        (f"{HEADER}error", letter.error.encode()),
        (f"{HEADER}attempts", b"%d" % letter.attempts),
        (f"{HEADER}tenant", one.tenant_id.encode()),
        (f"{HEADER}position", b"%d" % one.position),
        (f"{HEADER}event-id", one.event_id.encode()),
        (f"{HEADER}event-type", one.event_type.encode()),
        (f"{HEADER}first-seq", b"%d" % one.first_seq),
    ]
    event = one.event
    if isinstance(event, msgspec.Raw):
        try:
            event = msgspec.json.decode(event, type=EventRecord)
        except msgspec.ValidationError:
            return one.event_id.encode(), bytes(event), headers
    if isinstance(event, EventRecord):
        return key_of(event), value_of(event), headers
    return one.event_id.encode(), msgspec.json.encode(event), headers
