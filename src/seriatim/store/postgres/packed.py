"""An append made ready in its caller's thread: rows packed, contexts looked at, the way chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from seriatim.core.kinds import Rules
from seriatim.core.query import Query
from seriatim.core.request import ExpectedContext, ExpectedSeq, Request
from seriatim.store.contexts import ContextKey, Seen, context_key, contexts_of
from seriatim.store.postgres.packing import composite

BATCH_FROM = 32  # events in a group from which looking each stream up once pays


Look = Callable[[str, Mapping[ContextKey, Query]], Mapping[ContextKey, Seen]]


class Packed(msgspec.Struct, frozen=True, gc=False):
    """An append in the form in which it is sent: its rows, and where each row's stream may begin.

    None of them means that it must be decided with the lock held: it has a command, or a context
    that differs, or belongs to a kind whose rules ask for more than constraints can show.
    """

    rows: tuple[bytes, ...] = ()
    first_seqs: tuple[int, ...] = ()
    tagged: bool = False
    seen: Mapping[ContextKey, Seen] = {}
    head: int | None = None  # its contexts hold if this is still the head; such an append is alone
    numbers: tuple[int | None, ...] = ()  # what each event must be in its stream, if any demands it


def is_small(request: Request) -> bool:
    """Tell whether an append needs no decision and is no batch."""
    return 0 < len(request.packed.rows) < BATCH_FROM


def is_light(request: Request) -> bool:
    """Tell whether an append is small and may share a group that no writer thread commits."""
    return request.packed.head is None and is_small(request)


def is_ordered(group: Sequence[Request]) -> bool:
    """Tell whether the numbers that callers demand rise along each stream as positions do.

    The database sees only that a group leaves no gap and no number twice.
    """
    if not any(request.packed.numbers for request in group):
        return True
    counts: dict[bytes | None, int] = {}
    before: dict[bytes | None, int] = {}  # the number before the group's first, by each demand
    for request in group:
        demanded = request.packed.numbers or (None,) * len(request.events)
        for event, number in zip(request.events, demanded, strict=True):
            key = event.stream_key
            counts[key] = nth = counts.get(key, 0) + 1
            if number is not None and before.setdefault(key, number - nth) != number - nth:
                return False
    return True


def pack(request: Request, rules: Rules, look: Look) -> Packed:
    """Pack an append, and look at its contexts, in its caller's thread and before any lock."""
    events = request.events
    if len(events) == 1 and not request.conditions and request.command is None:
        return _pack_one(request, rules)
    tagged = any(event.tags or event.term_keys for event in events)
    wanted = contexts_of((request,))
    seen = look(request.tenant_id, wanted) if wanted else {}
    if (
        request.command is not None
        or _needs_decision(request, rules)
        or (seen and (len(events) >= BATCH_FROM or not _hold(request, seen)))
    ):
        return Packed(tagged=tagged, seen=seen)
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
    demanded = () if numbers.count(None) == len(numbers) else tuple(numbers)
    head = min([one.head for one in seen.values()], default=None)
    return Packed(tuple(rows), tuple(first_seqs), tagged, seen, head, demanded)


def _pack_one(request: Request, rules: Rules) -> Packed:
    """Pack the commonest append of all, one event without conditions, with the fewest steps."""
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


def _hold(request: Request, seen: Mapping[ContextKey, Seen]) -> bool:
    """Tell whether all contexts are as they are expected to be, as far as can be seen."""
    for condition in request.conditions:
        if isinstance(condition, ExpectedContext):
            found = seen[context_key(request.tenant_id, condition.query)]
            if not condition.within(found.head) or not condition.holds(found.version):
                return False
    return True


def _needs_decision(request: Request, rules: Rules) -> bool:
    if not request.conditions and not rules.demands_expected_seq:
        return False
    touched = {event.stream for event in request.events}
    for condition in request.conditions:
        if isinstance(condition, ExpectedContext):
            continue
        if condition.stream not in touched:
            return True
        first_seq = rules.kind_of(condition.stream[0]).first_seq
        # To expect a number before the first is not to expect that there is no stream.
        if condition.seq is not None and condition.seq < first_seq:
            return True
        touched.discard(condition.stream)  # a second condition on a stream is a decision, too
    if any(event.given_seq is not None for event in request.events) and request.conditions:
        return True
    return any(
        event.stream_type is not None and rules.kind_of(event.stream_type).expected_seq_required
        for event in request.events
    )
