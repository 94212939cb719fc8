"""The decision of an append: command, reuse, conditions, sequence, closing lock, in that order."""

import uuid
from typing import Any

import msgspec
import pytest

from seriatim.core.decide import (
    AcceptedAppend,
    ReplayedAppend,
    StaleRules,
    StreamHead,
    assign_event_keys,
    decide,
    differing_fields,
    find_by_id,
)
from seriatim.core.errors import (
    ConditionalAppendConflict,
    Conflict,
    EventSequenceInvalid,
    IdempotencyConflict,
    IdempotencyKeyReuse,
    InvalidArgument,
    SeriatimError,
)
from seriatim.core.event import NewEvent
from seriatim.core.ids import event_key, event_keys, stream_key
from seriatim.core.kinds import NO_RULES, Rules, StreamKind
from seriatim.core.limits import DEFAULT_LIMITS
from seriatim.core.prepare import ValidationContext, prepare
from seriatim.core.query import Query, matches
from seriatim.core.request import (
    AppendRequest,
    Command,
    ExpectedContext,
    ExpectedSeq,
    StoredCommand,
    prepare_command,
)

CASE = Rules((StreamKind(name="case", opening_type="open", closing_types=("won", "lost")),), ())
DOC = Rules((StreamKind(name="doc", expected_seq_required=True),), ())
ZERO = Rules((StreamKind(name="zero", first_seq=0),), ())


class AcceptedAppends:
    """A view of a log made of appends that were accepted before."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.keys: dict[bytes, Any] = {}
        self.ids: dict[bytes, Any] = {}
        self.heads: dict[bytes, StreamHead] = {}
        self.commands: dict[bytes, StoredCommand] = {}

    def head(self) -> int:
        """Return the last position."""
        return len(self.records)

    def add(self, *events: Any, command: Any = None, rules: Any = NO_RULES) -> Any:
        """Decide an append and store it if it is accepted."""
        append = request(*events, command=command)
        decision = decide(append, self, rules)
        assert isinstance(decision, AcceptedAppend)
        first = len(self.records) + 1
        for event, seq in zip(decision.events, decision.stream_seqs, strict=True):
            record = event.to_record(len(self.records) + 1, first, seq, 0)
            self.records.append(record)
            self.ids[event.event_key] = record
            if event.idempotency_index is not None:
                self.keys[event.idempotency_index] = record
            if event.stream_key is not None and seq is not None:
                self.heads[event.stream_key] = StreamHead(seq, event.event_type)
        if append.command is not None:
            command_record = append.command
            self.commands[command_record.command_key] = StoredCommand(
                command_record.request_hash, command_record.response, first, len(self.records)
            )
        return self

    def stream_head(self, key: Any) -> Any:
        """Return the head of a stream."""
        return self.heads.get(key)

    def find_by_key(self, key: Any) -> Any:
        """Return the record with an idempotency key."""
        return self.keys.get(key)

    def find_by_id(self, tenant: Any, key: Any) -> Any:
        """Return the record with an event id."""
        assert tenant == "t"
        return self.ids.get(key)

    def read_range(self, first: Any, last: Any) -> Any:
        """Return the records of a range of positions."""
        return tuple(self.records[first - 1 : last])

    def current_context_version(self, tenant: Any, query: Any) -> Any:
        """Return the version of a context."""
        assert tenant == "t"
        found = [record.position for record in self.records if matches(query, record)]
        return found[-1] if found else None

    def find_command(self, key: Any) -> Any:
        """Return the stored command with a key."""
        return self.commands.get(key)


def request(
    *events: Any,
    conditions: Any = (),
    command: Any = None,
    mismatch: Any = "error",
    rules_version: Any = 0,
) -> Any:
    """Make a validated append request."""
    new_events = [NewEvent(event) if isinstance(event, str) else event for event in events]
    numbers = iter(range(1000))
    context = ValidationContext(
        tenant_id="t", new_id=lambda: f"new-{id(new_events)}-{next(numbers)}", rules=CASE
    )
    prepared, _ = prepare(context, new_events)
    return AppendRequest(
        "t",
        prepared,
        tuple(conditions),
        prepare_command("t", command, DEFAULT_LIMITS),
        mismatch,
        rules_version=rules_version,
    )


def seqs(shelf: Any, *events: Any, rules: Any = NO_RULES, **options: object) -> Any:
    """Return the sequence numbers that an accepted append gets."""
    decision = decide(request(*events, **options), shelf, rules)
    assert isinstance(decision, AcceptedAppend)
    return decision.stream_seqs


def refusal(shelf: Any, *events: Any, rules: Any = NO_RULES, **options: object) -> Any:
    """Return the error that refuses an append."""
    with pytest.raises(SeriatimError) as caught:
        decide(request(*events, **options), shelf, rules)
    return caught.value


def event_on(stream: Any, event_type: Any = "x", **fields: Any) -> Any:
    """Make an event of a stream named like `s/1`."""
    return NewEvent(event_type, stream=tuple(stream.split("/")), **fields)


def keyed(key: Any, number: Any = 0, **fields: Any) -> Any:
    """Make an event with a key."""
    return NewEvent("x", {"n": number}, idempotency_key=key, **fields)


def test_append_with_stale_rules_is_refused() -> None:
    """A8: an append that was validated with other declarations raises StaleRules."""
    for version in (-1, 1):
        with pytest.raises(StaleRules):
            decide(request("x", rules_version=version), AcceptedAppends(), NO_RULES)


def test_assigned_numbers() -> None:
    """B5: streams are numbered from their first number on, through the batch; facts are not."""
    shelf = AcceptedAppends().add(event_on("s/1"), event_on("s/1"))

    assert seqs(shelf, "fact", event_on("s/1"), event_on("s/2"), event_on("s/1")) == (None, 3, 1, 4)
    assert seqs(AcceptedAppends(), event_on("zero/1"), event_on("zero/1"), rules=ZERO) == (0, 1)
    assert seqs(shelf, event_on("s/1", stream_seq=3), event_on("s/1", stream_seq=4)) == (3, 4)


def test_wrong_numbers() -> None:
    """B5: a wrong number is refused with the expected and the actual one."""
    shelf = AcceptedAppends().add(event_on("s/1"), event_on("s/1"))

    for wrong in (0, 2, 4):
        error = refusal(shelf, "fact", event_on("s/1", stream_seq=wrong))
        assert isinstance(error, EventSequenceInvalid)
        assert error.details == {"index": 1, "expected": 3, "actual": wrong}
    error = refusal(shelf, event_on("s/1"), event_on("s/1", stream_seq=3))
    assert error.details == {"index": 1, "expected": 4, "actual": 3}
    assert refusal(AcceptedAppends(), event_on("s/1", stream_seq=0)).details["expected"] == 1


def test_opening_type() -> None:
    """B6: the opening type must have the first number, and no other type may have it."""
    shelf = AcceptedAppends().add(event_on("case/1", "open"), rules=CASE)

    assert seqs(shelf, event_on("case/2", "open"), event_on("case/2"), rules=CASE) == (1, 2)
    for batch in (
        [event_on("case/2")],
        [event_on("case/1", "open")],
        [event_on("case/3", "open")] * 2,
    ):
        error = refusal(shelf, *batch, rules=CASE)
        assert isinstance(error, EventSequenceInvalid)
        assert error.details["index"] == len(batch) - 1
    assert seqs(shelf, event_on("s/1", "open"), event_on("s/1", "open"), rules=CASE) == (1, 2)


def test_closed_stream() -> None:
    """B7: after a closing event the right number is a conflict, another one a sequence error."""
    shelf = AcceptedAppends().add(
        event_on("case/1", "open"), event_on("case/1", "lost"), rules=CASE
    )

    for event in (
        event_on("case/1"),
        event_on("case/1", stream_seq=3),
        event_on("case/1", "won"),
        event_on("case/1", "open"),
    ):
        error = refusal(shelf, event, rules=CASE)
        assert isinstance(error, Conflict)
        assert error.details == {"index": 0, "closed_by": "lost"}
    error = refusal(shelf, event_on("case/1", stream_seq=4), rules=CASE)
    assert isinstance(error, EventSequenceInvalid)
    assert error.details == {"index": 0, "expected": 3, "actual": 4}
    batch = [event_on("case/2", "open"), event_on("case/2", "won"), event_on("case/2")]
    assert refusal(shelf, *batch, rules=CASE).details == {"index": 2, "closed_by": "won"}
    assert seqs(shelf, event_on("case/2", "open"), event_on("case/2", "won"), rules=CASE) == (1, 2)


def test_expected_numbers() -> None:
    """B8: ExpectedSeq compares the stream's last number, or None for a missing stream."""
    shelf = AcceptedAppends().add(event_on("s/1"), event_on("s/1"))

    assert seqs(shelf, "x", conditions=[ExpectedSeq(("s", "1"), 2)]) == (None,)
    assert seqs(shelf, "x", conditions=[ExpectedSeq(("s", "2"), None)]) == (None,)
    for stream, seq, actual in ((("s", "1"), 1, 2), (("s", "1"), None, 2), (("s", "2"), 0, None)):
        error = refusal(shelf, "x", conditions=[ExpectedSeq(stream, seq)])
        assert isinstance(error, EventSequenceInvalid)
        assert error.details == {"expected": seq, "actual": actual}
    both = [ExpectedSeq(("s", "1"), 2), ExpectedSeq(("s", "2"), 1)]
    assert refusal(shelf, "x", conditions=both).details == {"expected": 1, "actual": None}


def test_expected_contexts() -> None:
    """D5: a context's version is its highest matching position; None equals None only."""
    shelf = AcceptedAppends()
    assert seqs(shelf, "x", conditions=[ExpectedContext(Query(), None)]) == (None,)
    error = refusal(shelf, "x", conditions=[ExpectedContext(Query(), 1)])
    assert isinstance(error, ConditionalAppendConflict)
    assert (error.expected, error.actual) == (1, None)
    shelf.add("x").add("y")
    assert seqs(shelf, "x", conditions=[ExpectedContext(Query(), 2)]) == (None,)
    assert refusal(shelf, "x", conditions=[ExpectedContext(Query(), None)]).details["actual"] == 2


def test_condition_after_a_position() -> None:
    """D7: `after` fails if a matching event was appended later, or if it is over the head."""
    shelf = AcceptedAppends()
    assert seqs(shelf, "x", conditions=[ExpectedContext(Query(), after=0)]) == (None,)
    shelf.add("a")
    shelf.add("b")

    assert seqs(shelf, "x", conditions=[ExpectedContext(Query(), after=2)]) == (None,)
    error = refusal(shelf, "x", conditions=[ExpectedContext(Query(), after=1)])
    assert isinstance(error, ConditionalAppendConflict)
    assert (error.after, error.actual, error.expected) == (1, 2, None)
    assert "position 2" in error.message
    beyond = refusal(shelf, "x", conditions=[ExpectedContext(Query(), after=3)])
    assert isinstance(beyond, InvalidArgument)
    assert beyond.details == {"argument": "after", "head": 2}


def test_kinds_that_require_an_expected_number() -> None:
    """B11: an append to an existing stream of such a kind needs ExpectedSeq, to a new one not."""
    shelf = AcceptedAppends().add(event_on("doc/1"), event_on("doc/1"), rules=DOC)
    holds = ExpectedSeq(("doc", "1"), 2)

    error = refusal(shelf, "x", event_on("doc/1"), rules=DOC)
    assert isinstance(error, InvalidArgument)
    assert error.details == {"index": 1, "argument": "condition"}
    assert refusal(
        shelf, event_on("doc/1"), rules=DOC, conditions=[ExpectedContext(Query(), 2)]
    ).details
    assert seqs(shelf, event_on("doc/1"), event_on("doc/1"), rules=DOC, conditions=[holds]) == (
        3,
        4,
    )
    assert seqs(shelf, event_on("doc/2"), event_on("doc/2"), event_on("s/1"), rules=DOC) == (
        1,
        2,
        1,
    )
    key = stream_key("t", "doc", "1")
    assert shelf.heads[key] == StreamHead(2, "x")


def test_a_retry_by_key() -> None:
    """C2: an event with a known key and equal content replays, before conditions and locks."""
    shelf = AcceptedAppends().add(keyed("k", 1, stream=("case", "1")), rules=NO_RULES)
    again = keyed("k", 1, stream=("case", "1"), stream_seq=9, event_id="e", request_id="r")

    decision = decide(
        request(again, conditions=[ExpectedSeq(("case", "1"), None)]), shelf, NO_RULES
    )

    assert decision == ReplayedAppend((shelf.records[0],))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"payload": {"n": 2}}, "payload"),
        ({"stream": ("s", "2")}, "stream"),
        ({"stream": None}, "stream"),
        ({"event_type": "y"}, "event_type"),
        ({"source_system": "b"}, "source"),
        ({"source_subsystem": "b"}, "source"),
        ({"actor_type": "b"}, "actor"),
        ({"actor_id": "b"}, "actor"),
        ({"correlation_id": "b"}, "correlation_id"),
        ({"causation_id": "b"}, "causation_id"),
        ({"event_version": 2}, "event_version"),
        ({"tags": ("b",)}, "tags"),
    ],
)
def test_compared_fields_conflict(change: Any, field: Any) -> None:
    """C2, C3: each compared field alone makes a conflict, by key and by id."""
    for known in ({"idempotency_key": "k"}, {"event_id": "e"}):
        base: dict[str, Any] = {
            "event_type": "x",
            "payload": {"n": 1},
            "stream": ("s", "1"),
            **known,
        }
        shelf = AcceptedAppends().add(NewEvent(**base))
        error = refusal(shelf, NewEvent(**(base | change)))
        assert isinstance(error, IdempotencyConflict)
        assert error.details == {"index": 0, "fields": [field]}


def test_all_differing_fields_are_listed() -> None:
    """C2: differing fields are listed in the order of the contract."""
    shelf = AcceptedAppends().add(keyed("k", 1))
    (same,) = request(keyed("k", 1)).events
    (other,) = request(keyed("k", 2, tags=("a",), actor_id="b")).events

    assert differing_fields(shelf.records[0], same) == []
    assert differing_fields(shelf.records[0], other) == ["payload", "actor", "tags"]


def test_ids_and_keys() -> None:
    """C3: a key and an id of two different records conflict; other combinations replay."""
    shelf = AcceptedAppends().add(keyed("a", 1, event_id="e-a")).add(keyed("b", 1, event_id="e-b"))

    error = refusal(shelf, keyed("a", 1, event_id="e-b"))
    assert isinstance(error, IdempotencyConflict)
    assert error.details == {"index": 0, "fields": ["event_id"]}
    for event in (
        keyed("a", 1, event_id="e-a"),
        keyed("a", 1, event_id="new"),
        keyed("new", 1, event_id="e-a"),
        NewEvent("x", {"n": 1}, event_id="e-a"),
    ):
        assert decide(request(event), shelf, NO_RULES) == ReplayedAppend((shelf.records[0],))


def test_warn_policy_replays_known_ids() -> None:
    """C3: with `warn` a known id with other content replays and names the fields."""
    shelf = AcceptedAppends().add(NewEvent("x", {"n": 1}, event_id="e")).add(keyed("k", 1))
    other = NewEvent("x", {"n": 2}, event_id="e", tags=("t",))

    decision = decide(request(other, mismatch="warn"), shelf, NO_RULES)

    assert decision == ReplayedAppend((shelf.records[0],), None, ("payload", "tags"))
    assert refusal(shelf, other).details["fields"] == ["payload", "tags"]
    assert refusal(shelf, keyed("k", 2), mismatch="warn").details["fields"] == ["payload"]


def test_new_ids_are_not_looked_up() -> None:
    """C3: a generated event id is not looked up."""
    shelf = AcceptedAppends().add("x")
    append = request("x")
    shelf.ids[append.events[0].event_key] = shelf.records[0]

    assert isinstance(decide(append, shelf, NO_RULES), AcceptedAppend)


def test_batch_is_replayed_as_a_whole() -> None:
    """C4: a batch replays if all its keys come from one append, in order; else it conflicts."""
    shelf = AcceptedAppends().add(keyed("a", 1), keyed("b", 2), keyed("c", 3)).add(keyed("d", 4))

    whole = decide(request(keyed("a", 1), keyed("b", 2), keyed("c", 3)), shelf, NO_RULES)
    assert whole == ReplayedAppend(tuple(shelf.records[:3]))
    for batch, index, fields in (
        ([keyed("a", 1), keyed("z")], 1, []),
        ([keyed("z"), keyed("a", 1)], 1, []),
        ([keyed("y"), keyed("z"), keyed("a", 1)], 2, []),
        ([keyed("b", 2), keyed("a", 1)], 1, ["batch"]),
        ([keyed("a", 1), keyed("c", 3)], 1, ["batch"]),
        ([keyed("c", 3), keyed("d", 4)], 1, ["batch"]),
    ):
        error = refusal(shelf, *batch)
        assert isinstance(error, IdempotencyConflict)
        assert error.details == {"index": index, "fields": fields}


def test_commands() -> None:
    """C5: a duplicate returns the stored response; another request with the key is refused."""
    command = Command(actor="a", endpoint="e", key="k", request={"n": 1}, response={"ok": True})
    shelf = AcceptedAppends().add("w").add("x", "y", command=command)

    duplicate = request("z", command=command, conditions=[ExpectedContext(Query(), None)])
    assert decide(duplicate, shelf, NO_RULES) == ReplayedAppend(
        tuple(shelf.records[1:3]), {"ok": True}
    )
    other = msgspec.structs.replace(command, request={"n": 2})
    error = refusal(shelf, "x", command=other)
    assert isinstance(error, IdempotencyKeyReuse)
    assert error.details == {"key": "k"}
    fresh = msgspec.structs.replace(command, key="k-2")
    assert seqs(shelf, "x", command=fresh) == (None,)


def test_order_of_decisions() -> Any:
    """B4: command, reuse, condition, sequence and closing lock are decided in this order."""
    command = Command(actor="a", endpoint="e", key="k", request=1)
    shelf = AcceptedAppends().add(event_on("case/1", "open"), event_on("case/1", "won"), rules=CASE)
    shelf.add(keyed("k", 1), command=command)
    fails = ExpectedSeq(("case", "1"), 7)
    reused = keyed("k", 2, stream=("case", "1"), stream_seq=9)
    other = msgspec.structs.replace(command, request=2)

    def code(event: Any, **options: object) -> Any:
        return refusal(shelf, event, rules=CASE, **options).code

    assert code(reused, conditions=[fails], command=other) == "idempotency_key_reuse"
    assert code(reused, conditions=[fails]) == "idempotency_conflict"
    error = refusal(shelf, event_on("case/1", stream_seq=9), rules=CASE, conditions=[fails])
    assert error.details == {"expected": 7, "actual": 2}
    assert refusal(shelf, event_on("case/1", stream_seq=9), rules=CASE).details["actual"] == 9
    assert code(event_on("case/1", "open", stream_seq=3)) == "conflict"


# -- ids that share an index key


def uuid_of(key: bytes) -> str:
    """Return the UUID whose bytes a key is."""
    return str(uuid.UUID(bytes=key))


def test_ids_with_the_same_index_key() -> None:
    """C3: two ids with the same index key are two events; the second has its next key."""
    first, second = "order-1", uuid_of(event_key("order-1"))
    shelf = AcceptedAppends().add(NewEvent("a", event_id=first)).add(NewEvent("b", event_id=second))

    again = decide(request(NewEvent("b", event_id=second)), shelf, NO_RULES)
    assert isinstance(again, ReplayedAppend)
    assert again.records[0].event_id == second
    assert len(shelf.ids) == 2
    other = decide(request(NewEvent("a", event_id=first)), shelf, NO_RULES)
    assert isinstance(other, ReplayedAppend)
    assert other.records[0].position == 1


def test_ids_with_the_same_index_key_in_one_append() -> None:
    """C3: events of one append whose ids have the same index key get different keys."""
    second = uuid_of(event_key("order-1"))
    shelf = AcceptedAppends().add(NewEvent("a", event_id="order-1"), NewEvent("b", event_id=second))

    assert [id_.event_id for id_ in shelf.ids.values()] == ["order-1", second]


def test_an_id_without_a_free_index_key() -> None:
    """C3, L2: an id all of whose index keys are taken is a conflict."""
    shelf = AcceptedAppends()
    for key in event_keys("order-1"):
        shelf.add(NewEvent("a", event_id=uuid_of(key)))

    with pytest.raises(Conflict, match="all index keys"):
        shelf.add(NewEvent("a", event_id="order-1"))
    assert find_by_id("t", "order-1", shelf.find_by_id) is None


def test_a_repeated_id_in_a_restore_is_refused() -> None:
    """C3, J1: a restore with a stored or repeated id is refused."""
    shelf = AcceptedAppends().add(NewEvent("a", event_id="order-1"))
    [event] = request(NewEvent("a", event_id="order-1")).events

    with pytest.raises(Conflict, match="already stored"):
        assign_event_keys([event], shelf.find_by_id)
    with pytest.raises(Conflict, match="already stored"):
        assign_event_keys([event, event], AcceptedAppends().find_by_id)
