"""The SQLite store returns the same results as the memory store."""

import itertools
import random
import time
from typing import Any

import msgspec
import pytest

from seriatim.core.decide import StaleRules
from seriatim.core.errors import SeriatimError
from seriatim.core.event import AppendResult, NewEvent
from seriatim.core.kinds import EventType, StreamKind
from seriatim.core.query import MATCH_ALL, Filter, Query
from seriatim.core.request import AppendRequest, Command, ExpectedContext, ExpectedSeq
from seriatim.profiles.facts import FACTS_PROFILE
from seriatim.store.memory import MemoryStore
from seriatim.store.port import EventTypeRange, Outcome, ReadSpec, Store
from seriatim.store.sqlite import index_scans, queries
from seriatim.store.sqlite.store import SqliteStore
from tests.integration.sqlite.store_appender import StoreAppender, read_everything

TENANTS = ("default", "öther")
STREAMS = (None, ("order", "1"), ("order", "2"), ("gate", "a"), ("Order", "1"))
TYPES = ("placed", "paid", "opened", "shut", "😀")
TAGS = ("red", "blue", "größe:ü", "seat 12A")
PAYLOADS: tuple[Any, ...] = (
    {},
    {"seat": "12A", "n": 1},
    {"seat": "12A", "n": 1.0, "deep": {"list": [1, {"x": None}, "12A"]}},
    {"seat": None, "n": True, "ключ": 'say "hi"\n'},
    {"n": 10**30, "list": [[], {}]},
    {"n": 1e23, "list": ["12A", False]},
    "12A",
    ["12A", 1],
    1,
    None,
)
PREDICATES: tuple[Any, ...] = (
    *PAYLOADS,
    [],
    {"seat": "12A"},
    {"n": 1},
    {"n": 1.0},
    {"n": True},
    {"n": 10**23},
    {"deep": {"list": [{"x": None}]}},
    {"list": ["12A"]},
    {"list": []},
    {"ключ": 'say "hi"\n'},
    {"absent": None},
)


ANY_EVENT = msgspec.structs.replace(FACTS_PROFILE, log_sets_time=False)
START_US = 1_700_000_000_000_000


class Clock:
    """A clock that advances with every group of appends."""

    now_us = START_US

    def time_ns(self) -> int:
        """Return the time as time.time_ns does."""
        return self.now_us * 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """One clock for the memory store and the SQLite store."""
    made = Clock()
    monkeypatch.setattr(time, "time_ns", made.time_ns)
    return made


@pytest.fixture
def model_and_store(store: SqliteStore) -> tuple[MemoryStore, SqliteStore]:
    """The memory store and the SQLite store."""
    return MemoryStore(), store


def visible_parts(outcome: Outcome) -> object:
    """Return the parts of an outcome that a caller can see."""
    if isinstance(outcome, AppendResult):
        return outcome.records, outcome.replayed, outcome.response, outcome.count
    if isinstance(outcome, SeriatimError):
        return outcome.as_dict()
    assert isinstance(outcome, StaleRules)
    return "stale rules"


class Caller:
    """Makes random appends, often repeated or invalid."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._scribe = StoreAppender()

    def some(self, choices: Any, most: int) -> list[Any]:
        """Choose up to `most` values."""
        return [self._dice.choice(choices) for _ in range(self._dice.randint(0, most))]

    def event(self, *, keyed: bool) -> NewEvent:
        """Make an event with few possible ids, keys and payloads."""
        dice = self._dice
        return NewEvent(
            dice.choice(TYPES),
            dice.choice(PAYLOADS),
            stream=dice.choice(STREAMS),
            event_id=f"id-{dice.randint(0, 60)}" if dice.random() < 0.2 else None,
            event_version=dice.choice((1, 1, 2)),
            occurred_at=dice.choice(
                (None, "2023-11-14T22:13:20.000020Z", "2023-11-15T01:13:20+03:00")
            ),
            producer_id=dice.choice((None, "p")),
            actor_type=dice.choice((None, "user")),
            **self.ids(),
            idempotency_key=f"key-{dice.randint(0, 60)}" if keyed else None,
            app_id=dice.choice((None, "app")),
            env_id=dice.choice((None, "env", "Env")),
            metadata=dice.choice(({}, {"label": "ü", "a": ""})),
            tags=tuple(self.some(TAGS, 3)),
        )

    def request(self, store: Store) -> AppendRequest | None:
        """Make an append, if what came out can be one."""
        dice = self._dice
        keyed = dice.random() < 0.3
        events = [self.event(keyed=keyed) for _ in range(dice.choice((1, 1, 1, 2, 3)))]
        command = Command(
            actor="a", endpoint="/x", key=f"c-{dice.randint(0, 9)}", response={"r": 1}
        )
        try:
            return self._scribe.request(
                store,
                events,
                dice.choice((None, None, self.expected_seq(), self.expected_context(store))),
                command=command if dice.random() < 0.1 else None,
                tenant_id=dice.choice(TENANTS),
                profile_rules=ANY_EVENT,
            )
        except SeriatimError:
            return None

    def expected_seq(self) -> ExpectedSeq:
        """Make a condition on a random number of a random stream."""
        stream = self._dice.choice(STREAMS[1:])
        assert stream is not None
        return ExpectedSeq(stream, self._dice.choice((None, 0, 1, 2, 3, 4, 5)))

    def expected_context(self, store: Store) -> ExpectedContext:
        """Make a condition on a context with its version or another one."""
        query = self.query()
        version = store.context_version(self._dice.choice(TENANTS), query, store.head())
        return ExpectedContext(query, self._dice.choice((version, version, None, 1)))

    def query(self) -> Query:
        """Make a random query."""
        filters = [
            Filter(
                types=self._side(TYPES),
                payload=self._side(PREDICATES),
                tags=self._side(TAGS),
                streams=self._side(STREAMS[1:]),
                **self.ids(),
            )
            for _ in range(self._dice.choice((0, 1, 1, 1, 2, 3)))
        ]
        return Query(self._dice.choice((None, filters, filters, filters, filters)))

    def ids(self) -> dict[str, Any]:
        """Choose some ids of events or filters; most have none."""
        names = ("correlation_id", "causation_id", "actor_id")
        return {name: self._dice.choice(("x", "y")) for name in names if self._dice.random() < 0.25}

    def _side(self, choices: Any) -> list[Any] | None:
        return self.some(choices, 3) if self._dice.random() < 0.35 else None

    def spec(self, head: int) -> ReadSpec:
        """Make a random read."""
        dice = self._dice
        windows = (None, None, None, START_US, START_US + 10, START_US + 30)
        return ReadSpec(
            tenant_id=dice.choice((None, *TENANTS, *TENANTS)),
            limit=dice.choice((1, 3, 1000)),
            after=dice.choice((0, dice.randint(0, head + 1))),
            until=dice.choice((None, dice.randint(0, head + 1))),
            scope=dice.choice(("log", "log", "traces", "aggregates")),
            stream=dice.choice((None, *STREAMS)),
            after_seq=dice.choice((None, None, 0, 2)),
            types=dice.choice((None, None, tuple(self.some(TYPES, 3)))),
            app_id=dice.choice((None, None, "app")),
            env_id=dice.choice((None, None, "env")),
            occurred_after_us=dice.choice(windows),
            occurred_until_us=dice.choice(windows),
            recorded_after_us=dice.choice(windows),
            recorded_until_us=dice.choice(windows),
        )


def append_to_both(caller: Caller, clock: Clock, model: Store, store: Store, groups: int) -> None:
    """Append the same groups to both stores and compare every outcome."""
    for _ in range(groups):
        clock.now_us += 1
        requests = [caller.request(model) for _ in range(caller._dice.choice((1, 1, 2, 8)))]
        group = [request for request in requests if request is not None]
        if not group:
            continue
        expected = [visible_parts(outcome) for outcome in model.append(group)]
        assert expected == [visible_parts(outcome) for outcome in store.append(group)]


@pytest.mark.parametrize("seed", range(6))
def test_appends_and_reads_equal_the_model(
    model_and_store: tuple[Store, Store], clock: Clock, seed: int
) -> None:
    """F1: random appends, reads, queries and listings equal those of the memory store."""
    model, store = model_and_store
    dice = random.Random(seed)
    caller = Caller(dice)
    for one in model_and_store:
        one.declare(
            StreamKind(name="gate", first_seq=0, opening_type="opened", closing_types=("shut",))
        )
        one.declare(EventType(event_type="paid", event_version=1))
        one.declare(EventType(event_type="paid", event_version=2))
    append_to_both(caller, clock, model, store, 60)
    assert read_everything(model) == read_everything(store)
    head = model.head()
    assert head > 20
    assert head == store.head()
    for _ in range(150):
        spec = caller.spec(head)
        assert model.read(spec) == store.read(spec), spec
        query, tenant = caller.query(), dice.choice(TENANTS)
        span = dice.randint(0, head), dice.randint(0, head)
        assert model.context_version(tenant, query, span[1]) == store.context_version(
            tenant, query, span[1]
        ), query
        asked = (tenant, query, *span, dice.choice((1, 2, 1000)))
        assert model.select(*asked) == store.select(*asked), query
    compare_listings(model, store)


def compare_listings(model: Store, store: Store) -> None:
    """Compare single look-ups and the listing of streams."""
    for tenant in TENANTS:
        for stream in STREAMS[1:]:
            assert stream is not None
            assert model.last_of_stream(tenant, stream) == store.last_of_stream(tenant, stream)
        for kind, after, limit in itertools.product((None, "order"), (0, 5), (1, 10)):
            asked = (tenant, kind, after, limit)
            assert model.streams(*asked) == store.streams(*asked)
        for prefix, above, most in itertools.product(("", "o", "seat."), ("", "p"), (1, 10)):
            names = EventTypeRange(prefix, above, most)
            assert model.event_types(tenant, names) == store.event_types(tenant, names)
    for record in read_everything(model):
        assert store.event(record.tenant_id, record.event_id) == record
        assert store.event("elsewhere", record.event_id) is None
        assert store.event_id_at(record.position) == record.event_id
    assert store.event_id_at(model.head() + 1) is None


def test_too_many_index_scans_fall_back_to_the_matcher(
    model_and_store: tuple[MemoryStore, SqliteStore], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: a query with too many index scans is evaluated by the matcher, with equal results."""
    model, store = model_and_store
    caller = Caller(random.Random(7))
    append_to_both(caller, clock, model, store, 20)
    for module in (queries, index_scans):
        monkeypatch.setattr(module, "INDEX_SCANS_MAX", 0)
    for _ in range(50):
        query = caller.query()
        asked = ("default", query, 3, model.head() - 2, 5)
        found = store.select(*asked)
        assert model.select(*asked) == found
        read = store.count_events_read(*asked)
        assert len(found) <= read <= model.head()
        assert len(found) <= model.count_events_read(*asked) <= model.head()
        version = model.context_version("default", query, model.head())
        assert version == store.context_version("default", query, model.head())


def test_a_long_stream_is_paged_by_position(store: SqliteStore, appender: StoreAppender) -> None:
    """E1: a page of a stream starts after any position."""
    for number in range(60):
        stream = ("s", "long") if number % 3 else None
        appender.append(store, NewEvent("t", {"n": number}, stream=stream))
    kept = [record for record in read_everything(store) if record.stream is not None]
    for after, until in itertools.product(range(0, 63, 4), range(0, 63, 7)):
        spec = ReadSpec(
            tenant_id="default", limit=100, stream=("s", "long"), after=after, until=until
        )
        wanted = [record for record in kept if after < record.position <= until]
        assert store.read(spec) == wanted


def test_a_context_includes_appends_before_the_lock(
    store: SqliteStore, appender: StoreAppender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B8: an append between the evaluation of a context and the lock fails the condition."""
    taken = Query([Filter(types=["taken"])])
    request = appender.request(store, [NewEvent("taken")], ExpectedContext(taken, None))
    rival = SqliteStore(store._file.path)
    begin = store._writer._retry_while_busy

    def begin_late(*act: Any) -> Any:
        appender.append(rival, NewEvent("taken"))
        return begin(*act)

    monkeypatch.setattr(store._writer, "_retry_while_busy", begin_late)
    (outcome,) = store.append([request])
    assert isinstance(outcome, SeriatimError)
    assert outcome.details == {"expected": None, "actual": 1}
    monkeypatch.setattr(store._writer, "_retry_while_busy", begin)
    assert store.context_version("default", MATCH_ALL, 10) == 1
    rival.close()
