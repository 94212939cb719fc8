"""Opaque ids: validation, and the fixed-size keys that represent them in indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256

ID_BYTES_MAX = 512
KEY_BYTES_MAX = 200
EVENT_KEYS_MAX = 8

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_UUID_CHARS = 36
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_BITS_48 = (1 << 48) - 1
_BITS_62 = (1 << 62) - 1
_WHITE_SPACE = " \t\n\r\x0b\x0c"


def id_problem(value: object) -> str | None:
    """Return why a value is not a valid id, or None if it is; ids are never altered."""
    if type(value) is not str:
        return "must be a string"
    if not value:
        return "must not be empty"
    if value[0] in _WHITE_SPACE or value[-1] in _WHITE_SPACE:
        return "must not start or end with white space"
    # Hot path: nearly every id is short printable ASCII, which needs no regular expression.
    if value.isascii() and len(value) <= ID_BYTES_MAX and value.isprintable():
        return None
    return _find_id_problem(value)


def _find_id_problem(value: str) -> str | None:
    if _SURROGATE.search(value):
        return "must not contain lone surrogates"
    if _CONTROL.search(value):
        return "must not contain control characters"
    if len(value.encode()) > ID_BYTES_MAX:
        return f"must not be longer than {ID_BYTES_MAX} bytes"
    return None


def key_problem(value: object) -> str | None:
    """Return why a value is not a valid idempotency key (1 to 200 UTF-8 bytes, no NUL), or None."""
    if type(value) is not str:
        return "must be a string"
    if "\0" in value:
        return "must not contain U+0000"
    if _SURROGATE.search(value):
        return "must not contain lone surrogates"
    if not 1 <= len(value.encode()) <= KEY_BYTES_MAX:
        return f"must have 1 to {KEY_BYTES_MAX} bytes"
    return None


def text_problem(value: object) -> str | None:
    """Return why a value is not valid free text of an envelope, or None if it is."""
    if type(value) is not str:
        return "must be a string"
    if "\0" in value:
        return "must not contain U+0000"
    if value.isascii() and len(value) <= ID_BYTES_MAX:
        return None
    if _SURROGATE.search(value):
        return "must not contain lone surrogates"
    if len(value.encode()) > ID_BYTES_MAX:
        return f"must not be longer than {ID_BYTES_MAX} bytes"
    return None


def encode_parts(*parts: str | None) -> bytes:
    """Encode parts with their lengths, so that no two different tuples give the same bytes."""
    return b"".join(
        b"-" if part is None else b"%d:%b" % (len(raw := part.encode()), raw) for part in parts
    )


def hash_key(*parts: str | None) -> bytes:
    """Return a 16-byte key for the parts: the first half of their SHA-256."""
    # Half is enough: 128 bits do not collide by accident, and every index row has such a key.
    return sha256(encode_parts(*parts)).digest()[:16]


def event_key(event_id: str) -> bytes:
    """Return the index key of an event id: a canonical UUID is its own key."""
    if is_uuid(event_id):
        return bytes.fromhex(event_id.replace("-", ""))
    return hash_key("event", event_id)


def event_keys(event_id: str) -> Iterator[bytes]:
    """Yield the index keys under which an event id may be stored, the usual key first.

    The bytes of a UUID may equal the hash of another id. The id that is stored second then uses its
    next key, so a lookup must compare the id of the event that it finds.
    """
    yield event_key(event_id)
    for number in range(1, EVENT_KEYS_MAX):
        yield hash_key("event", event_id, str(number))


def is_uuid(text: str) -> bool:
    """Return whether a text is a UUID in canonical lower case."""
    return len(text) == _UUID_CHARS and _UUID.fullmatch(text) is not None


@lru_cache(maxsize=8192)  # consecutive appends often go to the same stream
def stream_key(tenant_id: str, stream_type: str, stream_id: str) -> bytes:
    """Return the index key of a stream."""
    # Hot path of every append: the same as hash_key(tenant_id, stream_type, stream_id), inlined.
    tenant, kind, name = tenant_id.encode(), stream_type.encode(), stream_id.encode()
    encoded = b"%d:%b%d:%b%d:%b" % (len(tenant), tenant, len(kind), kind, len(name), name)
    return sha256(encoded).digest()[:16]


def idempotency_index_key(tenant_id: str, producer_id: str | None, key: str) -> bytes:
    """Return the index key of an idempotency key; keys without a producer share one namespace."""
    return hash_key(tenant_id, producer_id, key)


def tag_key(tenant_id: str, tag: str) -> bytes:
    """Return the index key of a tag."""
    return hash_key(tenant_id, tag)


def uuid7(milliseconds: int, randomness: int) -> str:
    """Return the UUIDv7 of a Unix time in milliseconds and 74 random bits."""
    high = (milliseconds & _BITS_48) << 16 | 0x7000 | (randomness >> 62) & 0xFFF
    low = 0b10 << 62 | randomness & _BITS_62
    text = "%016x%016x" % (high, low)  # noqa: UP031 - the fastest format, on the path of every append
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def derive_uuid(*parts: str | None) -> str:
    """Return the UUID (version 8) of the parts; equal parts always give the same UUID."""
    number = int.from_bytes(hash_key(*parts), "big")
    number = number & ~(0xF << 76) & ~(0b11 << 62) | 0x8 << 76 | 0b10 << 62
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def compose_key(*parts: str) -> str:
    """Join ids into one text key, escaping separators so that different tuples never collide."""
    # The percent sign first, and last in `split_key`, or the escape of a colon would be escaped.
    return ":".join(part.replace("%", "%25").replace(":", "%3A") for part in parts)


def split_key(key: str) -> tuple[str, ...]:
    """Split a key made by `compose_key` into its ids."""
    return tuple(part.replace("%3A", ":").replace("%25", "%") for part in key.split(":"))
