"""What a read keeps, what a cursor may do and what indexes know, judged in Python."""

from __future__ import annotations

from collections.abc import Iterator

from seriatim.core.errors import Conflict, InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.kinds import TRACE_KIND, Rules
from seriatim.core.times import instant_us
from seriatim.store.port import Cursor, Finding, ReadSpec, StreamSummary


def keeps(spec: ReadSpec, record: EventRecord) -> bool:
    """Tell whether a record in the position range belongs to the read."""
    return (
        spec.tenant_id in (None, record.tenant_id)
        and _in_scope(spec, record)
        and spec.stream in (None, record.stream)
        and (spec.after_seq is None or (record.stream_seq or 0) > spec.after_seq)
        and (spec.types is None or record.event_type in spec.types)
        and spec.app_id in (None, record.app_id)
        and spec.env_id in (None, record.env_id)
        and _within(record.occurred_at, spec.occurred_after_us, spec.occurred_until_us)
        and _within(record.recorded_at, spec.recorded_after_us, spec.recorded_until_us)
    )


def _in_scope(spec: ReadSpec, record: EventRecord) -> bool:
    if spec.scope == "log":
        return True
    if spec.scope == "traces":
        return record.stream_type == TRACE_KIND
    return record.stream_type not in (None, TRACE_KIND)


def _within(text: str, after_us: int | None, until_us: int | None) -> bool:
    if after_us is None and until_us is None:
        return True
    moment = instant_us(text) or 0
    return (after_us is None or moment > after_us) and (until_us is None or moment <= until_us)


def summary(first: EventRecord, last: EventRecord) -> StreamSummary:
    """Sum up a stream from its first and its last event."""
    return StreamSummary(
        first.stream_type or "",
        first.stream_id or "",
        first.position,
        last.position,
        last.stream_seq or 0,
        last.event_type,
    )


def index_findings(rules: Rules) -> Iterator[Finding]:
    """Tell doctor which payload indexes there are, and which of them know only newer events."""
    for index in rules.indexes:
        if index.since:
            message = f"{index.path} of {index.event_type} up to position {index.since} is walked"
            cure = "import an export of the log into a new one, which indexes all of it"
            yield Finding("warning", "payload index", message, cure)
    if rules.indexes:
        yield Finding("ok", "payload indexes", f"{len(rules.indexes)} are declared")


def check_cursor_move(stored: Cursor | None, wanted: Cursor, *, reset: bool) -> None:
    """Refuse a move backwards, and another query under a known name, unless it is a reset."""
    if stored is None or reset:
        return
    if stored.query != wanted.query:
        msg = f"{wanted.name!r} is known with another query"
        raise Conflict(msg, details={"name": wanted.name})
    if wanted.position < stored.position:
        msg = f"the cursor of {wanted.name!r} moves backwards only by a reset"
        details = {"argument": "position", "stored": stored.position, "given": wanted.position}
        raise InvalidArgument(msg, details=details)
