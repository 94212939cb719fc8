"""The key of an event in a projection: one definition, which every engine and path follows.

A key is a text. A text value is its own key; other values have the text of their canonical JSON
(`7`, `1.0`, `1e16`, `true`, `{"a":1}`), and times the text that the record has. A missing value and
null give no key, and the event is passed over. The empty text is no key: the event fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from seriatim.core.canonical import canonical_text, read_json
from seriatim.core.errors import InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.ids import compose
from seriatim.core.indexes import steps_of
from seriatim.core.values import text_flaw

Key = str | Callable[[EventRecord], str | None]

STREAM = "stream"  # a key: type and id of the stream, composed
FIELDS = frozenset({STREAM, *EventRecord.__struct_fields__}) - {"payload", "metadata", "tags"}
STORED = FIELDS - {"event_version"}  # keys that upcasters leave as they are
_PAYLOAD = "payload"


def is_key(key: Any) -> bool:
    """Tell whether a projection may declare this key."""
    return callable(key) or (isinstance(key, str) and (key in FIELDS or is_path(key)))


def is_path(key: str) -> bool:
    """Tell whether a key names a place in the payload, such as `payload.seat`."""
    return key_path(key) is not None


@lru_cache(maxsize=256)
def key_path(key: str) -> tuple[str, ...] | None:
    """Return the object keys that lead to a place in the payload, None for another kind of key.

    `payload.order.customer`, or `payload.labels["odd.key"]` where a key has a dot, a bracket or a
    quote in it.
    """
    rest = key.removeprefix(_PAYLOAD)
    if rest == key or rest[:1] not in (".", "["):
        return None
    try:
        steps = steps_of(rest.removeprefix("."))
    except InvalidArgument:
        return None
    names = tuple(step for step in steps if step is not None)
    return names if len(names) == len(steps) else None


def key_of(key: Key, event: EventRecord) -> str | None:
    """Return the key of an event, None for one that is passed over; raise for one without a text.

    The event is in the version that the projection's upcasters lead to.
    """
    if callable(key):
        return _made(key(event))
    path = key_path(key)
    if path is not None:
        return payload_key(path, event.payload)
    if key == STREAM:
        return None if event.stream is None else compose(*event.stream)
    return key_text(getattr(event, key))


def payload_key(path: Sequence[str], payload: str) -> str | None:
    """Return the key at a place in a payload, given as its canonical text."""
    value = read_json(payload)
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return key_text(value)


def key_text(value: Any) -> str | None:
    """Return the key that a value of an event gives."""
    if value is None:
        return None
    return _made(value if isinstance(value, str) else canonical_text(value))


def _made(key: Any) -> str | None:
    if key is None:
        return None
    if type(key) is not str:
        msg = f"a key is a text, got {type(key).__name__}"
        raise TypeError(msg)
    if not key:
        msg = "the key is an empty text"
        raise ValueError(msg)
    if problem := text_flaw(key):
        raise ValueError(problem)
    return key
