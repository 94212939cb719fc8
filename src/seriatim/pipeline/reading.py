"""Reader of one partition in a Spark task, from the archive or from the log."""

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


def read_part(options: Options, spec: Scan, part: Range) -> Iterator[pa.RecordBatch]:
    """Yield the events of one partition, then its watermark if the options ask for one.

    Args:
        options: The options of the read.
        spec: Filters and columns, narrowed by pushed-down filters.
        part: The partition to read.

    Raises:
        SeriatimError: The read failed; the error carries its details to the driver.
    """
    with noted_errors():
        yield from _read(options, spec, part)


def _read(options: Options, spec: Scan, part: Range) -> Iterator[pa.RecordBatch]:
    settle()
    # Whole records need every column, whichever columns Spark selects.
    full = spec.whole if options.packed else spec
    if isinstance(part, Sealed) and options.archive is not None:
        batches = read_sealed(options.archive, full, part)
    else:
        batches = scan(options.url, full, part.after, part.until)
    if options.marks:
        batches = _append_watermark(batches, full, part)
    if options.packed:
        return (packed(batch, spec.columns) for batch in batches)
    return with_variants(batches) if options.payload == "variant" else batches


@cache
def settle() -> None:
    """Exclude all objects imported so far from garbage collection, once per process.

    Spark collects garbage after every task, and would visit every imported object each time.
    """
    gc.freeze()


def _append_watermark(
    batches: Iterator[pa.RecordBatch], spec: Scan, part: Range
) -> Iterator[pa.RecordBatch]:
    yield from batches
    yield mark(spec.columns, part.after, part.until)
