"""Order-independent digest of a set of events.

An event is hashed as a text: its fields (`DIGEST_FIELDS`, a null as the empty text), then the bit
mask of the nulls, the number of tags and the tags, the number of metadata entries, their keys and
their values, all joined by U+0000, which no field can contain. The digest of a set is the sum of
the SHA-256 hashes of these texts modulo 2**256. It does not depend on order, and the digests of
two ranges add up to the digest of both.

`recorded_at` is not part of the digest. The payload is represented by `payload_hash`.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as f

from seriatim.pipeline.columns import EVENT_COLUMNS, EVENT_SCHEMA

_EXCLUDED = {"occurred_at", "recorded_at", "metadata", "payload", "tags"}
DIGEST_FIELDS: tuple[str, ...] = tuple(name for name in EVENT_COLUMNS if name not in _EXCLUDED)
DIGEST_COLUMNS: tuple[str, ...] = (*DIGEST_FIELDS, "metadata", "tags")
_NULLABLE = tuple(name for name in DIGEST_FIELDS if EVENT_SCHEMA.field(name).nullable)

DIGEST_PREFIX = "sum-sha256:"
_MODULUS = 1 << 256
_SEPARATOR = "\0"
_WORDS = 8
_WORD_BITS = 32


def digest_batch(batch: pa.RecordBatch) -> int:
    """Return the digest of the events of a batch, which must have the `DIGEST_COLUMNS`."""
    if not batch.num_rows:
        return 0
    # Hot path: Arrow builds all texts at once, so that Python only calls SHA-256 for each event.
    texts = _build_texts(batch).to_pylist()
    total = sum(int.from_bytes(sha256(text).digest()) for text in texts)
    return total % _MODULUS


def add_digests(digests: Iterable[int]) -> int:
    """Return the digest of the union of disjoint sets of events."""
    return sum(digests) % _MODULUS


def format_digest(digest: int) -> str:
    """Return the text form of a digest: `sum-sha256:` and 64 hexadecimal digits."""
    return f"{DIGEST_PREFIX}{digest:064x}"


def parse_digest(text: str) -> int:
    """Parse the text form of a digest.

    Raises:
        ValueError: The text is not a digest.
    """
    return int(text.removeprefix(DIGEST_PREFIX), 16)


def _build_texts(batch: pa.RecordBatch) -> pa.Array:
    parts = [batch.column(name).cast(pa.string()) for name in DIGEST_FIELDS]
    parts.append(_build_null_mask(batch).cast(pa.string()))
    metadata = batch.column("metadata")
    for lists in (
        batch.column("tags"),
        pa.ListArray.from_arrays(metadata.offsets, metadata.keys),
        pa.ListArray.from_arrays(metadata.offsets, metadata.items),
    ):
        parts.append(pc.list_value_length(lists).cast(pa.string()))
        parts.append(pc.binary_join(lists, _SEPARATOR))
    joined = pc.binary_join_element_wise(
        *parts, _SEPARATOR, null_handling="replace", null_replacement=""
    )
    return joined.cast(pa.binary())


def _build_null_mask(batch: pa.RecordBatch) -> pa.Array:
    """Return one bit per nullable field, so that a null differs from an empty text."""
    mask = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    for bit, name in enumerate(_NULLABLE):
        column = batch.column(name)
        if column.null_count:
            mask = pc.add(mask, pc.multiply(column.is_null().cast(pa.int64()), 1 << bit))
    return mask


def build_event_hash() -> Column:
    """Return the Spark expression for the SHA-256 of an event's text, in hexadecimal.

    It must agree with `digest_batch`, which computes the same from Arrow columns.
    """
    mask = f.lit(0).cast("bigint")
    for bit, name in enumerate(_NULLABLE):
        mask = mask + f.when(f.isnull(name), f.lit(1 << bit)).otherwise(f.lit(0))
    parts = [f.coalesce(f.col(name).cast("string"), f.lit("")) for name in DIGEST_FIELDS]
    parts.append(mask.cast("string"))
    for lists in (f.col("tags"), f.map_keys("metadata"), f.map_values("metadata")):
        parts.append(f.size(lists).cast("string"))
        parts.append(f.array_join(lists, _SEPARATOR))
    return f.sha2(f.concat_ws(_SEPARATOR, *parts), 256)


def build_word_sums(hashes: Column) -> list[Column]:
    """Return aggregates that sum each 32-bit word of hexadecimal hashes.

    Spark has no 256-bit integers; `combine_word_sums` computes the digest from these sums.
    """
    # The sum of 32-bit words fits a bigint for 2**31 events in one group.
    size = _WORD_BITS // 4
    return [
        f.sum(f.conv(f.substring(hashes, 1 + size * word, size), 16, 10).cast("bigint"))
        for word in range(_WORDS)
    ]


def combine_word_sums(sums: Iterable[int | None]) -> int:
    """Return the digest from the sums of the words, the most significant word first."""
    total = 0
    for word_sum in sums:
        total = (total << _WORD_BITS) + (word_sum or 0)
    return total % _MODULUS
