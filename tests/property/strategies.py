"""Hypothesis strategies with small value pools, so that operations often interact."""

from typing import Any

from hypothesis import strategies as st

from seriatim import (
    Command,
    EventType,
    Filter,
    NewEvent,
    PayloadIndex,
    Query,
    StreamKind,
)
from seriatim.core.kinds import Declaration
from seriatim.testing.factories import TRACE_PAYLOADS

TENANTS = ["default", "other"]
tenants = st.sampled_from(["default", "default", "default", "other"])
STREAMS = [
    *(("s", "1"), ("s", "2"), ("doc", "1"), ("zero", "1"), ("mine", "1"), ("closed", "1")),
    *(("case", "1"), ("case", "1"), ("trace", "t-1"), ("trace", "t-1")),
]
TYPES = ["a", "b", "opened", "won", "paid", "a.b", "a.b.c", "a*"]
NAMED_TYPES = [*TYPES[:-1], "a\\*", "a.*", "a.b.*", "*", "TraceStarted"]
RELATED = ["r-1", "r-2"]
PAYLOADS: list[dict[str, Any]] = [
    *({}, {"n": 1}, {"n": 1.0}, {"n": 2}, {"n": [1, {"m": None}]}, {"total": 3}, {"total": -1}),
    {"text": "é", "deep": {"n": 1}},
]
TAGS = ["t", "u"]
TIMES = ["2024-01-01T00:00:00Z", "2024-01-01T01:30:00+01:00", "2024-01-02T00:00:00.000001Z"]

DECLARATIONS: list[Declaration] = [
    StreamKind(name="case", opening_type="opened", closing_types=("won", "lost")),
    StreamKind(name="case"),
    StreamKind(name="doc", expected_seq_required=True),
    StreamKind(name="zero", first_seq=0),
    StreamKind(name="mine", numbered_by="caller"),
    StreamKind(name="closed", catalogue="closed"),
    EventType(event_type="a", kind="closed"),
    EventType(event_type="paid", schema={"required": ["total"]}),
    EventType(event_type="paid", event_version=2, schema={"properties": {"total": {"minimum": 0}}}),
    EventType(event_type="paid", schema={"required": ["other"]}),
    PayloadIndex("a", "n"),
    PayloadIndex("a", "n[]"),
    PayloadIndex("a", '["n"]'),
    PayloadIndex("b", "deep.n"),
    PayloadIndex("b", "n"),
    PayloadIndex("paid", "total"),
]

maybe = st.none() | st.none()

seqs = st.none() | st.none() | st.none() | st.integers(0, 4)
streams = st.sampled_from(STREAMS)


@st.composite
def plain_events(draw: Any) -> NewEvent:
    """Return an event that every log accepts."""
    return NewEvent(
        draw(st.sampled_from(["a", "b", "a.b", "a.c"])),
        draw(st.sampled_from(PAYLOADS)),
        stream=draw(st.sampled_from([None, ("s", "1"), ("s", "2")])),
        occurred_at=draw(st.none() | st.sampled_from(TIMES)),
        app_id=draw(st.none() | st.just("app")),
        env_id=draw(st.none() | st.just("env")),
        correlation_id=draw(st.none() | st.sampled_from(RELATED)),
        causation_id=draw(st.none() | st.sampled_from(RELATED)),
        tags=tuple(draw(st.lists(st.sampled_from(TAGS), max_size=2))),
    )


@st.composite
def new_events(
    draw: Any, *, key: str | None = None, stream: tuple[str, str] | None = None
) -> NewEvent:
    """Return an event that its stream and the declarations may accept or refuse."""
    stream = stream or draw(st.none() | streams)
    known_key = key
    event_id = draw(maybe | maybe | st.sampled_from(["e-1", "e-2", "e-3"]))
    tags = tuple(draw(st.lists(st.sampled_from(TAGS), max_size=2)))
    if stream is not None and stream[0] == "trace":
        return _trace_event(draw, stream, known_key, event_id)
    return NewEvent(
        draw(st.sampled_from(TYPES)),
        draw(st.sampled_from(PAYLOADS)),
        stream=stream,
        stream_seq=draw(seqs) if stream is not None else None,
        event_id=event_id,
        event_version=draw(st.sampled_from([1, 1, 1, 2])),
        occurred_at=draw(st.none() | st.sampled_from(TIMES)),
        producer_id=draw(st.none() | st.just("p")),
        actor_id=draw(st.none() | st.just("u")),
        idempotency_key=known_key,
        app_id=draw(st.none() | st.just("app")),
        env_id=draw(st.none() | st.just("env")),
        metadata=draw(st.just({}) | st.just({"label": "x"})),
        tags=tags,
    )


def _trace_event(
    draw: Any, stream: tuple[str, str], key: str | None, event_id: str | None
) -> NewEvent:
    kinds = ["TraceStarted", "EntityObserved", "PrecedentCited", "TraceFinished"]
    event_type = draw(st.sampled_from(kinds))
    number = draw(st.integers(0, 4))
    return NewEvent(
        event_type,
        dict(TRACE_PAYLOADS[event_type]),
        stream=stream,
        stream_seq=number,
        event_id=event_id or f"{stream[1]}-{number}-{event_type}",
        occurred_at=draw(st.sampled_from(TIMES)),
        producer_id="p",
        source_system="crm",
        actor_type="agent",
        actor_id="agent-1",
        idempotency_key=key or f"{stream[1]}/{number}/{event_type}",
    )


@st.composite
def batches(draw: Any) -> list[NewEvent]:
    """Return a small batch in which usually all or no events have a key."""
    size = draw(st.sampled_from([1, 1, 2, 3]))
    how = draw(st.sampled_from(["none", "none", "all", "all", "some"]))
    keys = draw(st.permutations(["k-1", "k-2", "k-3"])) if how != "none" else [None] * 3
    if how == "some":
        keys = [None, *keys]
    return [draw(new_events(key=keys[index])) for index in range(size)]


AGGREGATE_FIELDS: dict[str, Any] = {
    "request_id": "r",
    "actor_type": "user",
    "actor_id": "u",
    "stream": ("s", "1"),
}


filters = st.builds(
    Filter,
    types=st.none() | st.lists(st.sampled_from(NAMED_TYPES), max_size=2),
    payload=st.none() | st.lists(st.sampled_from([*PAYLOADS, {"n": []}]), max_size=2),
    tags=st.none() | st.lists(st.sampled_from(TAGS), max_size=2),
    streams=st.none() | st.lists(streams, max_size=2),
    correlation_id=st.none() | st.none() | st.sampled_from(RELATED),
    causation_id=st.none() | st.none() | st.sampled_from(RELATED),
    actor_id=st.none() | st.none() | st.sampled_from(["u", "agent-1"]),
)
queries = st.builds(
    Query,
    st.none() | st.lists(filters, max_size=2),
    st.none() | st.none() | st.integers(0, 20),
)

commands = (
    st.none()
    | st.none()
    | st.builds(
        Command,
        actor=st.just("u"),
        endpoint=st.just("POST /x"),
        key=st.sampled_from(["c-1", "c-2"]),
        request=st.sampled_from([None, {"n": 1}]),
        response=st.sampled_from([None, {"ok": True}]),
    )
)

positions = st.integers(0, 12)

_filters: dict[str, st.SearchStrategy[Any]] = {
    "scope": st.sampled_from(["log", "traces", "aggregates"]),
    "stream": streams,
    "since_seq": st.integers(-1, 3),
    "types": st.lists(st.sampled_from(NAMED_TYPES), max_size=2),
    "correlation_id": st.sampled_from(RELATED),
    "causation_id": st.sampled_from(RELATED),
    "actor_id": st.sampled_from(["u", "agent-1"]),
    "app_id": st.just("app"),
    "env_id": st.just("env"),
    "occurred_after": st.sampled_from(["2020-01-01T00:00:00Z", *TIMES]),
    "occurred_until": st.sampled_from([*TIMES, "2200-01-01T00:00:00Z"]),
    "recorded_after": st.sampled_from(["2000-01-01T00:00:00Z", "2200-01-01T00:00:00Z"]),
    "recorded_until": st.sampled_from(["2000-01-01T00:00:00Z", "2200-01-01T00:00:00Z"]),
}


@st.composite
def reads(draw: Any) -> dict[str, Any]:
    """Return a read with a few filters, whose bounds are rarely reversed."""
    names = draw(st.lists(st.sampled_from(sorted(_filters)), max_size=2, unique=True))
    found = {name: draw(_filters[name]) for name in names}
    if draw(st.booleans()):
        found["after"] = draw(st.integers(0, 6))
    if draw(st.booleans()):
        found["until"] = draw(st.integers(3, 15))
    if draw(st.booleans()):
        found["newest_first"] = True
    return found


MUTATIONS: list[dict[str, Any]] = [
    {},
    {"payload": {"n": 99}},
    {"event_type": "b"},
    {"tags": ("t", "t")},
    {"actor_id": "somebody"},
    {"stream_seq": 2},
    {"occurred_at": "2020-01-01T00:00:00Z"},
    {"metadata": {"label": "y"}},
    {"event_id": "e-9"},
    {"correlation_id": "c"},
    {"event_version": 2},
]
