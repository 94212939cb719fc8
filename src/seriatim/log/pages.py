"""Reading a long range page by page, in pages that stay small in bytes whatever is in them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from seriatim.core.event import EventRecord
from seriatim.store.port import ReadSpec, Store

PAGE_EVENTS_FIRST = 100
PAGE_BYTES = 8 * 1024 * 1024


def pages(store: Store, spec: ReadSpec) -> Iterator[list[EventRecord]]:
    """Yield every page of a read up to its `until`, none with more events than its `limit`.

    The first page is short; what it weighs decides how long the next may be, and so on.
    """
    limit = min(spec.limit, PAGE_EVENTS_FIRST)
    after = spec.after
    while page := store.read(msgspec.structs.replace(spec, after=after, limit=limit)):
        yield page
        if len(page) < limit or page[-1].position <= after:
            return
        after = page[-1].position
        weight = sum(len(record.payload) for record in page) // len(page) + 1
        limit = max(1, min(spec.limit, PAGE_BYTES // weight))
