"""The rows of a large log, generated without appending them: streams, traces, tags and tenants.

The log consists of appends of four events each. Every fifty appends repeat the same mixture:
five of one very long stream, ten of decision traces, five of a second tenant, five of facts without
a stream, and twenty-five of orders of twenty events. Thinly spread among the facts are a small
tenant and the operators' journal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from bench.pipeline.trace_workload import make_step_payload
from bench.workload import CUSTOMERS, EVENT_TYPES, EVENTS_PER_STREAM, STREAMS_OPEN, payload
from seriatim.core.canonical import HASH_PREFIX, canonical_text, hash_text
from seriatim.core.decision_graph import TRACE_STREAM_TYPE
from seriatim.core.event import DEFAULT_TENANT, INFRASTRUCTURE_TENANT
from seriatim.core.ids import idempotency_index_key, stream_key, tag_key
from seriatim.log.operator_journal import JOURNAL_STREAM_TYPE

APPEND = 4  # events of one append
BLOCK = 50  # appends of one mixture
BEGIN_US = 1_735_689_600_000_000  # 2025-01-01
STEP_US = 3_000_000  # between two events: 10 M events take a year

LONG_STREAM = ("ledger", "main")
OTHER_TENANT, SMALL_TENANT = "acme", "small"
MONTH = 1000  # appends of the long stream that one event causes
RARE_TYPE, ENDED_TYPE = "page.failed", "ledger.imported"
PRODUCER = "deal-desk"
STEPS = (
    "TraceStarted",
    "InputObserved",
    "EntityObserved",
    "PolicyEvaluated",
    "ExceptionRequested",
    "ApprovalRecorded",
    "ActionProposed",
    "TraceFinished",
)
_PAYLOADS = 499  # different payloads of one type
_ORDER_APPENDS = EVENTS_PER_STREAM // APPEND
_EVENT_ID = "01940000-0000-7000-8000-{:012x}"
_EVENT_KEY = bytes.fromhex("01940000000070008000")
_SMALL_EVERY = 100  # mixtures between two appends of the small tenant, or of the journal


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of the events of one append that are equal, or follow from the first one's.

    `types`, `payloads` and `stream_seq` describe the events: their types, their stored payloads
    with hashes, and the number of the first one in its stream.
    """

    tenant_id: str
    types: Sequence[str]
    payloads: Sequence[tuple[str, bytes]]
    stream: tuple[str, str] | None = None
    stream_seq: int = 0
    actor: tuple[str, str] | None = None
    producer_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    keys: Sequence[str] = ()
    tag: str | None = None


# The columns of a row, in the order of `make_rows`.
ROW_COLUMNS = (
    "position",
    "append_position",
    "recorded_us",
    "stream_seq",
    "event_version",
    "event_id",
    "event_key",
    "stream_key",
    "idempotency_index",
    "payload_hash",
    "tenant_id",
    "stream_type",
    "stream_id",
    "event_type",
    "producer_id",
    "actor_type",
    "actor_id",
    "correlation_id",
    "causation_id",
    "idempotency_key",
    "payload",
    "tags",
)
Row = tuple[Any, ...]


def event_id_at(position: int) -> str:
    """Return the id of the generated event at a position."""
    return _EVENT_ID.format(position)


def make_rows(total: int, tags: list[bytes]) -> Iterator[Row]:
    """Yield the rows of the first `total` events, which must be a multiple of `APPEND`.

    Args:
        total: The number of events.
        tags: Receives an entry for each tag: its key, followed by the position in eight bytes.
    """
    for number in range(total // APPEND):
        common, first = _describe_append(number, total), number * APPEND + 1
        stream_type, stream_id = common.stream or (None, None)
        key = None if common.stream is None else stream_key(common.tenant_id, *common.stream)
        actor_type, actor_id = common.actor or (None, None)
        cause = common.causation_id
        for nth in range(APPEND):
            position = first + nth
            text, digest = common.payloads[nth]
            own_key = common.keys[nth] if common.keys else None
            tag = common.tag if nth == 0 else None
            if tag is not None:
                tags.append(tag_key(common.tenant_id, tag) + position.to_bytes(8, "big"))
            event_id = _EVENT_ID.format(position)
            yield (
                position,
                first,
                BEGIN_US + first * STEP_US,
                None if key is None else common.stream_seq + nth,
                1,
                event_id,
                _EVENT_KEY + position.to_bytes(6, "big"),
                key,
                own_key and idempotency_index_key(common.tenant_id, common.producer_id, own_key),
                digest,
                common.tenant_id,
                stream_type,
                stream_id,
                common.types[nth],
                common.producer_id,
                actor_type,
                actor_id,
                common.correlation_id,
                cause,
                own_key,
                text,
                None if tag is None else f'["{tag}"]',
            )
            if common.correlation_id is not None and common.stream != LONG_STREAM:
                cause = event_id


def _describe_append(number: int, total: int) -> Columns:
    """Return the contents of an append of a log with `total` events."""
    block, nth = divmod(number, BLOCK)
    if nth < 5:
        return _of_long_stream(block * 5 + nth, ended=number >= total // APPEND // 2)
    if nth < 15:
        return _of_trace(block * 10 + nth - 5)
    if nth < 20:
        return _of_other_tenant(block * 5 + nth - 15)
    if nth < 25:
        return _of_facts(block, nth - 20)
    return _of_order(block * 25 + nth - 25)


def _of_long_stream(number: int, *, ended: bool) -> Columns:
    """Return an append of the long stream; in its second half one type has `ended`."""
    month = number // MONTH
    first_append = month * MONTH // 5 * BLOCK + month * MONTH % 5
    last = "ledger.debited" if ended else ENDED_TYPE
    types = ("ledger.credited", "ledger.credited", "ledger.debited", last)
    return replace(
        _fixed(DEFAULT_TENANT, types, number),
        stream=LONG_STREAM,
        stream_seq=number * APPEND + 1,
        actor=("service_principal", "importer"),
        correlation_id=f"month-{month:04d}",
        causation_id=None if number % MONTH == 0 else event_id_at(first_append * APPEND + 1),
    )


def _of_trace(number: int) -> Columns:
    # The two appends of a trace are a mixture apart, so traces interleave.
    pair, within = divmod(number, 20)
    half, nth = divmod(within, 10)
    trace = pair * 10 + nth
    first = half * APPEND
    return Columns(
        DEFAULT_TENANT,
        STEPS[first : first + APPEND],
        [_step_payload(step, trace % _PAYLOADS) for step in STEPS[first : first + APPEND]],
        stream=(TRACE_STREAM_TYPE, f"t-{trace:08d}"),
        stream_seq=first,
        actor=("agent", f"agent-{trace % 17}"),
        producer_id=PRODUCER,
        keys=[f"{trace}/{step}" for step in range(first, first + APPEND)],
    )


def _of_other_tenant(number: int) -> Columns:
    cart, nth = divmod(number, 25)
    return replace(
        _fixed(OTHER_TENANT, ("cart.opened", "cart.filled", "cart.filled", "cart.paid"), number),
        stream=("cart", f"c-{cart:08d}"),
        stream_seq=nth * APPEND + 1,
        correlation_id=f"visit-{cart:08d}",
    )


def _of_facts(block: int, nth: int) -> Columns:
    thin, rest = divmod(block, _SMALL_EVERY)
    if nth == 0 and rest == 0:
        small = ("note.written",) * APPEND
        return replace(
            _fixed(SMALL_TENANT, small, block),
            stream=("note", "n-1"),
            stream_seq=thin * APPEND + 1,
        )
    if nth == 0 and rest == 1:
        journal = ("operator.handler_paused", "operator.handler_resumed") * 2
        return replace(
            _fixed(INFRASTRUCTURE_TENANT, journal, block),
            stream=(JOURNAL_STREAM_TYPE, DEFAULT_TENANT),
            stream_seq=thin * APPEND + 1,
            actor=("person", "ops"),
        )
    last = RARE_TYPE if rest == 2 and nth == 0 else "page.viewed"
    return _fixed(DEFAULT_TENANT, ("page.viewed", "page.viewed", "page.viewed", last), block)


def _of_order(number: int) -> Columns:
    """Return an append of an order; orders have five appends, and `STREAMS_OPEN` interleave."""
    turn, within = divmod(number, STREAMS_OPEN * _ORDER_APPENDS)
    nth, order = divmod(within, STREAMS_OPEN)
    order += turn * STREAMS_OPEN
    customer = f"c-{order * 7919 % CUSTOMERS:06d}"
    return replace(
        _fixed(DEFAULT_TENANT, EVENT_TYPES, number),
        stream=("order", f"o-{order:08d}"),
        stream_seq=nth * APPEND + 1,
        actor=("user", customer),
        correlation_id=f"basket-{order:08d}",
        tag=f"customer:{customer}" if nth == 0 else "express" if nth == 1 else None,
    )


def _fixed(tenant_id: str, types: Sequence[str], number: int) -> Columns:
    """Return an append with payloads of the general kind."""
    shift = number * APPEND
    payloads = [_order_payload((shift + nth) % _PAYLOADS) for nth in range(APPEND)]
    return Columns(tenant_id, types, payloads)


@cache
def _order_payload(index: int) -> tuple[str, bytes]:
    return _store(payload(index, None))


@cache
def _step_payload(step: str, trace: int) -> tuple[str, bytes]:
    return _store(make_step_payload(step, trace))


def _store(value: dict[str, Any]) -> tuple[str, bytes]:
    """Return a payload as the log stores it, and its hash."""
    text = canonical_text(value)
    return text, bytes.fromhex(hash_text(text).removeprefix(HASH_PREFIX))
