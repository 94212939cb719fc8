"""Validation of a batch: the order of checks, keys, duplicates, shapes, guard and size."""

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from seriatim.core.canonical import hash_text
from seriatim.core.errors import (
    Conflict,
    EmptyAppend,
    InvalidArgument,
    InvalidEvent,
    LimitExceeded,
    PiiPolicyViolation,
    SchemaViolation,
    SeriatimError,
    ValidationError,
)
from seriatim.core.event import NewEvent
from seriatim.core.guard import PERSONAL_GUARD
from seriatim.core.ids import event_key, idempotency_index_key, stream_key, tag_key
from seriatim.core.indexes import StoredIndex, term_key
from seriatim.core.kinds import (
    BUILT_IN_KINDS,
    PROFILE_KINDS,
    EventType,
    ProfileKind,
    Rules,
    StreamKind,
    register_kind,
)
from seriatim.core.limits import Limits
from seriatim.core.prepare import ValidationContext, prepare, prepare_each
from seriatim.profiles.aggregate_values import AGGREGATES_PROFILE
from seriatim.profiles.facts import FACTS_PROFILE
from seriatim.profiles.trace_rules import TRACES_PROFILE
from seriatim.testing.factories import trace, trace_event

_new: Any = NewEvent  # for values that its types forbid

SECRET = "AKIA" + "A" * 16


def make_context(**options: Any) -> Any:
    """Return a validation context with sequential ids."""
    numbers = itertools.count(1)
    return ValidationContext(tenant_id="t", new_id=lambda: f"new-{next(numbers)}", **options)


def refusal(events: Any, key: Any = None, **options: object) -> Any:
    """Return the error that refuses a batch."""
    with pytest.raises(SeriatimError) as caught:
        prepare(make_context(**options), events, key)
    return caught.value


def test_prepared_event_has_texts_hashes_and_index_keys() -> None:
    """A1: a prepared event has its texts, hashes and index keys."""
    event = _new(
        "x",
        {"b": 1, "a": 2},
        stream=("s", "1"),
        stream_seq=4,
        event_id="e",
        occurred_at="1970-01-01T00:00:01Z",
        producer_id="p",
        idempotency_key="k",
        metadata={"m": "1"},
        tags=["u", "t"],
    )

    (ready,), size = prepare(make_context(), [event])

    assert (ready.payload, ready.payload_hash) == ('{"a":2,"b":1}', hash_text('{"a":2,"b":1}'))
    assert (ready.event_key, ready.has_caller_id) == (event_key("e"), True)
    assert ready.stream_key == stream_key("t", "s", "1")
    assert ready.idempotency_index == idempotency_index_key("t", "p", "k")
    assert (ready.occurred_us, ready.requested_seq) == (1_000_000, 4)
    assert (ready.tags, ready.metadata, ready.tenant_id) == (("u", "t"), {"m": "1"}, "t")
    assert size == len(ready.payload) + 256


def test_absent_fields_get_defaults() -> None:
    """A1: an event without id, stream, key or time gets a new id and no others."""
    (ready,), _ = prepare(make_context(), [NewEvent("x")])

    assert (ready.event_id, ready.has_caller_id) == ("new-1", False)
    assert (ready.stream_key, ready.idempotency_index, ready.occurred_us) == (None, None, None)
    assert ready.payload == "{}"


def test_batches_of_events() -> None:
    """B1, B2: a batch is any iterable of events or mappings; an empty one is `empty_append`."""
    ready, size = prepare(make_context(), iter([_new("x"), {"event_type": "y"}]))
    assert [one.event_type for one in ready] == ["x", "y"]
    assert size == 2 * (2 + 256)
    assert isinstance(refusal([]), EmptyAppend)
    for wrong in (NewEvent("x"), {"event_type": "x"}, "x", None, 7):
        error = refusal(wrong)
        assert isinstance(error, InvalidArgument)
        assert error.details == {"argument": "events"}


@pytest.mark.parametrize(
    ("event", "field"),
    [(None, "$"), ("x", "$"), ({"position": 1}, "position"), ({"event_type": ""}, "event_type")],
)
def test_error_reports_the_index_of_the_event(event: Any, field: Any) -> None:
    """B2: an invalid event is reported with its index and the error code of the profile."""
    batch = [NewEvent("x"), event]
    error = refusal(batch)
    assert isinstance(error, InvalidEvent)
    assert error.details == {"index": 1, "field": field}
    assert isinstance(refusal(batch, profile_rules=TRACES_PROFILE), InvalidArgument)


def test_keys_of_an_append() -> None:
    """C4: events have keys of their own, or one key for the whole append, of bounded length."""
    ready, _ = prepare(make_context(), [NewEvent("x"), NewEvent("y")], "k")
    assert [one.idempotency_key for one in ready] == ["k/0", "k/1"]
    ready, _ = prepare(
        make_context(), [NewEvent("x", idempotency_key="a"), NewEvent("y", idempotency_key="b")]
    )
    assert [one.idempotency_key for one in ready] == ["a", "b"]
    for key, events in (
        ("", [NewEvent("x")]),
        ("k" * 199, [NewEvent("x")]),
        ("k" * 198, [NewEvent("x")] * 11),
        (7, [NewEvent("x")]),
        ("k", [NewEvent("x", idempotency_key="own")]),
    ):
        error = refusal(events, key)
        assert isinstance(error, InvalidArgument)
        assert error.details == {"argument": "idempotency_key"}
    assert refusal([NewEvent("x", idempotency_key="")]).details["field"] == "idempotency_key"


def test_duplicate_keys_and_ids_in_a_batch_are_refused() -> None:
    """C4: all events of a batch have a key or none, and keys and ids are unique."""
    keyed, other, bare = (
        NewEvent("x", idempotency_key="k"),
        NewEvent("x", idempotency_key="k", producer_id="p"),
        NewEvent("x"),
    )
    prepare(make_context(), [keyed, other])
    for batch, index, field in (
        ([keyed, keyed], 1, "idempotency_key"),
        ([keyed, other, bare], 2, "idempotency_key"),
        ([bare, keyed], 0, "idempotency_key"),
        ([NewEvent("x", event_id="e"), bare, NewEvent("y", event_id="e")], 2, "event_id"),
    ):
        error = refusal(batch)
        assert isinstance(error, InvalidEvent)
        assert error.details == {"index": index, "field": field}


def test_keys_of_aggregates() -> None:
    """C7: in aggregates the command's key is stored, shared, and not indexed."""
    fields: dict[str, Any] = {
        "stream": ("o", "1"),
        "request_id": "r",
        "actor_type": "user",
        "actor_id": "u",
    }
    batch = [NewEvent("x", idempotency_key="k", **fields)] * 2 + [NewEvent("y", **fields)]

    ready, _ = prepare(make_context(profile_rules=AGGREGATES_PROFILE), batch)

    assert [one.idempotency_key for one in ready] == ["k", "k", None]
    assert [one.idempotency_index for one in ready] == [None, None, None]


def test_types_of_payloads() -> None:
    """A3: a payload is an object; in facts it is any JSON value."""
    values: list[Any] = [[], "x", 1, None]
    for value in values:
        assert refusal([NewEvent("x", value)]).details == {"index": 0, "field": "payload"}
        (ready,), _ = prepare(make_context(profile_rules=FACTS_PROFILE), [NewEvent("x", value)])
        assert ready.payload in ("[]", '"x"', "1", "null")
    error = refusal([trace_event("TraceStarted", "t", 0, payload=[])], profile_rules=TRACES_PROFILE)
    assert isinstance(error, SchemaViolation)


def check_amount(event_type: str, payload: Any) -> None:
    """Refuse a payment without an amount."""
    if "amount" not in payload:
        raise ValidationError("shape", "$.amount", f"is required in {event_type}")


@pytest.fixture
def payments() -> Iterator[StreamKind]:
    """Register the stream kind of a profile for one test."""
    kind = StreamKind(name="payment", first_seq=0, catalogue="closed")
    register_kind(
        ProfileKind(
            kind=kind,
            profile="payments",
            event_types=("paid",),
            required=("source_system",),
            key_required=True,
            actor_types=("person",),
            floats=False,
            check_payload=check_amount,
            guard=PERSONAL_GUARD,
            guarded_fields=("source_system",),
        )
    )
    yield kind
    del BUILT_IN_KINDS["payment"], PROFILE_KINDS["payment"]


def test_rules_of_a_registered_kind(payments: StreamKind) -> None:
    """A5, A7: the rules that a profile registers apply to streams of its kind only.

    The name of the kind does not matter: the core knows no profile by name.
    """
    whole = {"stream": ("payment", "1"), "source_system": "s", "actor_type": "person"}

    def refuse(payload: Any = None, key: str | None = "k", **changed: object) -> Any:
        error = refusal([_new("paid", payload or {"amount": 1}, **(whole | changed))], key)
        return error.details.get("field") or error.details["path"]

    prepare(make_context(), [_new("paid", {"amount": 1}, **whole)], "k")
    assert refuse(source_system=None) == "source_system"
    assert refuse(key=None) == "idempotency_key"
    assert refuse(actor_type="user") == "actor_type"
    assert refuse({"amount": 1.5}) == "$.amount"
    assert refuse({"total": 1}) == "$.amount"
    assert refuse({"amount": "ann@acme.io"}) == "$.amount"
    assert refuse(source_system="ann@acme.io") == "source_system"
    prepare(make_context(), [_new("paid", {"total": 1.5}, stream=("other", "1"))])
    assert Rules((), ()).kind_of("payment") is payments
    with pytest.raises(Conflict):
        register_kind(
            msgspec.structs.replace(PROFILE_KINDS["trace"], kind=StreamKind(name="trace"))
        )


def test_order_of_checks() -> None:
    """B4: key, JSON, shape and guard are checked in this order."""
    nan, secret = {"x": float("nan")}, {"workflow": SECRET}
    assert refusal([NewEvent("x", nan, idempotency_key="")]).details["field"] == "idempotency_key"
    assert refusal([NewEvent("x", nan, event_id="")]).details["field"] == "event_id"
    started = trace_event("TraceStarted", "t", 0, payload=nan | {"score": 1.5})
    assert refusal([started]).details["field"] == "$.x"
    started = trace_event("TraceStarted", "t", 0, payload=secret)
    assert refusal([started]).details["field"] == "$.title"
    whole = dict(trace_event("TraceStarted", "t", 0).payload)
    started = trace_event("TraceStarted", "t", 0, payload=whole | secret)
    assert isinstance(refusal([started]), PiiPolicyViolation)


def test_the_first_rejected_event_of_a_batch_is_reported() -> None:
    """B4: the guard rejects an event before the checks of a later one, and not before its own."""
    secret, clean, shapeless = NewEvent("x", {"a": SECRET}), NewEvent("x", {}), NewEvent("")
    long = NewEvent("x", {"a": "b" * 100})
    limits = Limits(payload_bytes=50)

    error = refusal([clean, secret, shapeless])
    assert (type(error), error.details["index"]) == (PiiPolicyViolation, 1)
    error = refusal([clean, shapeless, secret])
    assert (type(error), error.details["index"]) == (InvalidEvent, 1)
    error = refusal([secret, long], limits=limits)
    assert (type(error), error.details["index"]) == (PiiPolicyViolation, 0)
    error = refusal([clean, long, secret], limits=limits)
    assert (type(error), error.details["index"]) == (LimitExceeded, 1)
    error = refusal([clean, NewEvent(SECRET)])
    assert (error.details["path"], error.details["index"]) == ("event_type", 1)
    error = refusal([secret, NewEvent(SECRET)])
    assert (error.details["path"], error.details["index"]) == ("$.a", 0)


def test_several_appends_are_prepared_as_one_by_one() -> None:
    """B4: preparing several appends equals preparing each, and finds what would refuse one."""
    first, second = [NewEvent("x", {"n": 1}, event_id="a")], [NewEvent("x", {"n": 2}, event_id="b")]
    context, other = make_context(), msgspec.structs.replace(make_context(), tenant_id="other")
    appends = [(context, first), (other, second)]

    assert prepare_each(appends) == [prepare(context, first), prepare(other, second)]
    for refused in ([NewEvent("x", {"a": SECRET})], [NewEvent("")], []):
        with pytest.raises(SeriatimError) as caught:
            prepare_each([*appends, (context, refused)])
        assert type(caught.value) is type(refusal(refused))


def test_guards_of_an_append() -> None:
    """K1: traces have a guard of their own, other events that of the log; the index is reported."""
    error = refusal([NewEvent("x"), NewEvent("x", {"a": SECRET})])
    assert error.details == {"guard": "default", "rule": "aws_key_id", "path": "$.a", "index": 1}
    error = refusal([NewEvent("x", {"a": "jane@example.com"})], guard=PERSONAL_GUARD)
    assert error.details["guard"] == "personal"
    whole = dict(trace_event("TraceStarted", "t", 0).payload)
    error = refusal([trace_event("TraceStarted", "t", 0, payload=whole | {"x": "task-4"})])
    assert error.details["guard"] == "traces-v1"
    for field in ("actor_type", "actor_id", "source_system", "source_subsystem"):
        assert refusal([_new("x", **{field: SECRET})]).details["path"] == field
    for field in ("correlation_id", "causation_id", "idempotency_key"):
        assert refusal([_new("x", **{field: SECRET})]).details["path"] == field
    assert refusal([NewEvent("x")], SECRET).details["path"] == "idempotency_key"
    prepare(make_context(), trace("t"))


def test_declared_shapes() -> None:
    """A8: undeclared versions, closed catalogues and schemas are checked outside traces."""

    def validate(payload: Any) -> None:
        if payload != {"ok": True}:
            raise ValidationError("shape", "$.ok", "must be true")

    rules = Rules(
        (StreamKind(name="case", catalogue="closed"),),
        (EventType(event_type="a", kind="case"), EventType(event_type="b", event_version=2)),
    )
    options = {"rules": rules, "validators": {("b", 2): validate}}
    prepare(
        make_context(**options),
        [
            NewEvent("a", stream=("case", "1")),
            NewEvent("c", stream=("other", "1")),
            NewEvent("b", {"ok": True}, event_version=2),
        ],
    )
    for event, field in (
        (NewEvent("c", stream=("case", "1")), "event_type"),
        (NewEvent("a", event_version=2), "event_version"),
        (NewEvent("b", {"ok": True}), "event_version"),
        (NewEvent("b", {}, event_version=2), "$.ok"),
        (trace_event("Other", "t", 0), "event_type"),
    ):
        error = refusal([event], **options)
        assert isinstance(error, SchemaViolation)
        assert error.details == {"index": 0, "field": field}


def test_sizes_are_bounded() -> None:
    """K3: the events of an append and the bytes of payload and append are bounded."""
    error = refusal([NewEvent("x")] * 3, limits=Limits(append_events=2))
    assert isinstance(error, LimitExceeded)
    assert error.details == {"limit": "append_events", "bound": 2, "actual": 3}
    limits = Limits(payload_bytes=len('{"a":"éé"}'.encode()))
    prepare(make_context(limits=limits), [NewEvent("x", {"a": "éé"})])
    error = refusal([NewEvent("x"), NewEvent("x", {"a": "ééa"})], limits=limits)
    assert (error.details["limit"], error.details["index"]) == ("payload_bytes", 1)
    error = refusal([NewEvent("x", {"a": [[]]})], limits=Limits(payload_depth=2))
    assert (error.details["limit"], error.details["index"]) == ("payload_depth", 0)
    both = [NewEvent("x", {"a": "é" * 10})] * 2
    exact = 2 * (256 + len('{"a":""}') + 20)
    prepare(make_context(limits=Limits(append_bytes=exact)), both)
    error = refusal(both, limits=Limits(append_bytes=exact - 1))
    assert error.details == {"limit": "append_bytes", "bound": exact - 1, "actual": exact}


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (_new("a", event_version=True), "event_version"),
        (_new("a", event_version=1.0), "event_version"),
        (_new(["a"]), "event_type"),
        (_new("a", stream=("s",)), "stream"),
        (_new("a", stream=["s", "1"]), "stream"),
        (_new("a", stream=(1, "1")), "stream_type"),
        (_new("a", stream=("s", "")), "stream_id"),
        (_new("a", stream_seq=1), "stream_seq"),
    ],
)
def test_cached_type_does_not_skip_checks(event: Any, field: str) -> None:
    """L1: a type that resembles a cached one is still checked."""
    table = make_context()
    prepare(table, [NewEvent("a"), NewEvent("a", stream=("s", "1"))])

    with pytest.raises(InvalidEvent) as caught:
        prepare(table, [event])

    assert caught.value.details["field"] == field


def test_type_cache_is_bounded() -> None:
    """K3: the cache of validated types is bounded."""
    table = make_context()
    for number in range(5000):
        prepare(table, [NewEvent(f"type-{number}")])

    assert 0 < len(table.validated_kinds) < 5000


def test_terms_of_declared_indexes() -> None:
    """A8, K3: an event of an indexed type has a bounded number of term keys."""
    rules = Rules((), (), 1, (StoredIndex("a", "x"), StoredIndex("a", "l[]")))
    events = [
        NewEvent("a", {"x": 1, "l": [True, True]}, tags=("p",)),
        NewEvent("a", {"y": 1}),
        NewEvent("b", {"x": 1}, tags=("p", "p")),
    ]

    (full, bare, other), _ = prepare(make_context(rules=rules), events)

    keys = term_key(full.tenant_id, "a", "x", 1), term_key(full.tenant_id, "a", "l[]", True)
    tag = tag_key(full.tenant_id, "p")
    assert full.term_keys == keys
    assert full.index_keys() == (tag, *keys)
    assert (bare.term_keys, bare.index_keys()) == ((), ())
    assert (other.term_keys, other.index_keys()) == ((), (tag,))
    wide = NewEvent("a", {"l": [1, 2, 3]})
    error = refusal([wide], rules=rules, limits=Limits(index_terms=2))
    assert error.details == {"limit": "index_terms", "bound": 2, "actual": 3, "index": 0}
