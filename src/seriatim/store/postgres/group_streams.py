"""The streams of a group of appends: sent to number its events, and to read the numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache

from seriatim.core.request import PreparedEvent
from seriatim.store.postgres.binary_format import RowArray, encode_array, encode_uuid_array

_OID_INT4, _OID_TEXT, _OID_INT4S, _OID_TEXTS = 23, 25, 1007, 1009
_ELEMENT = struct.Struct("!ii").pack  # the length of an integer, and the integer
_LENGTH = struct.Struct("!i").pack


class GroupStreams:
    """The stream of each event of a group, and the rank of the event in that stream.

    The server looks up each stream once, however many events it has in the group, and returns the
    last number of each stream. It finds the streams of a group of one event itself.
    """

    __slots__ = ("_counts", "_indexes", "_keys", "_ranks", "_types")

    def __init__(self, events: Sequence[PreparedEvent]) -> None:
        self._keys: dict[bytes, int] = {}  # the index of each stream, from 1 as in Postgres arrays
        self._types: list[bytes] = []
        self._counts: list[int] = []
        self._indexes: list[int] = []
        self._ranks: list[int] = []
        for event in events:
            key, stream_type = event.stream_key, event.stream_type
            if key is None or stream_type is None:
                self._indexes.append(0)
                self._ranks.append(0)
                continue
            index = self._keys.get(key)
            if index is None:
                index = self._keys[key] = len(self._keys) + 1
                self._types.append(_encode_type(stream_type))
                self._counts.append(0)
            self._counts[index - 1] = rank = self._counts[index - 1] + 1
            self._indexes.append(index)
            self._ranks.append(rank)

    def encode(self) -> Sequence[RowArray | None]:
        """Encode the last five parameters of `append_events`."""
        if not self._keys or len(self._indexes) == 1:
            return (None,) * 5
        return (
            encode_uuid_array(self._keys),
            encode_array(_OID_TEXTS, _OID_TEXT, self._types),
            _encode_integers(self._counts),
            _encode_integers(self._indexes),
            _encode_integers(self._ranks),
        )

    def compute_seqs(self, ends: Sequence[int]) -> list[int | None]:
        """Return the sequence number of each event; None for facts.

        Args:
            ends: The last number of each stream before the group.

        """
        return [
            ends[index - 1] + rank if index else None
            for index, rank in zip(self._indexes, self._ranks, strict=True)
        ]


def _encode_integers(values: Iterable[int]) -> RowArray:
    return encode_array(_OID_INT4S, _OID_INT4, [_ELEMENT(4, value) for value in values])


@lru_cache(maxsize=4096)
def _encode_type(stream_type: str) -> bytes:
    """Encode an element of a text array; types are few and repeat."""
    raw = stream_type.encode()
    return _LENGTH(len(raw)) + raw
