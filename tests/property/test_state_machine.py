"""Random sequences of operations: SQLite and Postgres must equal the memory backend."""

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from seriatim import (
    AppendResult,
    EventRecord,
    ExpectedContext,
    ExpectedSeq,
    Log,
    NewEvent,
    Query,
    RetryPolicy,
    SeriatimError,
)
from seriatim.core.decide import StaleRules
from seriatim.core.profile_rules import LOG_PROFILE, ProfileRules
from seriatim.core.request import AppendRequest
from seriatim.log.batches import Page
from seriatim.log.cursors import make_cursor
from seriatim.log.query_execution import QueryResult
from seriatim.profiles.aggregate_values import AGGREGATES_PROFILE
from seriatim.profiles.facts import FACTS_PROFILE
from seriatim.profiles.trace_rules import TRACES_PROFILE
from seriatim.store.memory import MemoryStore
from seriatim.store.port import BatchAttempt, Cursor, Lease, SkippedBatch
from seriatim.testing.factories import TRACE_PAYLOADS
from tests.property import strategies
from tests.property.logs import EXAMPLES, SUBJECTS, Opener, open_memory, opener

PROFILES: list[ProfileRules] = [
    LOG_PROFILE,
    LOG_PROFILE,
    LOG_PROFILE,
    FACTS_PROFILE,
    AGGREGATES_PROFILE,
    TRACES_PROFILE,
]

CONTENTS = ("_records", "_streams", "_keys", "_ids", "_commands")
"""The fields of the memory store that an append changes."""

Draft = tuple[str, ProfileRules, list[NewEvent], Any, str | None, Any]


def plain(value: Any) -> Any:
    """Return what must be equal on every backend: no clocks, and no ids made by the log."""
    if isinstance(value, EventRecord):
        return _plain_record(value)
    if isinstance(value, AppendResult):
        shown = (value.first_position, value.last_position, value.count, value.replayed)
        return (*shown, plain(value.response), value.id_mismatch, plain(value.records))
    if isinstance(value, SeriatimError):
        return value.code, value.details, value.retryable
    if isinstance(value, StaleRules):
        return "stale rules"
    if isinstance(value, Cursor):
        cleared = {"log_id": "", "epoch": 0, "last_event_id": "", "updated_at": ""}
        return msgspec.structs.replace(value, **cleared, attempt=plain(value.attempt))
    if isinstance(value, BatchAttempt):
        return msgspec.structs.replace(value, parked_at="now" if value.parked_at else None)
    if isinstance(value, SkippedBatch):
        return msgspec.structs.replace(value, skipped_at="")
    if isinstance(value, Page | QueryResult):
        return tuple(plain(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def _plain_record(record: EventRecord) -> dict[str, Any]:
    shown = record.as_dict() | {"recorded_at": "", "text": record.payload_json}
    if record.occurred_at == record.recorded_at:
        shown["occurred_at"] = ""
    if record.event_id.count("-") == 4:
        shown["event_id"] = "made by the log"
    return shown


class Machine(RuleBasedStateMachine):
    """Applies every operation to two logs and compares the results."""

    drafts: Bundle[Draft] = Bundle("drafts")
    leases: Bundle[tuple[Lease, Lease]] = Bundle("leases")

    def __init__(self, opened: Opener) -> None:
        super().__init__()
        self.oracle, self.close_oracle = open_memory()
        self.subject, self.close_subject = opened()
        # A database that was cloned from a template has a raised epoch.
        self.epochs = [log.identity().epoch for log in (self.oracle, self.subject)]

    def teardown(self) -> None:
        """Compare the remaining data, then close both logs."""
        try:
            for tenant in strategies.TENANTS:
                self.both(tenant, lambda log: list(log.read()))
                self.both(tenant, Log.streams)
                for purpose in ("subscription", "projection"):
                    self.both(tenant, partial(_cursors, purpose))
        finally:
            self.close_oracle()
            self.close_subject()

    def both(self, tenant: str, act: Callable[[Log], Any]) -> tuple[Any, Any]:
        """Apply an operation to both logs and compare the results."""
        expected = outcome_of(act, self.oracle.for_tenant(tenant))
        found = outcome_of(act, self.subject.for_tenant(tenant))
        assert plain(found) == plain(expected)
        return expected, found

    # -- append

    @initialize(
        batches=st.lists(st.lists(strategies.plain_events(), min_size=1, max_size=3), max_size=4),
        declared=st.lists(st.sampled_from(strategies.DECLARATIONS), max_size=4),
    )
    def begin(self, batches: list[list[NewEvent]], declared: list[Any]) -> None:
        """Start with some events and declarations."""
        for events in batches:
            self._append(("default", LOG_PROFILE, events, None, None, None))
        for one in declared:
            self.declare(one)

    @rule(
        target=drafts,
        tenant=strategies.tenants,
        events=st.lists(strategies.plain_events(), min_size=1),
    )
    def append_valid(self, tenant: str, events: list[NewEvent]) -> Draft:
        """Append valid events."""
        return self._append((tenant, LOG_PROFILE, events[:4], None, None, None))

    @rule(
        target=drafts,
        tenant=strategies.tenants,
        profile=st.sampled_from(PROFILES),
        events=strategies.batches(),
        key=st.none() | st.none() | st.none() | st.sampled_from(["w-1", "w-2"]),
        command=strategies.commands,
    )
    def append(
        self,
        tenant: str,
        profile: ProfileRules,
        events: list[NewEvent],
        key: str | None,
        command: Any,
    ) -> Draft:
        """Append without a condition, through any profile."""
        if profile is AGGREGATES_PROFILE:
            fields = strategies.AGGREGATE_FIELDS
            events = [msgspec.structs.replace(event, **fields) for event in events]
        return self._append((tenant, profile, events, None, key, command))

    @rule(
        target=drafts,
        tenant=strategies.tenants,
        events=strategies.batches(),
        stream=strategies.streams,
        query=strategies.queries,
        which=st.sampled_from(["seq", "context", "context", "after", "after", "both"]),
        off=st.sampled_from([0, 0, 0, 0, 1, -1]),
    )
    def append_conditionally(
        self, tenant: str, events: list[NewEvent], stream: Any, query: Query, which: str, off: int
    ) -> Draft:
        """Append under a condition that mostly holds."""
        view = self.oracle.for_tenant(tenant)
        last = view.last_event(stream)
        seq = None if last is None else max(0, (last.stream_seq or 0) + off)
        version = view.query(query).context_version
        version = version if version is None or not off else max(1, version + off)
        conditions = [ExpectedSeq(stream, seq), ExpectedContext(query, version)]
        after = ExpectedContext(query, after=max(0, (version or view.head()) + off))
        chosen = {
            "seq": conditions[:1],
            "context": conditions[1:],
            "after": [after],
            "both": conditions,
        }[which]
        return self._append((tenant, LOG_PROFILE, events, chosen, None, None))

    @rule(
        target=drafts,
        tenant=strategies.tenants,
        stream=strategies.streams,
        closing=st.sampled_from([False, False, True]),
        data=st.data(),
    )
    def append_next(self, tenant: str, stream: tuple[str, str], closing: bool, data: Any) -> Draft:
        """Append a valid next event of a stream."""
        return self._next(tenant, stream, closing, data)

    @rule(
        tenant=strategies.tenants,
        stream=st.sampled_from([("case", "1"), ("trace", "t-1")]),
        data=st.data(),
    )
    def close(self, tenant: str, stream: tuple[str, str], data: Any) -> None:
        """Append to a stream, close it and append again."""
        for closing in (False, True, False):
            self._next(tenant, stream, closing, data)

    def _next(self, tenant: str, stream: tuple[str, str], closing: bool, data: Any) -> Draft:
        """Append an event that a stream accepts: the next number, opening first, maybe closing."""
        last = self.oracle.for_tenant(tenant).last_event(stream)
        kind = self.oracle.store.rules().kind_of(stream[0])
        number = kind.first_seq if last is None else (last.stream_seq or 0) + 1
        changes: dict[str, Any] = {"stream_seq": number}
        if last is None and kind.opening_type is not None:
            changes["event_type"] = kind.opening_type
        elif closing and kind.closing_types:
            changes["event_type"] = kind.closing_types[0]
        event = msgspec.structs.replace(data.draw(strategies.new_events(stream=stream)), **changes)
        if stream[0] == "trace":
            name = f"{stream[1]}/{number}"
            payload = dict(TRACE_PAYLOADS[event.event_type])
            unique = {"payload": payload, "event_id": name, "idempotency_key": name}
            event = msgspec.structs.replace(event, **unique)
        condition = None
        if kind.expected_seq_required:
            condition = ExpectedSeq(stream, None if last is None else last.stream_seq)
        return self._append((tenant, LOG_PROFILE, [event], condition, None, None))

    @rule(draft=drafts)
    def retry(self, draft: Draft) -> None:
        """Repeat an append exactly."""
        self._append(draft)

    @rule(draft=drafts, change=st.sampled_from(strategies.MUTATIONS), data=st.data())
    def retry_changed(self, draft: Draft, change: dict[str, Any], data: Any) -> None:
        """Repeat an append with one event changed, moved or removed."""
        tenant, profile, events, *rest = draft
        index = data.draw(st.integers(0, len(events) - 1))
        changed = list(events)
        changed[index] = msgspec.structs.replace(events[index], **change)
        form = data.draw(st.sampled_from(["changed", "reversed", "shorter", "longer"]))
        if form == "reversed":
            changed.reverse()
        elif form == "shorter" and len(changed) > 1:
            changed.pop()
        elif form == "longer":
            changed.append(NewEvent("a"))
        self._append((tenant, profile, changed, *rest))

    @rule(group=st.lists(drafts, min_size=2, max_size=4))
    def append_group(self, group: list[Draft]) -> None:
        """Commit several appends as a group: the result must equal that of some order."""
        requests, expected = requests_of(self.subject, group), requests_of(self.oracle, group)
        found = plain(self.subject.store.append(requests)) if requests else []
        assert some_order_gives(self.oracle, expected, found), found

    def _append(self, draft: Draft) -> Draft:
        self.both(draft[0], lambda log: log.append_draft(draft_of(log, draft)))
        return draft

    # -- declare

    @rule(one=st.sampled_from(strategies.DECLARATIONS))
    def declare(self, one: Any) -> None:
        """Declare a kind or a type, again or with other rules."""
        self.both("default", lambda log: log.declare(one))

    # -- read

    @rule(
        tenant=strategies.tenants, filters=strategies.reads(), limit=st.none() | st.integers(1, 4)
    )
    def page(self, tenant: str, filters: dict[str, Any], limit: int | None) -> None:
        """Read a page with any filters."""
        self.both(tenant, lambda log: log.page(limit=limit, **filters))

    @rule(tenant=strategies.tenants, filters=strategies.reads(), size=st.integers(1, 4))
    def batches(self, tenant: str, filters: dict[str, Any], size: int) -> None:
        """Read in batches with any filters."""
        self.both(tenant, lambda log: list(log.read_batches(batch_size=size, **filters)))

    @rule(
        tenant=strategies.tenants,
        stream=strategies.streams,
        since=strategies.seqs,
        down=st.booleans(),
    )
    def stream(self, tenant: str, stream: tuple[str, str], since: int | None, down: bool) -> None:
        """Read a stream, its last event, and the list of streams."""
        self.both(tenant, lambda log: list(log.read_stream(stream, since=since, newest_first=down)))
        self.both(tenant, lambda log: log.last_event(stream))
        self.both(tenant, lambda log: log.streams(stream[0], after=since or 0, limit=2))
        self.both(tenant, lambda log: log.event_types(limit=1 + (since or 0) % 3))

    @rule(
        tenant=strategies.tenants,
        event_id=st.sampled_from(["e-1", "e-2", "e-3", "t-1-0-TraceStarted"]),
    )
    def event(self, tenant: str, event_id: str) -> None:
        """Look one event up by its id."""
        self.both(tenant, lambda log: log.event(event_id))

    @rule(
        tenant=strategies.tenants,
        query=strategies.queries,
        limit=st.none() | st.integers(1, 3),
        down=st.booleans(),
    )
    def query(self, tenant: str, query: Query, limit: int | None, down: bool) -> None:
        """Query, whole or page by page, in both directions."""
        first, _ = self.both(tenant, lambda log: log.query(query, limit=limit, newest_first=down))
        if first.more:
            last, head = first.last_returned_position, first.head
            on: dict[str, Any] = {"until": last - 1} if down else {"after": last}
            self.both(
                tenant,
                lambda log: log.query(query, limit=limit, head=head, newest_first=down, **on),
            )

    # -- consumers

    @rule(
        tenant=strategies.tenants,
        name=st.sampled_from(["p-1", "p-2"]),
        position=strategies.positions,
        text=st.sampled_from(["", "", "q"]),
        reset=st.booleans(),
    )
    def put_cursor(self, tenant: str, name: str, position: int, text: str, reset: bool) -> None:
        """Move a projection's cursor, forwards or backwards, within the log or after its head."""

        def act(log: Log) -> None:
            cursor = make_cursor(log.store, log.tenant_id, "projection", name, position, text)
            log.store.put_cursor(cursor, lease=None, reset=reset)

        self.both(tenant, act)
        self.both(tenant, lambda log: log.store.cursor(log.tenant_id, "projection", name))

    @rule(
        tenant=strategies.tenants,
        name=st.sampled_from(["s-1", "s-2"]),
        query=st.sampled_from([Query(), Query([])]) | strategies.queries,
        start=st.sampled_from([0, 0, 3, "head"]),
        reset=st.none() | st.none() | strategies.positions,
    )
    def subscribe(
        self, tenant: str, name: str, query: Query, start: Any, reset: int | None
    ) -> None:
        """Run a durable subscription to the head, perhaps after a reset."""

        def act(log: Log) -> list[Any]:
            subscription = log.subscribe(name, query, start=start, idle_timeout=0.0)
            if reset is not None:
                subscription.reset(reset)
            batches = list(subscription)
            return [batches, subscription.position]

        self.both(tenant, act)

    @rule(
        tenant=strategies.tenants,
        name=st.sampled_from(["s-1", "s-2"]),
        attempts=st.integers(1, 3),
        on_poison=st.sampled_from(["park", "skip", "stop"]),
        refused=st.integers(0, 3),
        stop_after=st.integers(1, 4),
    )
    def consume(
        self, tenant: str, name: str, attempts: int, on_poison: Any, refused: int, stop_after: int
    ) -> None:
        """Run a subscription whose handler refuses some batches, and stop it after some calls."""

        def act(log: Log) -> list[Any]:
            policy = RetryPolicy(attempts=attempts, base_s=0.0)
            subscription = log.subscribe(name, retry=policy, on_poison=on_poison, idle_timeout=0.0)
            calls: list[int] = []

            def handler(batch: list[EventRecord]) -> None:
                calls.append(batch[0].position)
                if len(calls) == stop_after:
                    subscription.stop()
                if batch[0].position % 4 == refused:
                    raise ValueError("refused")

            subscription.run(handler)
            return calls

        self.both(tenant, act)
        self.both(tenant, partial(_describe_subscription, name))

    @rule(
        tenant=strategies.tenants,
        name=st.sampled_from(["s-1", "s-2"]),
        act=st.sampled_from(["retry", "skip", "skip elsewhere", "reset"]),
        position=strategies.positions,
    )
    def operate_subscription(self, tenant: str, name: str, act: str, position: int) -> None:
        """Retry, skip or reset a subscription, in any state."""

        def operate(log: Log) -> bool:
            if act == "retry":
                return log.subscriptions.retry(name)
            if act == "reset":
                return log.subscriptions.reset(name, position)
            attempt = log.subscriptions.get(name).attempt
            at = position if attempt is None or act != "skip" else attempt.first_position
            return log.subscriptions.skip(name, at, reason="refused")

        self.both(tenant, operate)
        self.both(tenant, partial(_describe_subscription, name))

    @rule(
        target=leases,
        name=st.sampled_from(["l-1", "l-2"]),
        owner=st.sampled_from(["me", "you"]),
    )
    def claim(self, name: str, owner: str) -> Any:
        """Claim a lease; remember the pair, also an empty one."""
        pair = tuple(
            log.store.claim_lease("default", name, owner, 3600.0)
            for log in (self.oracle, self.subject)
        )
        assert (pair[0] is None) == (pair[1] is None)
        return pair

    @rule(
        pair=leases,
        act=st.sampled_from(["renew", "release", "move"]),
        position=strategies.positions,
    )
    def use_lease(self, pair: tuple[Any, Any], act: str, position: int) -> None:
        """Renew or release a lease, or move a cursor with it; it may be lost."""
        outcomes: list[Any] = []
        for log, lease in zip((self.oracle, self.subject), pair, strict=True):
            if lease is None:
                return
            if act == "renew":
                outcomes.append(log.store.renew_lease(lease, 3600.0))
            elif act == "release":
                log.store.release_lease(lease)
            else:
                outcomes.append(plain(outcome_of(partial(_move, lease, position), log)))
        assert outcomes[1:] == outcomes[:-1]

    @rule(act=st.sampled_from(["nothing", "nothing", "purge", "raise"]))
    def operate(self, act: str) -> None:
        """Purge commands or raise the epoch."""
        if act == "purge":
            self.both("default", lambda log: log.store.purge_commands(-3600))
        if act == "raise":
            for index, log in enumerate((self.oracle, self.subject)):
                raised = log.store.raise_epoch().epoch
                assert raised == log.identity().epoch == self.epochs[index] + 1
                self.epochs[index] = raised

    @invariant()
    def heads_are_equal(self) -> None:
        """B3: both logs have the same head."""
        assert self.subject.head() == self.oracle.head()


def _describe_subscription(name: str, log: Log) -> list[Any]:
    status = log.subscriptions.get(name)
    shown = status.status, status.position, status.failures, status.last_error, status.skipped
    return [shown, status.lag_events, status.attempt, log.subscriptions.skipped(name)]


def _cursors(purpose: str, log: Log) -> list[Cursor]:
    return log.store.cursors(log.tenant_id, purpose)


def _move(lease: Lease, position: int, log: Log) -> None:
    cursor = make_cursor(log.store, "default", "projection", "p-3", position)
    log.store.put_cursor(cursor, lease=lease, reset=False)


def some_order_gives(oracle: Log, requests: list[AppendRequest], wanted: Any) -> bool:
    """Commit a group to the reference in the first order that gives the wanted outcomes."""
    store = oracle.store
    assert isinstance(store, MemoryStore)
    before = copy.deepcopy({name: getattr(store, name) for name in CONTENTS})
    for order in itertools.permutations(range(len(requests))):
        for name, kept in before.items():
            setattr(store, name, copy.deepcopy(kept))
        outcomes = store.append([requests[index] for index in order])
        if [plain(outcomes[order.index(index)]) for index in range(len(requests))] == wanted:
            return True
    return False


def requests_of(log: Log, group: list[Draft]) -> list[AppendRequest]:
    """Return the prepared requests of a group, without refused ones."""
    made = [outcome_of(partial(prepared, draft), log) for draft in group]
    return [one for one in made if not isinstance(one, SeriatimError)]


def prepared(draft: Draft, log: Log) -> AppendRequest:
    """Return the prepared request of an append."""
    return log.appender.prepare_request(draft_of(log, draft))


def draft_of(log: Log, draft: Draft) -> Any:
    """Return the draft of an append on a log."""
    tenant, profile, events, condition, key, command = draft
    return log.for_tenant(tenant).draft(profile, events, condition, key, command)


def outcome_of(act: Callable[[Log], Any], log: Log) -> Any:
    """Return the result or the error of an operation."""
    try:
        return act(log)
    except SeriatimError as error:
        return error


@pytest.mark.timeout(900)  # a failure is shrunk for up to five minutes
@pytest.mark.parametrize("backend", SUBJECTS)
def test_every_backend_equals_the_model(request: pytest.FixtureRequest, backend: str) -> None:
    """F1: every backend equals the memory backend after random operations."""
    opened = opener(request, backend)
    run_state_machine_as_test(
        lambda: Machine(opened),  # type: ignore[arg-type] # a factory will do
        settings=settings(
            max_examples=max(1, EXAMPLES // 4),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
