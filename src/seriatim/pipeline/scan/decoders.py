"""Vectorized decoders from database columns to event columns, one record batch at a time."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.pipeline.columns import EVENT_SCHEMA

ByteMatrix = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
LengthVector = np.ndarray[tuple[int], np.dtype[np.int64]]

_HASH_BYTES = 32
_PAIR_PIECES = 4  # pieces of a pair in a JSON object: key, colon, value, comma
_HASH_PREFIX = np.frombuffer(b"sha256:", dtype=np.uint8)
# The two hexadecimal digits of each byte value, as one 16-bit number.
_HEX_PAIRS = np.frombuffer(bytes(range(256)).hex().encode(), dtype="<u2")
# Offsets of the 32 digits and 4 dashes in the 36 characters of a UUID.
_UUID_SHAPE = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
_DIGIT_OFFSETS = np.array([at for at, mark in enumerate(_UUID_SHAPE) if mark == "x"])
_DASH_OFFSETS = np.array([at for at, mark in enumerate(_UUID_SHAPE) if mark == "-"])

_LIST_TYPE = EVENT_SCHEMA.field("tags").type
_MAP_TYPE = EVENT_SCHEMA.field("metadata").type
_TIME_TYPE = EVENT_SCHEMA.field("recorded_at").type
_decode_lists = msgspec.json.Decoder(list[list[str]]).decode
_decode_maps = msgspec.json.Decoder(list[dict[str, str]]).decode


def to_timestamps(microseconds: pa.Array) -> pa.Array:
    """View microseconds since the Unix epoch as timestamps, without a copy."""
    return microseconds.view(_TIME_TYPE)


def format_hashes(digests: pa.Array) -> pa.Array:
    """Format binary payload hashes as `sha256:<hex>`.

    Raises:
        ValueError: A hash does not have 32 bytes.
    """
    digits = _to_hex(_view_fixed_bytes(digests, _HASH_BYTES))
    text = np.empty((len(digests), len(_HASH_PREFIX) + digits.shape[1]), dtype=np.uint8)
    text[:, : len(_HASH_PREFIX)] = _HASH_PREFIX
    text[:, len(_HASH_PREFIX) :] = digits
    return _to_strings(text)


def format_uuids(keys: pa.Array) -> pa.Array:
    """Format binary UUIDs in their canonical text form.

    Raises:
        ValueError: A key does not have 16 bytes.
    """
    storage = keys.storage if isinstance(keys, pa.ExtensionArray) else keys
    digits = _to_hex(_view_fixed_bytes(storage, 16))
    text = np.empty((len(keys), len(_UUID_SHAPE)), dtype=np.uint8)
    text[:, _DASH_OFFSETS] = ord("-")
    text[:, _DIGIT_OFFSETS] = digits
    return _to_strings(text)


def _view_fixed_bytes(values: pa.Array, width: int) -> ByteMatrix:
    """View the bytes of values of one width as a matrix, without a copy."""
    if pa.types.is_fixed_size_binary(values.type):
        start = values.offset * width
        data = values.buffers()[1]
    else:
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int32)[values.offset :][: len(values) + 1]
        start = int(bounds[0])
        if not (np.diff(bounds) == width).all():
            msg = f"a binary value does not have the expected length of {width} bytes"
            raise ValueError(msg)
    view = np.frombuffer(data, dtype=np.uint8)[start : start + len(values) * width]
    return view.reshape(len(values), width)


def _to_hex(raw: ByteMatrix) -> ByteMatrix:
    return _HEX_PAIRS[raw].view(np.uint8).reshape(len(raw), -1)


def _to_strings(characters: ByteMatrix) -> pa.Array:
    rows, width = characters.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(characters))


def parse_tag_lists(texts: pa.Array) -> pa.Array:
    """Parse JSON lists of strings; null becomes an empty list."""
    if texts.null_count == len(texts):
        return _make_empty_lists(len(texts))
    split = _split_lists(texts)
    return _parse_lists(texts) if split is None else split


def _split_lists(texts: pa.Array) -> pa.Array | None:
    """Split lists without escapes at their quotation marks; None if any list needs a parser."""
    if not _can_split(texts, '["', '"]'):
        return None
    parts = pc.split_pattern(_strip_delimiters(texts), '","')
    values = parts.flatten()
    # A quotation mark left inside a value means other separators, such as spaces after commas.
    if pc.any(pc.match_substring(values, '"')).as_py():
        return None
    return pa.ListArray.from_arrays(
        _to_offsets(_to_lengths(pc.list_value_length(parts))), values, type=_LIST_TYPE
    )


def _parse_lists(texts: pa.Array) -> pa.Array:
    return pa.array(_decode_lists(_join_as_list(texts, "[]")), type=_LIST_TYPE)


def _make_empty_lists(rows: int) -> pa.Array:
    offsets = pa.array(np.zeros(rows + 1, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array([], pa.string()), type=_LIST_TYPE)


def parse_metadata_maps(texts: pa.Array) -> pa.Array:
    """Parse JSON objects of strings; null becomes an empty object."""
    if texts.null_count == len(texts):
        empty = pa.array([], pa.string())
        return pa.MapArray.from_arrays(np.zeros(len(texts) + 1, np.int32), empty, empty)
    split = _split_maps(texts)
    return _parse_maps(texts) if split is None else split


def _split_maps(texts: pa.Array) -> pa.Array | None:
    """Split objects without escapes at their quotation marks; None if any needs a parser.

    The pieces of an object are key, colon, value, comma, repeated; the last pair has no comma.
    """
    if not _can_split(texts, '{"', '"}'):
        return None
    parts = pc.split_pattern(_strip_delimiters(texts), '"')
    lengths = _to_lengths(pc.list_value_length(parts))
    if not (lengths[lengths > 0] % _PAIR_PIECES == _PAIR_PIECES - 1).all():
        return None
    counts = (lengths + 1) // _PAIR_PIECES
    # A pair starts at the first piece of its row plus four pieces for each earlier pair.
    nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(np.cumsum(lengths) - lengths, counts) + _PAIR_PIECES * nth
    pieces = parts.flatten()
    if not pc.all(pc.equal(pieces.take(pa.array(starts + 1)), ":")).as_py():
        return None
    keys, values = pieces.take(pa.array(starts)), pieces.take(pa.array(starts + 2))
    return pa.MapArray.from_arrays(_to_offsets(counts), keys, values)


def _parse_maps(texts: pa.Array) -> pa.Array:
    maps = _decode_maps(_join_as_list(texts, "{}"))
    return pa.array([list(mapping.items()) for mapping in maps], type=_MAP_TYPE)


def _can_split(texts: pa.Array, opening: str, closing: str) -> bool:
    """Return whether every text has these delimiters and no escape, so that no parser is needed."""
    delimited = pc.and_(pc.starts_with(texts, opening), pc.ends_with(texts, closing))
    escaped = pc.match_substring(texts, "\\")
    return bool(pc.all(delimited).as_py()) and not pc.any(escaped).as_py()


def _strip_delimiters(texts: pa.Array) -> pa.Array:
    return pc.binary_slice(texts.view(pa.binary()), 2, -2).view(pa.string())


def _join_as_list(texts: pa.Array, empty: str) -> str:
    """Join JSON texts to one JSON list, which one call of the decoder parses."""
    return f"[{','.join(pc.fill_null(texts, empty).to_pylist())}]"


def _to_lengths(lengths: pa.Array) -> LengthVector:
    return np.asarray(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _to_offsets(lengths: LengthVector) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
