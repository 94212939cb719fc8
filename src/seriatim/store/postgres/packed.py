"""Encode an append in its caller's thread: rows, contexts, and whether the fast path applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from seriatim.core.kinds import Rules
from seriatim.core.query import Query
from seriatim.core.request import ExpectedContext, ExpectedSeq, Request
from seriatim.store.contexts import ContextKey, Seen, context_key, contexts_of
from seriatim.store.postgres.packing import composite

BATCH_FROM = 32  # events in a group from which one look-up per stream is cheaper


Look = Callable[[str, Mapping[ContextKey, Query]], Mapping[ContextKey, Seen]]


class Packed(msgspec.Struct, frozen=True, gc=False):
    """An append in Postgres's binary format.

    `rows` is empty if the append needs the validated path: it has a command, a context that does
    not hold, or a kind whose rules the constraints of the database cannot check.
    """

    rows: tuple[bytes, ...] = ()
    first_seqs: tuple[int, ...] = ()  # the first sequence number of each row's stream
    tagged: bool = False
    seen: Mapping[ContextKey, Seen] = {}
    head: int | None = None  # contexts hold only at this head; such an append is sent alone
    numbers: tuple[int | None, ...] = ()  # the required sequence numbers; empty if there are none


def is_small(request: Request) -> bool:
    """Return True if an append can use the fast path and is smaller than a batch."""
    return 0 < len(request.packed.rows) < BATCH_FROM


def is_light(request: Request) -> bool:
    """Return True if an append can use the fast path together with others."""
    return request.packed.head is None and is_small(request)


def is_ordered(group: Sequence[Request]) -> bool:
    """Return True if required sequence numbers rise with the positions in each stream.

    The database only checks that a group leaves no gap and no duplicate number.
    """
    if not any(request.packed.numbers for request in group):
        return True
    counts: dict[bytes | None, int] = {}
    before: dict[bytes | None, int] = {}  # the implied last number before the group
    for request in group:
        required = request.packed.numbers or (None,) * len(request.events)
        for event, number in zip(request.events, required, strict=True):
            key = event.stream_key
            counts[key] = nth = counts.get(key, 0) + 1
            if number is not None and before.setdefault(key, number - nth) != number - nth:
                return False
    return True


def pack(request: Request, rules: Rules, look: Look) -> Packed:
    """Encode an append and evaluate its contexts, before any lock is taken.

    Args:
        request: The append.
        rules: The rules under which it was checked.
        look: Evaluates contexts at the current head.

    """
    events = request.events
    if len(events) == 1 and not request.conditions and request.command is None:
        return _encode_single(request, rules)
    tagged = any(event.tags or event.term_keys for event in events)
    contexts = contexts_of((request,))
    evaluated = look(request.tenant_id, contexts) if contexts else {}
    if (
        request.command is not None
        or _needs_validated_path(request, rules)
        or (evaluated and (len(events) >= BATCH_FROM or not _contexts_hold(request, evaluated)))
    ):
        return Packed(tagged=tagged, seen=evaluated)
    expected = {c.stream: c.seq for c in request.conditions if isinstance(c, ExpectedSeq)}
    rows: list[bytes] = []
    first_seqs: list[int] = []
    numbers: list[int | None] = []
    for offset, event in enumerate(events):
        first_seq = rules.kind_of(event.stream_type).first_seq if event.stream_type else 0
        given = event.given_seq
        if given is None and event.stream in expected:
            last = expected[event.stream]
            given = first_seq if last is None else last + 1
            expected[event.stream] = given
        rows.append(composite(event, offset, given, first_seq))
        first_seqs.append(first_seq)
        numbers.append(given)
    required = () if numbers.count(None) == len(numbers) else tuple(numbers)
    head = min([context.head for context in evaluated.values()], default=None)
    return Packed(tuple(rows), tuple(first_seqs), tagged, evaluated, head, required)


def _encode_single(request: Request, rules: Rules) -> Packed:
    """Encode the most common append, one event without conditions, with the fewest steps."""
    [event] = request.events
    tagged = bool(event.tags or event.term_keys)
    first_seq = 0
    if event.stream_type is not None:
        kind = rules.kind_of(event.stream_type)
        if kind.expected_seq_required:
            return Packed(tagged=tagged)
        first_seq = kind.first_seq
    row = composite(event, 0, event.given_seq, first_seq)
    numbers = () if event.given_seq is None else (event.given_seq,)
    return Packed((row,), (first_seq,), tagged, numbers=numbers)


def _contexts_hold(request: Request, evaluated: Mapping[ContextKey, Seen]) -> bool:
    """Return True if all expected contexts hold at the evaluated head."""
    for condition in request.conditions:
        if isinstance(condition, ExpectedContext):
            found = evaluated[context_key(request.tenant_id, condition.query)]
            if not condition.within(found.head) or not condition.holds(found.version):
                return False
    return True


def _needs_validated_path(request: Request, rules: Rules) -> bool:
    """Return True if constraints of the database cannot check the append's conditions."""
    if not request.conditions and not rules.demands_expected_seq:
        return False
    streams = {event.stream for event in request.events}
    for condition in request.conditions:
        if isinstance(condition, ExpectedContext):
            continue
        if condition.stream not in streams:
            return True
        first_seq = rules.kind_of(condition.stream[0]).first_seq
        # Expecting a number below the first is different from expecting that no stream exists.
        if condition.seq is not None and condition.seq < first_seq:
            return True
        streams.discard(condition.stream)  # a second condition on a stream is not supported here
    if any(event.given_seq is not None for event in request.events) and request.conditions:
        return True
    return any(
        event.stream_type is not None and rules.kind_of(event.stream_type).expected_seq_required
        for event in request.events
    )
