"""Decide a group of appends in order; each sees the events of the appends accepted before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from seriatim.core.decide import (
    AcceptedAppend,
    ReplayedAppend,
    StaleRules,
    StoreView,
    StreamHead,
    decide,
)
from seriatim.core.errors import SeriatimError
from seriatim.core.event import AppendResult, EventRecord
from seriatim.core.kinds import Rules
from seriatim.core.query import Query
from seriatim.core.request import AppendRequest, StoredCommand
from seriatim.store.contexts import AddedMatches, LockBudget
from seriatim.store.port import Outcome


class PlacedAppend(msgspec.Struct, frozen=True, gc=False):
    """An accepted append with its first position and stream sequence numbers."""

    request: AppendRequest
    first_position: int
    stream_seqs: tuple[int | None, ...]

    def build_records(self, recorded_us: int) -> tuple[EventRecord, ...]:
        """Build the records of this append."""
        first = self.first_position
        return tuple(
            event.to_record(first + offset, first, seq, recorded_us)
            for offset, (event, seq) in enumerate(
                zip(self.request.events, self.stream_seqs, strict=True)
            )
        )

    def build_receipt(self, recorded_us: int) -> AppendResult:
        """Build the receipt of this append."""
        last = self.first_position + len(self.request.events) - 1
        command = self.request.command
        return AppendResult(
            self.first_position,
            last,
            lambda: self.build_records(recorded_us),
            response=None if command is None else command.command.response,
        )


def place_in_order(
    requests: Sequence[AppendRequest], first_position: int, stream_seqs: Sequence[int | None]
) -> list[PlacedAppend]:
    """Assign consecutive positions to appends that one statement has stored.

    Args:
        requests: The appends, in the order in which they were stored.
        first_position: The position of the first event.
        stream_seqs: The sequence number of each event in its stream, None for facts.

    Returns:
        The placement of each append.

    """
    places: list[PlacedAppend] = []
    start = 0
    for request in requests:
        end = start + len(request.events)
        places.append(PlacedAppend(request, first_position + start, tuple(stream_seqs[start:end])))
        start = end
    return places


class GroupView(StoreView):
    """A view of the store, overlaid with the accepted appends of this group."""

    def __init__(
        self, view: StoreView, head: int, recorded_us: int, lock_budget: LockBudget | None = None
    ) -> None:
        self._view = view
        self._recorded_us = recorded_us
        self._start = head
        self.next_position = head + 1
        self._placed: list[PlacedAppend] = []
        self._heads: dict[bytes, StreamHead] = {}
        # Positions instead of records: most groups never look up their own events.
        self._keys: dict[bytes, int] = {}
        self._ids: dict[tuple[str, bytes], int] = {}
        self._commands: dict[bytes, StoredCommand] = {}
        self._contexts = AddedMatches(lock_budget or LockBudget())
        self._matched = 0  # appends whose records `_contexts` has received

    def add(self, placed: PlacedAppend) -> None:
        """Make an accepted append visible to the later appends of the group."""
        position = placed.first_position
        self._placed.append(placed)
        for event, seq in zip(placed.request.events, placed.stream_seqs, strict=True):
            if event.stream_key is not None and seq is not None:
                self._heads[event.stream_key] = StreamHead(seq, event.event_type)
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

    def stream_head(self, stream_key: bytes) -> StreamHead | None:
        return self._heads.get(stream_key) or self._view.stream_head(stream_key)

    def find_by_key(self, idempotency_index: bytes) -> EventRecord | None:
        position = self._keys.get(idempotency_index)
        if position is None:
            return self._view.find_by_key(idempotency_index)
        return self.read_range(position, position)[0]

    def find_by_id(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        position = self._ids.get((tenant_id, event_key))
        if position is None:
            return self._view.find_by_id(tenant_id, event_key)
        return self.read_range(position, position)[0]

    def read_range(self, first: int, last: int) -> tuple[EventRecord, ...]:
        if first <= self._start:
            return self._view.read_range(first, last)
        return tuple(record for record in self._added() if first <= record.position <= last)

    def current_context_version(self, tenant_id: str, query: Query) -> int | None:
        # Only appends accepted since the previous call: `AddedMatches` keeps the earlier records.
        unmatched, self._matched = self._placed[self._matched :], len(self._placed)
        added = (
            record for placed in unmatched for record in placed.build_records(self._recorded_us)
        )
        version = self._contexts.version(tenant_id, query, added)
        return self._view.current_context_version(tenant_id, query) if version is None else version

    def find_command(self, command_key: bytes) -> StoredCommand | None:
        return self._commands.get(command_key) or self._view.find_command(command_key)

    def _added(self) -> Iterator[EventRecord]:
        for placed in self._placed:
            yield from placed.build_records(self._recorded_us)


def decide_group(
    requests: Sequence[AppendRequest],
    view: StoreView,
    rules: Rules,
    head: int,
    recorded_us: int,
    lock_budget: LockBudget | None = None,
) -> list[PlacedAppend | Outcome]:
    """Decide each request of a group, in order.

    Args:
        requests: The appends.
        view: The state of the log, read under its lock.
        rules: The rules of the stored declarations.
        head: The last position of the log.
        recorded_us: The time at which the events are recorded.
        lock_budget: The time left for matching contexts under the lock.

    Returns:
        For each request its placement, the receipt of the append that it repeats, or its error.

    """
    group = GroupView(view, head, recorded_us, lock_budget)
    results: list[PlacedAppend | Outcome] = []
    for request in requests:
        try:
            decision = decide(request, group, rules)
        except (SeriatimError, StaleRules) as refusal:
            results.append(refusal)
            continue
        if isinstance(decision, ReplayedAppend):
            results.append(_build_replay(decision))
        else:
            results.append(_place(request, decision, group))
    return results


def _place(request: AppendRequest, decision: AcceptedAppend, group: GroupView) -> PlacedAppend:
    # `decide` assigns another event key where two event ids hash to the same one.
    if decision.events != request.events:
        request = msgspec.structs.replace(request, events=decision.events)
    placed = PlacedAppend(request, group.next_position, decision.stream_seqs)
    group.add(placed)
    return placed


def _build_replay(decision: ReplayedAppend) -> AppendResult:
    return AppendResult.replay(decision.records, decision.response, decision.id_mismatch)


def build_outcomes(results: Sequence[PlacedAppend | Outcome], recorded_us: int) -> list[Outcome]:
    """Turn placements into receipts, after their transaction has committed."""
    return [
        result.build_receipt(recorded_us) if isinstance(result, PlacedAppend) else result
        for result in results
    ]
