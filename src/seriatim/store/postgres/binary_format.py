"""Encode rows in Postgres's binary format, without the driver and before the lock is taken."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper, PyFormat
from psycopg.pq import Format

from seriatim.core.canonical import HASH_PREFIX, canonical_text
from seriatim.core.event import ENVELOPE_TEXTS
from seriatim.core.ids import is_uuid
from seriatim.core.request import PreparedEvent

_LENGTH = struct.Struct("!i").pack

_get_optional_texts = attrgetter(*ENVELOPE_TEXTS)
_ALL_ABSENT = (None,) * len(ENVELOPE_TEXTS)

_OID_INT4, _OID_INT8, _OID_BYTEA, _OID_TEXT, _OID_UUID, _OID_UUIDS = 23, 20, 17, 25, 2950, 2951
# A composite value in binary format is its number of fields, then each field as the oid of its
# type, its length and its bytes; the length of a null is -1. The server rejects another number of
# fields or another oid, so a change of `new_event` cannot be overlooked. These structs write oid,
# length and value in one call.
_FIELDS = 30  # fields of the composite type new_event
_COMPOSITE_HEADER = struct.Struct("!iIii").pack
_FIELD_HEADER = struct.Struct("!Ii").pack
_VERSION_AND_KEY = struct.Struct("!IiiIi16s").pack
_INT8_FIELD = struct.Struct("!Iiq").pack
_NULL_TEXT = _FIELD_HEADER(_OID_TEXT, -1)
_NULL_INT8 = _FIELD_HEADER(_OID_INT8, -1)
_NULL_KEY, _KEY_HEADER = _FIELD_HEADER(_OID_UUID, -1), _FIELD_HEADER(_OID_UUID, 16)
_HASH_HEADER = _FIELD_HEADER(_OID_BYTEA, 32)
_NULL_TEXTS = _NULL_TEXT * len(ENVELOPE_TEXTS)
_NULL_TAGS = _FIELD_HEADER(_OID_UUIDS, -1)


class RowArray(msgspec.Struct, frozen=True):
    """An encoded array parameter, with the oid of its type."""

    oid: int
    data: bytes


class RowArrayDumper(Dumper):
    """Passes an encoded array to the driver unchanged."""

    format = Format.BINARY

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)

    def get_key(self, obj: RowArray, format: PyFormat) -> Any:  # noqa: ARG002 - psycopg's name
        return self.cls, obj.oid

    def upgrade(self, obj: RowArray, format: PyFormat) -> RowArrayDumper:  # noqa: ARG002
        dumper = RowArrayDumper(self.cls)
        dumper.oid = obj.oid
        return dumper

    def dump(self, obj: RowArray) -> bytes:
        return obj.data


def encode_array(oid: int, element_oid: int, elements: Sequence[bytes]) -> RowArray:
    """Encode a one-dimensional array; each element must begin with its length."""
    if not elements:
        return RowArray(oid, struct.pack("!iiI", 0, 0, element_oid))
    header = struct.pack("!iiIii", 1, 0, element_oid, len(elements), 1)
    return RowArray(oid, header + b"".join(elements))


def encode_uuid_array(keys: Iterable[bytes]) -> RowArray:
    """Encode 16-byte keys as a uuid array."""
    return encode_array(_OID_UUIDS, _OID_UUID, [b"\0\0\0\x10" + key for key in keys])


def encode_event(event: PreparedEvent, offset: int, required_seq: int | None) -> bytes:
    """Encode one event as an element of a new_event array: each field follows its type oid.

    The order of the fields is that of the type `new_event` in the schema.

    Args:
        event: The event.
        offset: Its index in the append.
        required_seq: Its required sequence number, None if the database assigns it.

    """
    text = _encode_text  # a local name: this function runs once per event
    optional_texts = _get_optional_texts(event)
    body = b"".join(
        (
            _COMPOSITE_HEADER(_FIELDS, _OID_INT4, 4, offset),
            _NULL_INT8 if required_seq is None else _INT8_FIELD(_OID_INT8, 8, required_seq),
            _NULL_INT8,  # the first number of its kind, which the server reads itself
            _NULL_INT8
            if event.occurred_us is None
            else _INT8_FIELD(_OID_INT8, 8, event.occurred_us),
            _VERSION_AND_KEY(_OID_INT4, 4, event.event_version, _OID_UUID, 16, event.event_key),
            _NULL_KEY if event.stream_key is None else _KEY_HEADER + event.stream_key,
            _NULL_KEY if event.idempotency_index is None else _KEY_HEADER + event.idempotency_index,
            _HASH_HEADER,
            bytes.fromhex(event.payload_hash[len(HASH_PREFIX) :]),
            _encode_keys(event.index_keys()) if event.tags or event.term_keys else _NULL_TAGS,
            _encode_common_text(event.tenant_id),
            _NULL_TEXT if _is_id_in_key(event) else text(event.event_id),
            _encode_common_text(event.stream_type),
            text(event.stream_id),
            _encode_common_text(event.event_type),
            text(event.occurred_at),
            _NULL_TEXTS if optional_texts == _ALL_ABSENT else _encode_texts(optional_texts),
            text(canonical_text(event.metadata)) if event.metadata else _NULL_TEXT,
            text(event.payload),
            text(canonical_text(event.tags)) if event.tags else _NULL_TEXT,
        )
    )
    return _LENGTH(len(body)) + body


def _is_id_in_key(event: PreparedEvent) -> bool:
    """Return True if the event id is the UUID that is stored as its key, so it needs no text."""
    event_id = event.event_id
    return is_uuid(event_id) and event_id.replace("-", "") == event.event_key.hex()


def _encode_text(value: str | None) -> bytes:
    if value is None:
        return _NULL_TEXT
    raw = value.encode()
    return _FIELD_HEADER(_OID_TEXT, len(raw)) + raw


def _encode_texts(values: Iterable[str | None]) -> bytes:
    return b"".join([_NULL_TEXT if value is None else _encode_text(value) for value in values])


# Tenants and types are few and repeat in every event, so their encoded form is cached.
_encode_common_text = lru_cache(maxsize=4096)(_encode_text)


def _encode_keys(keys: Iterable[bytes]) -> bytes:
    data = encode_uuid_array(keys).data
    return _FIELD_HEADER(_OID_UUIDS, len(data)) + data
