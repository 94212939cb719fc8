"""The validated path of appends: decide a group in `core` while the log's lock is held.

The statements come from a generator that yields each statement and receives its rows. One sequence
therefore serves the committer and callers' own transactions, on sync and async connections.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, LiteralString, TypeVar

import msgspec
import psycopg
from psycopg.rows import tuple_row

from seriatim.config import Settings
from seriatim.core.decide import DecisionTrace, StreamHead, trace_decision
from seriatim.core.errors import InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.ids import event_keys, stream_key
from seriatim.core.kinds import Rules
from seriatim.core.query import Query
from seriatim.core.request import AppendRequest, ExpectedSeq, PreparedEvent, StoredCommand
from seriatim.store.append_group import PlacedAppend, build_outcomes, decide_group
from seriatim.store.contexts import (
    NEWEST_BYTES_MAX,
    NEWEST_EVENTS_MAX,
    ContextKey,
    EvaluatedContext,
    GroupContexts,
)
from seriatim.store.port import Outcome
from seriatim.store.postgres.binary_format import (
    RowArray,
    RowArrayDumper,
    encode_array,
    encode_event,
    encode_uuid_array,
)
from seriatim.store.postgres.connection import (
    READ_COMMITTED,
    ServerInfo,
    get_statement_timeout_ms,
    make_lock_timeout_error,
)
from seriatim.store.postgres.declarations import build_rules
from seriatim.store.postgres.group_streams import GroupStreams
from seriatim.store.postgres.statements import decode_record, load_store_statements

_get_position = itemgetter(0)


class Statement(msgspec.Struct, frozen=True):
    """A statement to run; its rows are sent back to the generator."""

    sql: LiteralString
    parameters: Sequence[Any] | Mapping[str, Any] | None = None


T = TypeVar("T")
Steps = Generator[Statement, list[tuple[Any, ...]], T]


class PostgresLockedView:
    """The view that `decide` uses: the state of a group's streams, keys, ids and commands."""

    def __init__(self, contexts: GroupContexts, head: int) -> None:
        self.contexts = contexts
        self._head = head
        self.heads: dict[bytes, StreamHead] = {}
        self.keys: dict[bytes, EventRecord] = {}
        self.ids: dict[tuple[str, bytes], EventRecord] = {}
        self.commands: dict[bytes, StoredCommand] = {}
        self.ranges: dict[tuple[int, int], tuple[EventRecord, ...]] = {}

    def head(self) -> int:
        return self._head

    def stream_head(self, stream_key: bytes) -> StreamHead | None:
        return self.heads.get(stream_key)

    def find_by_key(self, idempotency_index: bytes) -> EventRecord | None:
        return self.keys.get(idempotency_index)

    def find_by_id(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        return self.ids.get((tenant_id, event_key))

    def read_range(self, first: int, last: int) -> tuple[EventRecord, ...]:
        return self.ranges[first, last]

    def current_context_version(self, tenant_id: str, query: Query) -> int | None:
        return self.contexts.version(tenant_id, query)

    def find_command(self, command_key: bytes) -> StoredCommand | None:
        return self.commands.get(command_key)


class ValidatedAppend:
    """One group of appends on the validated path."""

    def __init__(
        self,
        schema: str,
        server_info: ServerInfo,
        requests: Sequence[AppendRequest],
        rules: Rules,
        evaluated: Mapping[ContextKey, EvaluatedContext],
        settings: Settings | None = None,
    ) -> None:
        """Create the append of a group.

        Args:
            schema: The schema of the log.
            server_info: The lock key and type oids of the log.
            requests: The appends.
            rules: The rules as last read; newer ones are read under the lock.
            evaluated: The contexts that were evaluated before the lock.
            settings: The time limits; None in a caller's own transaction, which has none.

        """
        self._sql = load_store_statements(schema)
        self._schema = schema
        self._server_info = server_info
        self._requests = requests
        self._rules = rules
        self._evaluated = evaluated
        self._settings = settings

    def build_steps(self) -> Steps[list[Outcome]]:
        """Take the lock, look up the state, decide and insert, in an open transaction.

        Returns:
            One outcome per request, in order. The caller commits.

        Raises:
            InvalidArgument: The transaction is not at READ COMMITTED, or restricted to a tenant.
            TimedOut: The lock was held for too long to insert.

        """
        # The lock is a statement of its own: at READ COMMITTED the next one takes a new snapshot,
        # which shows all events committed while this one waited (B3).
        yield self._lock_statement()
        locked_at = time.monotonic()
        [[head, recorded_us, rules_version, isolation, tenant]] = yield Statement(
            self._sql["select_log_state"]
        )
        if isolation != READ_COMMITTED:
            # At a higher level the snapshot is older than the lock and misses events committed
            # before the lock was granted, so positions would be assigned twice.
            msg = (
                "an append requires a transaction at READ COMMITTED, but this one is at "
                f"{isolation.upper()}: set connection.isolation_level before it begins, or begin "
                "it at that level; this overrides the default of the server, database or role"
            )
            raise InvalidArgument(msg, details={"argument": "connection", "isolation": isolation})
        if tenant:
            # Row-level security would hide the events of other tenants, and with them the head.
            msg = (
                "an append requires a transaction that sees all tenants, but seriatim.tenant is "
                "set in this one: reset it, or use another transaction"
            )
            raise InvalidArgument(msg, details={"argument": "connection"})
        view, rules = yield from self._read_view(head, rules_version)
        budget = view.contexts.lock_budget
        results = decide_group(self._requests, view, rules, head, recorded_us, budget)
        placed = [result for result in results if isinstance(result, PlacedAppend)]
        if placed:
            # statement_timeout does not cover the time in Python between statements, in which the
            # lock is held as well (B14).
            held_ms = (time.monotonic() - locked_at) * 1000
            if self._settings and held_ms > get_statement_timeout_ms(self._settings):
                raise make_lock_timeout_error(self._settings)
            yield from self._insert(placed, head, recorded_us)
        return build_outcomes(results, recorded_us)

    def build_explain_steps(self) -> Steps[DecisionTrace]:
        """Look up the state and decide the only append, in an open read-only transaction."""
        [[head, _, rules_version, _, _]] = yield Statement(self._sql["select_log_state"])
        view, rules = yield from self._read_view(head, rules_version)
        return trace_decision(self._requests[0], view, rules)

    def _read_view(self, head: int, rules_version: int) -> Steps[tuple[PostgresLockedView, Rules]]:
        """Look up the state that `decide` needs for the group."""
        view = PostgresLockedView(GroupContexts(self._requests, self._evaluated), head)
        yield from self._find_heads(view)
        yield from self._find_existing(view)
        yield from self._complete_contexts(view.contexts, head)
        rules = self._rules
        if rules_version != rules.version:
            rules = build_rules((yield Statement(self._sql["list_declarations"])))
        return view, rules

    def _lock_statement(self) -> Statement:
        if self._settings is None:  # a timeout would stay in force in the caller's transaction
            return Statement(self._sql["lock_log"], (self._server_info.lock_key,))
        timeout_ms = str(get_statement_timeout_ms(self._settings))
        return Statement(
            self._sql["lock_log_and_set_timeout"], (self._server_info.lock_key, timeout_ms)
        )

    def _events(self) -> Iterable[PreparedEvent]:
        return (event for request in self._requests for event in request.events)

    def _find_heads(self, view: PostgresLockedView) -> Steps[None]:
        keys = {event.stream_key for event in self._events() if event.stream_key is not None}
        for request in self._requests:
            for condition in request.conditions:
                if isinstance(condition, ExpectedSeq):
                    keys.add(stream_key(request.tenant_id, *condition.stream))
        if not keys:
            return
        ordered = sorted(keys)
        rows = yield Statement(self._sql["find_stream_heads"], (encode_uuid_array(ordered),))
        for key, (seq, event_type) in zip(ordered, rows, strict=True):
            if seq is not None:
                view.heads[key] = StreamHead(seq, event_type)

    def _find_existing(self, view: PostgresLockedView) -> Steps[None]:
        yield from self._find_ids(view)
        keys = {
            event.idempotency_index
            for event in self._events()
            if event.idempotency_index is not None
        }
        if keys:
            for row in (yield Statement(self._sql["find_stored_keys"], (encode_uuid_array(keys),))):
                view.keys[row[-1].bytes] = decode_record(row)
        commands = {
            request.command.command_key for request in self._requests if request.command is not None
        }
        if commands:
            rows = yield Statement(
                self._sql["find_stored_commands"], (encode_uuid_array(commands),)
            )
            for key, request_hash, response, first, last in rows:
                view.commands[key.bytes] = StoredCommand(request_hash, response, first, last)
                records = yield Statement(self._sql["list_events_in_range"], (first, last))
                view.ranges[first, last] = tuple(map(decode_record, records))

    def _find_ids(self, view: PostgresLockedView) -> Steps[None]:
        """Look up event ids by key; where another id has that key, look up the next key.

        Keys have 16 bytes, so a second round is needed only if two ids collide.
        """
        pending = {
            (event.tenant_id, event.event_id): event_keys(event.event_id)
            for event in self._events()
            if event.has_caller_id
        }
        while pending:
            keys = {
                event_id: key
                for event_id, candidates in pending.items()
                if (key := next(candidates, None))
            }
            rows = yield Statement(
                self._sql["find_stored_ids"], (encode_uuid_array(set(keys.values())),)
            )
            for row in rows:
                record = decode_record(row)
                view.ids[record.tenant_id, row[-1].bytes] = record
            pending = {
                (tenant_id, event_id): pending[tenant_id, event_id]
                for (tenant_id, event_id), key in keys.items()
                if (stored := view.ids.get((tenant_id, key))) and stored.event_id != event_id
            }

    def _complete_contexts(self, contexts: GroupContexts, head: int) -> Steps[None]:
        """Match the events appended since the contexts were evaluated outside the lock.

        One statement reads these events for all contexts, and the filters are matched in Python:
        its plan and its cost do not depend on the conditions.
        """
        stale = contexts.find_stale_tenants(head)
        if not stale:
            return
        values = {
            "tenants": list(stale),
            "afters": list(stale.values()),
            "events": NEWEST_EVENTS_MAX,
            "bytes": NEWEST_BYTES_MAX,
        }
        rows = yield Statement(self._sql["list_newest_events"], values)
        for number, tenant_id in enumerate(stale, start=1):
            newest = sorted(
                (row for row in rows if row[-1] == number), key=_get_position, reverse=True
            )
            # The last but one column counts the rows without the limit in bytes.
            complete = not newest or (len(newest) == newest[0][-2] < NEWEST_EVENTS_MAX)
            contexts.add_newest_events(
                tenant_id, map(decode_record, newest), complete=complete, head=head
            )

    def _insert(self, placed: list[PlacedAppend], head: int, recorded_us: int) -> Steps[None]:
        # The function that serves the fast path numbers and checks decided events once more; the
        # lock, which this transaction holds, is granted to it at once.
        events = [event for place in placed for event in place.request.events]
        rows = [
            encode_event(event, offset, seq)
            for place in placed
            for offset, (event, seq) in enumerate(
                zip(place.request.events, place.stream_seqs, strict=True)
            )
        ]
        values = (
            self._server_info.lock_key,
            head,
            recorded_us,
            any(event.tags or event.term_keys for event in events),
            encode_array(self._server_info.row_array, self._server_info.row_type, rows),
            *GroupStreams(events).encode(),
        )
        yield Statement(self._sql["append_decided_events"], values)
        for place in placed:
            command = place.request.command
            if command is not None:
                last = place.first_position + len(place.request.events) - 1
                command_values = (
                    command.command_key.hex(),
                    place.request.tenant_id,
                    command.request_hash,
                    command.response,
                    place.first_position,
                    last,
                )
                yield Statement(self._sql["insert_command"], command_values)


def run_steps(connection: psycopg.Connection[Any], steps: Steps[T]) -> T:
    """Run the statements on a sync connection and return the result.

    The connection may be a caller's, so the cursor uses its own row factory and adapters.

    Args:
        connection: A connection in an open transaction.
        steps: The statements to run; each receives the rows of its statement.

    Returns:
        The return value of the generator.

    Raises:
        psycopg.Error: A statement failed; the transaction must be rolled back.

    """
    rows: list[tuple[Any, ...]] = []
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.adapters.register_dumper(RowArray, RowArrayDumper)
        try:
            step = next(steps)
            while True:
                cursor.execute(step.sql, step.parameters, binary=True)
                rows = cursor.fetchall() if cursor.description else []
                step = steps.send(rows)
        except StopIteration as end:
            result: T = end.value
            return result


async def run_steps_async(connection: psycopg.AsyncConnection[Any], steps: Steps[T]) -> T:
    """Run the statements on an async connection, as `run_steps` does on a sync one."""
    rows: list[tuple[Any, ...]] = []
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        cursor.adapters.register_dumper(RowArray, RowArrayDumper)
        try:
            step = next(steps)
            while True:
                await cursor.execute(step.sql, step.parameters, binary=True)
                rows = await cursor.fetchall() if cursor.description else []
                step = steps.send(rows)
        except StopIteration as end:
            result: T = end.value
            return result
