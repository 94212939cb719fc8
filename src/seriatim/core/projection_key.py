"""The key of an event in a projection, defined once for every engine and code path.

A key is a text. A text value is its own key; other values use their canonical JSON (`7`, `1.0`,
`1e16`, `true`, `{"a":1}`), and times the text of the record. For a missing value or null there is
no key, and the event is skipped. An empty text is an error, and the event fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from seriatim.core.canonical import canonical_text, decode_stored_json
from seriatim.core.column_types import stored_text_problem
from seriatim.core.errors import InvalidArgument
from seriatim.core.event import RECORD_COLUMNS, EventRecord
from seriatim.core.ids import compose_key
from seriatim.core.indexes import parse_path

Key = str | Callable[[EventRecord], str | None]

STREAM_KEY = "stream"  # the key made of the stream's type and id
KEY_FIELDS = frozenset({STREAM_KEY, *RECORD_COLUMNS}) - {
    "payload",
    "metadata",
    "tags",
}
UPCAST_SAFE_FIELDS = KEY_FIELDS - {"event_version"}  # fields that upcasters do not change
_PAYLOAD = "payload"


def is_key(key: Any) -> bool:
    """Return whether a projection may declare this key."""
    return callable(key) or (isinstance(key, str) and (key in KEY_FIELDS or is_payload_path(key)))


def is_payload_path(key: str) -> bool:
    """Return whether a key is a path in the payload, such as `payload.seat`."""
    return parse_key_path(key) is not None


@lru_cache(maxsize=256)
def parse_key_path(key: str) -> tuple[str, ...] | None:
    """Parse a path in the payload into object keys; return None for another kind of key.

    A path is `payload.order.customer`, or `payload.labels["odd.key"]` if an object key contains a
    dot, a bracket or a quote.
    """
    rest = key.removeprefix(_PAYLOAD)
    if rest == key or rest[:1] not in (".", "["):
        return None
    try:
        steps = parse_path(rest.removeprefix("."))
    except InvalidArgument:
        return None
    names = tuple(step for step in steps if step is not None)
    return names if len(names) == len(steps) else None


def extract_key(key: Key, event: EventRecord) -> str | None:
    """Return the key of an event, or None if the event is to be skipped.

    Args:
        key: The declared key of the projection.
        event: The event, after the projection's upcasters.

    Raises:
        TypeError: A key function returned a value that is not a str.
        ValueError: The key is empty or cannot be stored.
    """
    if callable(key):
        return _check_key(key(event))
    path = parse_key_path(key)
    if path is not None:
        return extract_payload_key(path, event.payload_json)
    if key == STREAM_KEY:
        return None if event.stream is None else compose_key(*event.stream)
    return format_key(getattr(event, key))


def extract_payload_key(path: Sequence[str], payload: str) -> str | None:
    """Return the key at a path of a payload, given as its canonical text."""
    value = decode_stored_json(payload)
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return format_key(value)


def format_key(value: Any) -> str | None:
    """Return the key for a value of an event, or None for null."""
    if value is None:
        return None
    return _check_key(value if isinstance(value, str) else canonical_text(value))


def _check_key(key: Any) -> str | None:
    if key is None:
        return None
    if type(key) is not str:
        msg = f"a key must be a str, got {type(key).__name__}"
        raise TypeError(msg)
    if not key:
        msg = "the key is empty"
        raise ValueError(msg)
    if problem := stored_text_problem(key):
        raise ValueError(problem)
    return key
