"""From a database's columns to the columns of events, a whole batch at a time."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seriatim.pipeline.columns import EVENTS

Bytes = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Counts = np.ndarray[tuple[int], np.dtype[np.int64]]

_HASH_BYTES = 32
_PREFIX = np.frombuffer(b"sha256:", dtype=np.uint8)
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), dtype="<u2")  # two digits at a time
# Where the 32 digits of a UUID stand in its 36 characters.
_UUID_SHAPE = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
_DIGITS = np.array([at for at, mark in enumerate(_UUID_SHAPE) if mark == "x"])
_DASHES = np.array([at for at, mark in enumerate(_UUID_SHAPE) if mark == "-"])

_LISTS = EVENTS.field("tags").type
_MAPS = EVENTS.field("metadata").type
_TIME = EVENTS.field("recorded_at").type
_decode_lists = msgspec.json.Decoder(list[list[str]]).decode
_decode_maps = msgspec.json.Decoder(list[dict[str, str]]).decode


def instants(microseconds: pa.Array) -> pa.Array:
    """Read microseconds as instants; nothing is copied."""
    return microseconds.view(_TIME)


def hash_texts(digests: pa.Array) -> pa.Array:
    """Write payload hashes as the log shows them."""
    digits = _hex(_fixed_bytes(digests, _HASH_BYTES))
    text = np.empty((len(digests), len(_PREFIX) + digits.shape[1]), dtype=np.uint8)
    text[:, : len(_PREFIX)] = _PREFIX
    text[:, len(_PREFIX) :] = digits
    return _texts(text)


def uuid_texts(keys: pa.Array) -> pa.Array:
    """Write UUIDs in their canonical form."""
    storage = keys.storage if isinstance(keys, pa.ExtensionArray) else keys
    digits = _hex(_fixed_bytes(storage, 16))
    text = np.empty((len(keys), len(_UUID_SHAPE)), dtype=np.uint8)
    text[:, _DASHES] = ord("-")
    text[:, _DIGITS] = digits
    return _texts(text)


def _fixed_bytes(values: pa.Array, width: int) -> Bytes:
    """View the bytes of values that all have one width."""
    if pa.types.is_fixed_size_binary(values.type):
        start = values.offset * width
        data = values.buffers()[1]
    else:
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int32)[values.offset :][: len(values) + 1]
        start = int(bounds[0])
        if not (np.diff(bounds) == width).all():
            msg = f"a value that must have {width} bytes has another length"
            raise ValueError(msg)
    view = np.frombuffer(data, dtype=np.uint8)[start : start + len(values) * width]
    return view.reshape(len(values), width)


def _hex(raw: Bytes) -> Bytes:
    return _HEX[raw].view(np.uint8).reshape(len(raw), -1)


def _texts(characters: Bytes) -> pa.Array:
    rows, width = characters.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(characters))


def tag_lists(texts: pa.Array) -> pa.Array:
    """Read JSON lists of strings; null is the empty list."""
    if texts.null_count == len(texts):
        return _empty_lists(len(texts))
    plain = _plain_lists(texts)
    return _any_lists(texts) if plain is None else plain


def _plain_lists(texts: pa.Array) -> pa.Array | None:
    """Split lists without escapes, in which a quotation mark is always a border."""
    if not _is_plain(texts, '["', '"]'):
        return None
    parts = pc.split_pattern(_inside(texts), '","')
    values = parts.flatten()
    if pc.any(pc.match_substring(values, '"')).as_py():
        return None
    return pa.ListArray.from_arrays(
        _offsets(_lengths(pc.list_value_length(parts))), values, type=_LISTS
    )


def _any_lists(texts: pa.Array) -> pa.Array:
    found = _decode_lists(_joined(texts, "[]"))
    return pa.array(found, type=_LISTS)


def _empty_lists(rows: int) -> pa.Array:
    offsets = pa.array(np.zeros(rows + 1, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array([], pa.string()), type=_LISTS)


def metadata_maps(texts: pa.Array) -> pa.Array:
    """Read JSON objects of strings; null is the empty object."""
    if texts.null_count == len(texts):
        nothing = pa.array([], pa.string())
        return pa.MapArray.from_arrays(np.zeros(len(texts) + 1, np.int32), nothing, nothing)
    plain = _plain_maps(texts)
    return _any_maps(texts) if plain is None else plain


def _plain_maps(texts: pa.Array) -> pa.Array | None:
    """Split objects without escapes: key, colon, value, comma, and again."""
    if not _is_plain(texts, '{"', '"}'):
        return None
    parts = pc.split_pattern(_inside(texts), '"')
    lengths = _lengths(pc.list_value_length(parts))
    if not (lengths[lengths > 0] % 4 == 3).all():  # noqa: PLR2004 - the last pair has no comma
        return None
    counts = (lengths + 1) // 4
    # Where each pair begins: the start of its row, and four pieces on for each pair before it.
    nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    heads = np.repeat(np.cumsum(lengths) - lengths, counts) + 4 * nth
    pieces = parts.flatten()
    if not pc.all(pc.equal(pieces.take(pa.array(heads + 1)), ":")).as_py():
        return None
    keys, values = pieces.take(pa.array(heads)), pieces.take(pa.array(heads + 2))
    return pa.MapArray.from_arrays(_offsets(counts), keys, values)


def _any_maps(texts: pa.Array) -> pa.Array:
    found = _decode_maps(_joined(texts, "{}"))
    return pa.array([list(one.items()) for one in found], type=_MAPS)


def _is_plain(texts: pa.Array, opening: str, closing: str) -> bool:
    """Tell whether every text has these ends and no escape: then it is split, not parsed."""
    whole = pc.and_(pc.starts_with(texts, opening), pc.ends_with(texts, closing))
    escaped = pc.match_substring(texts, "\\")
    return bool(pc.all(whole).as_py()) and not pc.any(escaped).as_py()


def _inside(texts: pa.Array) -> pa.Array:
    return pc.binary_slice(texts.view(pa.binary()), 2, -2).view(pa.string())


def _joined(texts: pa.Array, empty: str) -> str:
    return f"[{','.join(pc.fill_null(texts, empty).to_pylist())}]"


def _lengths(lengths: pa.Array) -> Counts:
    return np.asarray(pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False), dtype=np.int64)


def _offsets(lengths: Counts) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
