"""An append decided with the lock held, as steps that a sync or an async connection can take.

The steps are a generator: it yields what to run and is sent what came back, so that the one
sequence of statements serves the committer, and a caller's own transaction of either kind.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, LiteralString

import msgspec
import psycopg
from psycopg.rows import tuple_row

from seriatim.config import Settings
from seriatim.core.decide import Head
from seriatim.core.errors import InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.ids import event_keys, stream_key
from seriatim.core.kinds import Rules
from seriatim.core.query import Query
from seriatim.core.request import ExpectedSeq, Prepared, Request, StoredCommand
from seriatim.store.contexts import (
    NEWEST_BYTES_MAX,
    NEWEST_EVENTS_MAX,
    ContextKey,
    Contexts,
    Seen,
)
from seriatim.store.grouping import Placed, decide_group, finish
from seriatim.store.port import Outcome
from seriatim.store.postgres.connecting import Hello
from seriatim.store.postgres.declaring import rules_of
from seriatim.store.postgres.lock import held_too_long, statement_ms
from seriatim.store.postgres.packing import (
    RowArray,
    RowArrayDumper,
    array_of,
    composite,
    uuid_array,
)
from seriatim.store.postgres.rows import record_of
from seriatim.store.postgres.statements import statements

_position = itemgetter(0)


class Run(msgspec.Struct, frozen=True):
    """A statement to run; its rows are sent back."""

    text: LiteralString
    parameters: Any = None


Steps = Generator[Run, list[tuple[Any, ...]], list[Outcome]]


class Facts:
    """What was found of a group's streams, keys, ids, contexts and commands: a decision's view."""

    def __init__(self, contexts: Contexts, head: int) -> None:
        self.contexts = contexts
        self._head = head
        self.heads: dict[bytes, Head] = {}
        self.keys: dict[bytes, EventRecord] = {}
        self.ids: dict[tuple[str, bytes], EventRecord] = {}
        self.commands: dict[bytes, StoredCommand] = {}
        self.ranges: dict[tuple[int, int], tuple[EventRecord, ...]] = {}

    def head(self) -> int:
        return self._head

    def stream_head(self, stream_key: bytes) -> Head | None:
        return self.heads.get(stream_key)

    def by_key(self, idempotency_index: bytes) -> EventRecord | None:
        return self.keys.get(idempotency_index)

    def by_id(self, tenant_id: str, event_key: bytes) -> EventRecord | None:
        return self.ids.get((tenant_id, event_key))

    def between(self, first: int, last: int) -> tuple[EventRecord, ...]:
        return self.ranges[first, last]

    def context(self, tenant_id: str, query: Query) -> int | None:
        return self.contexts.version(tenant_id, query)

    def command(self, command_key: bytes) -> StoredCommand | None:
        return self.commands.get(command_key)


class Decision:
    """One group on its way through the lock."""

    def __init__(  # noqa: PLR0913 - a group and what is known beforehand
        self,
        schema: str,
        hello: Hello,
        requests: Sequence[Request],
        rules: Rules,
        seen: Mapping[ContextKey, Seen],
        settings: Settings | None = None,
    ) -> None:
        """Take what is known beforehand; a caller's own transaction has no settings of ours."""
        self._sql = statements(schema)
        self._schema = schema
        self._hello = hello
        self._requests = requests
        self._rules = rules
        self._seen = seen
        self._settings = settings

    def steps(self) -> Steps:
        """Lock, look, decide, insert; the transaction around it is the driver's."""
        yield self._lock()
        locked_at = time.monotonic()
        [[head, recorded_us, rules_version, isolation, tenant]] = yield Run(self._sql["look"])
        if isolation != "read committed":
            msg = (
                "an append needs a transaction at READ COMMITTED, and this one is at "
                f"{isolation.upper()}: set connection.isolation_level before it begins, or begin "
                "it with that level; the default of server, database or role is then not used"
            )
            raise InvalidArgument(msg, details={"argument": "connection", "isolation": isolation})
        if tenant:
            msg = (
                "an append needs a transaction that sees all tenants: seriatim.tenant is set in it"
            )
            raise InvalidArgument(msg, details={"argument": "connection"})
        facts = Facts(Contexts(self._requests, self._seen), head)
        yield from self._find_heads(facts)
        yield from self._find_known(facts)
        yield from self._find_contexts(facts.contexts, head)
        rules = self._rules
        if rules_version != rules.version:
            rules = rules_of((yield Run(self._sql["declarations"])))
        spent = facts.contexts.spent
        answers = decide_group(self._requests, facts, rules, head, recorded_us, spent)
        placed = [answer for answer in answers if isinstance(answer, Placed)]
        if placed:
            held_ms = (time.monotonic() - locked_at) * 1000
            if self._settings and held_ms > statement_ms(self._settings):
                raise held_too_long(self._settings)
            yield from self._insert(placed, head, recorded_us)
        return finish(answers, recorded_us)

    def _lock(self) -> Run:
        if self._settings is None:
            return Run(self._sql["lock"], (self._hello.lock_key,))
        longest = str(statement_ms(self._settings))
        return Run(self._sql["lock_in_time"], (self._hello.lock_key, longest))

    def _events(self) -> Iterable[Prepared]:
        return (event for request in self._requests for event in request.events)

    def _find_heads(self, facts: Facts) -> Generator[Run, list[tuple[Any, ...]], None]:
        keys = {event.stream_key for event in self._events() if event.stream_key is not None}
        for request in self._requests:
            for condition in request.conditions:
                if isinstance(condition, ExpectedSeq):
                    keys.add(stream_key(request.tenant_id, *condition.stream))
        if not keys:
            return
        ordered = sorted(keys)
        rows = yield Run(self._sql["stream_heads"], (uuid_array(ordered),))
        for key, (seq, event_type) in zip(ordered, rows, strict=True):
            if seq is not None:
                facts.heads[key] = Head(seq, event_type)

    def _find_known(self, facts: Facts) -> Generator[Run, list[tuple[Any, ...]], None]:
        yield from self._find_ids(facts)
        keys = {
            event.idempotency_index
            for event in self._events()
            if event.idempotency_index is not None
        }
        if keys:
            for row in (yield Run(self._sql["known_keys"], (uuid_array(keys),))):
                facts.keys[row[-1].bytes] = record_of(row)
        commands = {r.command.command_key for r in self._requests if r.command is not None}
        if commands:
            rows = yield Run(self._sql["known_commands"], (uuid_array(commands),))
            for key, request_hash, response, first, last in rows:
                facts.commands[key.bytes] = StoredCommand(request_hash, response, first, last)
                found = yield Run(self._sql["between"], (first, last))
                facts.ranges[first, last] = tuple(map(record_of, found))

    def _find_ids(self, facts: Facts) -> Generator[Run, list[tuple[Any, ...]], None]:
        """Look ids up by their keys; where another id is stored, by the next key of theirs."""
        sought = {
            (event.tenant_id, event.event_id): event_keys(event.event_id)
            for event in self._events()
            if event.given_id
        }
        while sought:
            keys = {named: key for named, rest in sought.items() if (key := next(rest, None))}
            rows = yield Run(self._sql["known_ids"], (uuid_array(set(keys.values())),))
            for row in rows:
                record = record_of(row)
                facts.ids[record.tenant_id, row[-1].bytes] = record
            sought = {
                (tenant_id, event_id): sought[tenant_id, event_id]
                for (tenant_id, event_id), key in keys.items()
                if (found := facts.ids.get((tenant_id, key))) and found.event_id != event_id
            }

    def _find_contexts(
        self, contexts: Contexts, head: int
    ) -> Generator[Run, list[tuple[Any, ...]], None]:
        """Take into account what came since contexts were evaluated outside the lock.

        One statement reads it for all contexts, whose filters are then matched here: its plan and
        its cost do not depend on what the conditions look for.
        """
        behind = contexts.behind(head)
        if not behind:
            return
        values = {
            "tenants": list(behind),
            "afters": list(behind.values()),
            "events": NEWEST_EVENTS_MAX,
            "bytes": NEWEST_BYTES_MAX,
        }
        rows = yield Run(self._sql["newest_of_tenants"], values)
        for number, tenant_id in enumerate(behind, start=1):
            mine = sorted((row for row in rows if row[-1] == number), key=_position, reverse=True)
            complete = not mine or (len(mine) == mine[0][-2] < NEWEST_EVENTS_MAX)
            contexts.add_newest(tenant_id, map(record_of, mine), complete=complete, head=head)

    def _insert(
        self, placed: list[Placed], head: int, recorded_us: int
    ) -> Generator[Run, list[tuple[Any, ...]], None]:
        rows = [
            composite(event, offset, seq, 0)
            for place in placed
            for offset, (event, seq) in enumerate(
                zip(place.request.events, place.stream_seqs, strict=True)
            )
        ]
        packed = array_of(self._hello.row_array, self._hello.row_type, rows)
        numbered = {"head": head, "recorded_us": recorded_us, "rows": packed}
        yield Run(self._sql["insert_events"], numbered)
        for place in placed:
            command = place.request.command
            if command is not None:
                last = place.first_position + len(place.request.events) - 1
                values = (
                    command.command_key.hex(),
                    place.request.tenant_id,
                    command.request_hash,
                    command.response,
                    place.first_position,
                    last,
                )
                yield Run(self._sql["insert_command"], values)


def drive(connection: psycopg.Connection[Any], steps: Steps) -> list[Outcome]:
    """Take the steps on a sync connection, which may be the caller's, set up in its own way."""
    rows: list[tuple[Any, ...]] = []
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.adapters.register_dumper(RowArray, RowArrayDumper)
        try:
            step = next(steps)
            while True:
                cursor.execute(step.text, step.parameters, binary=True)
                rows = cursor.fetchall() if cursor.description else []
                step = steps.send(rows)
        except StopIteration as end:
            outcomes: list[Outcome] = end.value
            return outcomes


async def drive_async(connection: psycopg.AsyncConnection[Any], steps: Steps) -> list[Outcome]:
    """Take the same steps on an async connection."""
    rows: list[tuple[Any, ...]] = []
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        cursor.adapters.register_dumper(RowArray, RowArrayDumper)
        try:
            step = next(steps)
            while True:
                await cursor.execute(step.text, step.parameters, binary=True)
                rows = await cursor.fetchall() if cursor.description else []
                step = steps.send(rows)
        except StopIteration as end:
            outcomes: list[Outcome] = end.value
            return outcomes
