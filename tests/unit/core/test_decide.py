"""Deciding: command, reuse, conditions, sequence, closing lock, in that order."""

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


class Shelf:
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
        """Decide an append and keep what was accepted."""
        asked = request(*events, command=command)
        decision = decide(asked, self, rules)
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
        if asked.command is not None:
            made = asked.command
            self.commands[made.command_key] = StoredCommand(
                made.request_hash, made.response, first, len(self.records)
            )
        return self

    def stream_head(self, key: Any) -> Any:
        """Return the end of a stream."""
        return self.heads.get(key)

    def find_by_key(self, key: Any) -> Any:
        """Return the event under an idempotency key."""
        return self.keys.get(key)

    def find_by_id(self, tenant: Any, key: Any) -> Any:
        """Return the event under an event id."""
        assert tenant == "t"
        return self.ids.get(key)

    def read_range(self, first: Any, last: Any) -> Any:
        """Return a range."""
        return tuple(self.records[first - 1 : last])

    def current_context_version(self, tenant: Any, query: Any) -> Any:
        """Return a context's version."""
        assert tenant == "t"
        found = [record.position for record in self.records if matches(query, record)]
        return found[-1] if found else None

    def find_command(self, key: Any) -> Any:
        """Return a command's record."""
        return self.commands.get(key)


def request(
    *events: Any,
    conditions: Any = (),
    command: Any = None,
    mismatch: Any = "error",
    rules_version: Any = 0,
) -> Any:
    """Make a checked append."""
    made = [NewEvent(event) if isinstance(event, str) else event for event in events]
    numbers = iter(range(1000))
    context = ValidationContext(
        tenant_id="t", new_id=lambda: f"new-{id(made)}-{next(numbers)}", rules=CASE
    )
    prepared, _ = prepare(context, made)
    return AppendRequest(
        "t",
        prepared,
        tuple(conditions),
        prepare_command("t", command, DEFAULT_LIMITS),
        mismatch,
        rules_version=rules_version,
    )


def seqs(shelf: Any, *events: Any, rules: Any = NO_RULES, **options: Any) -> Any:
    """Return the numbers an accepted append gets."""
    decision = decide(request(*events, **options), shelf, rules)
    assert isinstance(decision, AcceptedAppend)
    return decision.stream_seqs


def refusal(shelf: Any, *events: Any, rules: Any = NO_RULES, **options: Any) -> Any:
    """Return the error that refuses an append."""
    with pytest.raises(SeriatimError) as caught:
        decide(request(*events, **options), shelf, rules)
    return caught.value


def on(stream: Any, event_type: Any = "x", **fields: Any) -> Any:
    """Make an event of a stream named like `s/1`."""
    return NewEvent(event_type, stream=tuple(stream.split("/")), **fields)


def keyed(key: Any, number: Any = 0, **fields: Any) -> Any:
    """Make an event with a key."""
    return NewEvent("x", {"n": number}, idempotency_key=key, **fields)


def test_append_with_stale_rules_is_checked_again() -> None:
    """A8: an append that was checked under other declarations is checked again first."""
    for version in (-1, 1):
        with pytest.raises(StaleRules):
            decide(request("x", rules_version=version), Shelf(), NO_RULES)


def test_numbers() -> None:
    """B5: streams are numbered from their first number on, through the batch; facts are not."""
    shelf = Shelf().add(on("s/1"), on("s/1"))

    assert seqs(shelf, "fact", on("s/1"), on("s/2"), on("s/1")) == (None, 3, 1, 4)
    assert seqs(Shelf(), on("zero/1"), on("zero/1"), rules=ZERO) == (0, 1)
    assert seqs(shelf, on("s/1", stream_seq=3), on("s/1", stream_seq=4)) == (3, 4)


def test_wrong_numbers() -> None:
    """B5: a number that is not the next says expected and actual."""
    shelf = Shelf().add(on("s/1"), on("s/1"))

    for wrong in (0, 2, 4):
        error = refusal(shelf, "fact", on("s/1", stream_seq=wrong))
        assert isinstance(error, EventSequenceInvalid)
        assert error.details == {"index": 1, "expected": 3, "actual": wrong}
    error = refusal(shelf, on("s/1"), on("s/1", stream_seq=3))
    assert error.details == {"index": 1, "expected": 4, "actual": 3}
    assert refusal(Shelf(), on("s/1", stream_seq=0)).details["expected"] == 1


def test_opening() -> None:
    """B6: the opening type has the first number, and nothing else has it."""
    shelf = Shelf().add(on("case/1", "open"), rules=CASE)

    assert seqs(shelf, on("case/2", "open"), on("case/2"), rules=CASE) == (1, 2)
    for batch in ([on("case/2")], [on("case/1", "open")], [on("case/3", "open")] * 2):
        error = refusal(shelf, *batch, rules=CASE)
        assert isinstance(error, EventSequenceInvalid)
        assert error.details["index"] == len(batch) - 1
    assert seqs(shelf, on("s/1", "open"), on("s/1", "open"), rules=CASE) == (1, 2)


def test_closing() -> None:
    """B7: after a closing event the right number is a conflict, another one a wrong number."""
    shelf = Shelf().add(on("case/1", "open"), on("case/1", "lost"), rules=CASE)

    for event in (
        on("case/1"),
        on("case/1", stream_seq=3),
        on("case/1", "won"),
        on("case/1", "open"),
    ):
        error = refusal(shelf, event, rules=CASE)
        assert isinstance(error, Conflict)
        assert error.details == {"index": 0, "closed_by": "lost"}
    error = refusal(shelf, on("case/1", stream_seq=4), rules=CASE)
    assert isinstance(error, EventSequenceInvalid)
    assert error.details == {"index": 0, "expected": 3, "actual": 4}
    batch = [on("case/2", "open"), on("case/2", "won"), on("case/2")]
    assert refusal(shelf, *batch, rules=CASE).details == {"index": 2, "closed_by": "won"}
    assert seqs(shelf, on("case/2", "open"), on("case/2", "won"), rules=CASE) == (1, 2)


def test_expected_numbers() -> None:
    """B8: ExpectedSeq is the stream's last number, or None for no stream."""
    shelf = Shelf().add(on("s/1"), on("s/1"))

    assert seqs(shelf, "x", conditions=[ExpectedSeq(("s", "1"), 2)]) == (None,)
    assert seqs(shelf, "x", conditions=[ExpectedSeq(("s", "2"), None)]) == (None,)
    for stream, seq, actual in ((("s", "1"), 1, 2), (("s", "1"), None, 2), (("s", "2"), 0, None)):
        error = refusal(shelf, "x", conditions=[ExpectedSeq(stream, seq)])
        assert isinstance(error, EventSequenceInvalid)
        assert error.details == {"expected": seq, "actual": actual}
    both = [ExpectedSeq(("s", "1"), 2), ExpectedSeq(("s", "2"), 1)]
    assert refusal(shelf, "x", conditions=both).details == {"expected": 1, "actual": None}


def test_expected_contexts() -> None:
    """D5: the version is the highest matching position; absent equals absent only."""
    shelf = Shelf()
    assert seqs(shelf, "x", conditions=[ExpectedContext(Query(), None)]) == (None,)
    error = refusal(shelf, "x", conditions=[ExpectedContext(Query(), 1)])
    assert isinstance(error, ConditionalAppendConflict)
    assert (error.expected, error.actual) == (1, None)
    shelf.add("x").add("y")
    assert seqs(shelf, "x", conditions=[ExpectedContext(Query(), 2)]) == (None,)
    assert refusal(shelf, "x", conditions=[ExpectedContext(Query(), None)]).details["actual"] == 2


def test_condition_after_a_position() -> None:
    """D7: nothing that matches was appended after the position, which the log has reached."""
    shelf = Shelf()
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


def test_kinds_that_demand_a_number() -> None:
    """B11: an existing stream of such a kind needs ExpectedSeq, a new one does not."""
    shelf = Shelf().add(on("doc/1"), on("doc/1"), rules=DOC)
    holds = ExpectedSeq(("doc", "1"), 2)

    error = refusal(shelf, "x", on("doc/1"), rules=DOC)
    assert isinstance(error, InvalidArgument)
    assert error.details == {"index": 1, "argument": "condition"}
    assert refusal(shelf, on("doc/1"), rules=DOC, conditions=[ExpectedContext(Query(), 2)]).details
    assert seqs(shelf, on("doc/1"), on("doc/1"), rules=DOC, conditions=[holds]) == (3, 4)
    assert seqs(shelf, on("doc/2"), on("doc/2"), on("s/1"), rules=DOC) == (1, 2, 1)
    key = stream_key("t", "doc", "1")
    assert shelf.heads[key] == StreamHead(2, "x")


def test_a_retry_by_key() -> None:
    """C2: the same key with the same content replays, and passes conditions and locks."""
    shelf = Shelf().add(keyed("k", 1, stream=("case", "1")), rules=NO_RULES)
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
        shelf = Shelf().add(NewEvent(**base))
        error = refusal(shelf, NewEvent(**(base | change)))
        assert isinstance(error, IdempotencyConflict)
        assert error.details == {"index": 0, "fields": [field]}


def test_differences_are_all_named() -> None:
    """C2: in the order of the contract, none when all match."""
    shelf = Shelf().add(keyed("k", 1))
    (same,) = request(keyed("k", 1)).events
    (other,) = request(keyed("k", 2, tags=("a",), actor_id="b")).events

    assert differing_fields(shelf.records[0], same) == []
    assert differing_fields(shelf.records[0], other) == ["payload", "actor", "tags"]


def test_ids_and_keys() -> None:
    """C3: a key and an id of two records conflict; one of each, or both of one, do not."""
    shelf = Shelf().add(keyed("a", 1, event_id="e-a")).add(keyed("b", 1, event_id="e-b"))

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
    """C3: with `warn` a known id with other content replays, naming the fields; keys are strict."""
    shelf = Shelf().add(NewEvent("x", {"n": 1}, event_id="e")).add(keyed("k", 1))
    other = NewEvent("x", {"n": 2}, event_id="e", tags=("t",))

    decision = decide(request(other, mismatch="warn"), shelf, NO_RULES)

    assert decision == ReplayedAppend((shelf.records[0],), None, ("payload", "tags"))
    assert refusal(shelf, other).details["fields"] == ["payload", "tags"]
    assert refusal(shelf, keyed("k", 2), mismatch="warn").details["fields"] == ["payload"]


def test_new_ids_are_not_looked_up() -> None:
    """C3: an id made for this append is not looked up."""
    shelf = Shelf().add("x")
    asked = request("x")
    shelf.ids[asked.events[0].event_key] = shelf.records[0]

    assert isinstance(decide(asked, shelf, NO_RULES), AcceptedAppend)


def test_batch_is_replayed_as_a_whole() -> None:
    """C4: all known, in order, from one append; anything else is a conflict."""
    shelf = Shelf().add(keyed("a", 1), keyed("b", 2), keyed("c", 3)).add(keyed("d", 4))

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
    shelf = Shelf().add("w").add("x", "y", command=command)

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


def test_the_order_of_decisions() -> Any:
    """B4: command, reuse, condition, sequence, closing lock."""
    command = Command(actor="a", endpoint="e", key="k", request=1)
    shelf = Shelf().add(on("case/1", "open"), on("case/1", "won"), rules=CASE)
    shelf.add(keyed("k", 1), command=command)
    fails = ExpectedSeq(("case", "1"), 7)
    reused = keyed("k", 2, stream=("case", "1"), stream_seq=9)
    other = msgspec.structs.replace(command, request=2)

    def code(event: Any, **options: Any) -> Any:
        return refusal(shelf, event, rules=CASE, **options).code

    assert code(reused, conditions=[fails], command=other) == "idempotency_key_reuse"
    assert code(reused, conditions=[fails]) == "idempotency_conflict"
    error = refusal(shelf, on("case/1", stream_seq=9), rules=CASE, conditions=[fails])
    assert error.details == {"expected": 7, "actual": 2}
    assert refusal(shelf, on("case/1", stream_seq=9), rules=CASE).details["actual"] == 9
    assert code(on("case/1", "open", stream_seq=3)) == "conflict"


# -- ids that share an index key


def uuid_of(key: bytes) -> str:
    """Return the UUID whose bytes a key is."""
    return str(uuid.UUID(bytes=key))


def test_ids_that_share_a_key_are_two_events() -> None:
    """C3: the stored id is compared, and the second one is stored under its next key."""
    first, second = "order-1", uuid_of(event_key("order-1"))
    shelf = Shelf().add(NewEvent("a", event_id=first)).add(NewEvent("b", event_id=second))

    again = decide(request(NewEvent("b", event_id=second)), shelf, NO_RULES)
    assert isinstance(again, ReplayedAppend)
    assert again.records[0].event_id == second
    assert len(shelf.ids) == 2
    other = decide(request(NewEvent("a", event_id=first)), shelf, NO_RULES)
    assert isinstance(other, ReplayedAppend)
    assert other.records[0].position == 1


def test_ids_that_share_a_key_within_one_append() -> None:
    """C3: each event of a batch gets its own key."""
    second = uuid_of(event_key("order-1"))
    shelf = Shelf().add(NewEvent("a", event_id="order-1"), NewEvent("b", event_id=second))

    assert [id_.event_id for id_ in shelf.ids.values()] == ["order-1", second]


def test_an_id_without_any_key_left() -> None:
    """C3, L2: the eighth collision is reported, and no event is stored wrongly."""
    shelf = Shelf()
    for key in event_keys("order-1"):
        shelf.add(NewEvent("a", event_id=uuid_of(key)))

    with pytest.raises(Conflict, match="all index keys"):
        shelf.add(NewEvent("a", event_id="order-1"))
    assert find_by_id("t", "order-1", shelf.find_by_id) is None


def test_an_id_that_is_stored_is_not_stored_again() -> None:
    """C3, J1: a restore that has an id twice is refused."""
    shelf = Shelf().add(NewEvent("a", event_id="order-1"))
    [event] = request(NewEvent("a", event_id="order-1")).events

    with pytest.raises(Conflict, match="already stored"):
        assign_event_keys([event], shelf.find_by_id)
    with pytest.raises(Conflict, match="already stored"):
        assign_event_keys([event, event], Shelf().find_by_id)
