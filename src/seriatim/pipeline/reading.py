"""What one task of Spark reads: a part of a range, from wherever it lies."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache

import pyarrow as pa

from seriatim.pipeline.failures import noted_errors
from seriatim.pipeline.marks import mark
from seriatim.pipeline.options import Options
from seriatim.pipeline.planning import Range
from seriatim.pipeline.records import packed
from seriatim.pipeline.scan import scan
from seriatim.pipeline.sealed import Sealed, read_sealed
from seriatim.pipeline.variants import with_variants
from seriatim.pipeline.wanted import Scan


def read_part(options: Options, wanted: Scan, part: Range) -> Iterator[pa.RecordBatch]:
    """Read one part of a range, and its mark if marks are wanted."""
    with noted_errors():
        yield from _read(options, wanted, part)


def _read(options: Options, wanted: Scan, part: Range) -> Iterator[pa.RecordBatch]:
    settle()
    read = wanted.whole if options.packed else wanted
    if isinstance(part, Sealed) and options.archive is not None:
        found = read_sealed(options.archive, read, part)
    else:
        found = scan(options.url, read, part.after, part.until)
    if options.marks:
        found = _marked(found, read, part)
    if options.packed:
        return (packed(batch, wanted.columns) for batch in found)
    return with_variants(found) if options.payload == "variant" else found


@cache
def settle() -> None:
    """Say once that all that is imported stays: Spark collects garbage after every task."""
    gc.freeze()


def _marked(found: Iterator[pa.RecordBatch], wanted: Scan, part: Range) -> Iterator[pa.RecordBatch]:
    yield from found
    yield mark(wanted.columns, part.after, part.until)
