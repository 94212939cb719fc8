"""Deciding a whole group of appends one after another, each seeing what those before it added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from seriatim.core.decide import Accepted, Head, Replayed, StaleRules, View, decide
from seriatim.core.errors import SeriatimError
from seriatim.core.event import AppendResult, EventRecord
from seriatim.core.kinds import Rules
from seriatim.core.query import Query
from seriatim.core.request import Request, StoredCommand
from seriatim.store.contexts import AddedContexts, LockedTime
from seriatim.store.port import Outcome


class Placed(msgspec.Struct, frozen=True, gc=False):
    """An accepted append with the place it gets in the log."""

    request: Request
    first_position: int
    stream_seqs: tuple[int | None, ...]

    def records(self, recorded_us: int) -> tuple[EventRecord, ...]:
        """Return the records of this append."""
        first = self.first_position
        return tuple(
            event.record(first + offset, first, seq, recorded_us)
            for offset, (event, seq) in enumerate(
                zip(self.request.events, self.stream_seqs, strict=True)
            )
        )

    def result(self, recorded_us: int) -> AppendResult:
        """Return the receipt of this append."""
        last = self.first_position + len(self.request.events) - 1
        command = self.request.command
        return AppendResult(
            self.first_position,
            last,
            lambda: self.records(recorded_us),
            response=None if command is None else command.command.response,
        )


def placed_in_order(
    requests: Sequence[Request], first_position: int, stream_seqs: Sequence[int | None]
) -> list[Placed]:
    """Give appends that were stored one after another their places."""
    places: list[Placed] = []
    at = 0
    for request in requests:
        end = at + len(request.events)
        places.append(Placed(request, first_position + at, tuple(stream_seqs[at:end])))
        at = end
    return places


class Group(View):
    """A view of the store overlaid with what the appends of this group add to it."""

    def __init__(
        self, view: View, head: int, recorded_us: int, spent: LockedTime | None = None
    ) -> None:
        self._view = view
        self._recorded_us = recorded_us
        self._start = head
        self.next_position = head + 1
        self._placed: list[Placed] = []
        self._heads: dict[bytes, Head] = {}
        # Positions, not records: most groups are never asked for what they added.
        self._keys: dict[bytes, int] = {}
        self._ids: dict[tuple[str, bytes], int] = {}
        self._commands: dict[bytes, StoredCommand] = {}
        self._contexts = AddedContexts(spent or LockedTime())
        self._matched = 0  # appends whose records the contexts have

    def add(self, placed: Placed) -> None:
        """Make an accepted append visible to those after it."""
        position = placed.first_position
        self._placed.append(placed)
        for event, seq in zip(placed.request.events, placed.stream_seqs, strict=True):
            if event.stream_key is not None and seq is not None:
                self._heads[event.stream_key] = Head(seq, event.event_type)
            self._ids[event.tenant_id, event.event_key] = position
            if event.idempotency_index is not None:
                self._keys[event.idempotency_index] = position
            position += 1
        self.next_position = position
        command = placed.request.command
        if command is not None:
            self._commands[command.command_key] = StoredCommand(
                command.request_hash, command.response, placed.first_position, position - 1
            )

    def head(self) -> int:
        return self.next_position - 1

    def stream_head(self, stream_key: bytes) -> Head | None:
        return self._heads.get(stream_key) or self._view.stream_head(stream_key)

    def by_key(self, idempotency_index: bytes) -> EventRecord | None:
        position = self._keys.get(idempotency_index)
        if position is None:
            return self._view.by_key(idempotency_index)
        return self.between(position, position)[0]

    def by_id(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        position = self._ids.get((tenant_id, event_key))
        if position is None:
            return self._view.by_id(tenant_id, event_key)
        return self.between(position, position)[0]

    def between(self, first: int, last: int) -> tuple[EventRecord, ...]:
        if first <= self._start:
            return self._view.between(first, last)
        return tuple(record for record in self._added() if first <= record.position <= last)

    def context(self, tenant_id: str, query: Query) -> int | None:
        fresh, self._matched = self._placed[self._matched :], len(self._placed)
        added = (record for placed in fresh for record in placed.records(self._recorded_us))
        version = self._contexts.version(tenant_id, query, added)
        return self._view.context(tenant_id, query) if version is None else version

    def command(self, command_key: bytes) -> StoredCommand | None:
        return self._commands.get(command_key) or self._view.command(command_key)

    def _added(self) -> Iterator[EventRecord]:
        for placed in self._placed:
            yield from placed.records(self._recorded_us)


def decide_group(  # noqa: PLR0913 - a group, what is known of the log, and its time
    requests: Sequence[Request],
    view: View,
    rules: Rules,
    head: int,
    recorded_us: int,
    spent: LockedTime | None = None,
) -> list[Placed | Outcome]:
    """Give each request its place or its answer, in the order in which they came."""
    group = Group(view, head, recorded_us, spent)
    answers: list[Placed | Outcome] = []
    for request in requests:
        try:
            decision = decide(request, group, rules)
        except (SeriatimError, StaleRules) as refusal:
            answers.append(refusal)
            continue
        if isinstance(decision, Replayed):
            answers.append(_replayed(decision))
        else:
            placed = _place(request, decision, group)
            answers.append(placed)
    return answers


def _place(request: Request, decision: Accepted, group: Group) -> Placed:
    if decision.events != request.events:
        request = msgspec.structs.replace(request, events=decision.events)
    placed = Placed(request, group.next_position, decision.stream_seqs)
    group.add(placed)
    return placed


def _replayed(decision: Replayed) -> AppendResult:
    return AppendResult.replay(decision.records, decision.response, decision.id_mismatch)


def finish(answers: Sequence[Placed | Outcome], recorded_us: int) -> list[Outcome]:
    """Turn places into receipts, once the transaction that stored them has committed."""
    return [
        answer.result(recorded_us) if isinstance(answer, Placed) else answer for answer in answers
    ]
