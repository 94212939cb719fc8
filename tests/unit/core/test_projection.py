"""Declarations of projections, the errors of invalid ones, and upcasters."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import msgspec
import pytest

from seriatim.core.errors import InvalidArgument
from seriatim.core.event import EventRecord
from seriatim.core.projection import (
    Projection,
    Table,
    check_projection,
    frame_projection,
    projection,
)


class State(msgspec.Struct):
    """The state of a fold."""

    count: int = 0


class Opaque:
    """A class that JSON cannot represent."""


def keep_state(state: Any, _event: EventRecord) -> Any:
    """Return the state unchanged."""
    return state


def fold(name: Any = "seats", **changes: object) -> Projection:
    """Declare a fold whose row is its state."""
    options: dict[str, Any] = {"key": "stream_id", "columns": {"taken": bool}, **changes}
    return projection(name, **options)(keep_state)


def fold_with_state(**changes: object) -> Projection:
    """Declare a fold with a separate state."""
    tables = [Table("seats", {"seat": str}, {"taken": bool})]
    options: dict[str, Any] = {"key": "stream_id", "tables": tables, "state": State, **changes}
    return projection("plan", **options)(keep_state)


def frame(**changes: object) -> Projection:
    """Declare a DataFrame projection."""
    options: dict[str, Any] = {
        "key": {"event_type": str, "hour": datetime},
        "columns": {"events": int},
        "merge": {"events": "sum"},
        **changes,
    }
    return frame_projection("activity", **options)(lambda given: given)


def event(payload: dict[str, Any], version: int = 1, event_type: str = "seat.taken") -> EventRecord:
    """Make a record."""
    nothing = dict.fromkeys(EventRecord.__struct_fields__)
    fields = {
        "position": 7,
        "event_type": event_type,
        "event_version": version,
        "payload_json": json.dumps(payload),
        "payload_hash": "sha256:0",
    }
    return EventRecord(**{**nothing, **fields})  # type: ignore[arg-type]


# -- declarations


@pytest.mark.parametrize(
    ("key", "column"),
    [
        ("stream_id", "stream_id"),
        ("stream", "stream"),
        ("tenant_id", "key"),
        ("payload.seat", "key"),
        (lambda event: event.stream_id, "key"),
    ],
)
def test_the_table_of_a_fold_with_columns(key: Any, column: str) -> None:
    """I1: a fold with columns has one table with its name, keyed by its key."""
    (table,) = fold(key=key).tables

    assert (table.name, dict(table.key), dict(table.columns)) == (
        "seats",
        {column: str},
        {"taken": bool},
    )
    assert table.fields == {column: str, "taken": bool}


def test_a_table_is_found_by_its_name() -> None:
    """A table is found by its name; the error of an unknown name lists the tables."""
    made = fold_with_state()

    assert made.table("seats") is made.tables[0]
    with pytest.raises(
        InvalidArgument, match="projection plan has no table 'chairs'; its tables are seats"
    ):
        made.table("chairs")


def test_declaration_text() -> None:
    """I4: the text of a declaration contains everything that a change of it affects."""
    made = fold(
        events=["seat.*"],
        stream_types=iter(["seat"]),
        version=2,
        upcasters={("seat.taken", 2): dict, ("seat.taken", 1): dict},
    )

    assert json.loads(made.declaration) == {
        "version": 2,
        "events": ["seat.*"],
        "stream_types": ["seat"],
        "key": "stream_id",
        "kind": "fold",
        "upcasters": ["seat.taken 1", "seat.taken 2"],
        "tables": [
            {
                "name": "seats",
                "key": [["stream_id", "text"]],
                "columns": [["taken", "boolean"]],
                "keep": "last",
                "merge": {},
            }
        ],
    }


def test_declarations_differ() -> None:
    """I4: every change of a declaration changes its text, except the failure policy."""
    first = Table("seats", {"seat": str}, {"taken": bool}, keep="first")
    several = [
        fold(),
        fold(version=2),
        fold(events=["seat.taken"]),
        fold(stream_types=["seat"]),
        fold(key="actor_id"),
        fold(key=lambda event: event.stream_id),
        fold(columns={"taken": int}),
        fold(columns={"free": bool}),
        fold(upcasters={("seat.taken", 1): dict}),
        fold_with_state(),
        fold_with_state(tables=[first]),
        frame(),
        frame(merge={"events": "max"}),
    ]

    assert len({made.declaration for made in several}) == len(several)
    assert fold(on_failure="park").declaration == fold().declaration


def test_a_separate_state_changes_the_declaration() -> None:
    """I4: a fold that gains a state has another declaration, though its tables are the same."""
    plain = fold("plan", columns={"taken": bool}, key="payload.x")
    stateful = projection("plan", key="payload.x", tables=plain.tables, state=State)(keep_state)

    assert plain.declaration != stateful.declaration


def test_kinds_of_projections() -> None:
    """I1: a projection is a fold or a DataFrame transformation."""
    assert frame().is_frame
    assert not fold().is_frame


@pytest.mark.parametrize(
    "changes",
    [
        {"events": ["*"]},
        {"events": ("seat.reserved", "seat.*", "order.line.*")},
        {"on_failure": "skip"},
        {"key": "payload.order.id"},
        {"columns": {"a": str, "b": int, "c": float, "d": bool, "e": datetime, "f": dict}},
        {"columns": {"select": list, "order": int, "a1_b2": str}},
        {"columns": {}},
        {"name": "a" * 40},
    ],
)
def test_valid_declarations(changes: dict[str, Any]) -> None:
    """I1: declarations at the edge of validity are accepted."""
    assert check_projection(fold(**changes)).tables


@pytest.mark.parametrize("state", [State, dict, dict[str, list[int]], int, State | None])
def test_state_types(state: Any) -> None:
    """I1: a state may be of any type that JSON can represent."""
    assert fold_with_state(state=state).state is state


# -- invalid declarations


def refusal(make: Any, **changes: object) -> str:
    """Return the message that refuses a declaration."""
    with pytest.raises(InvalidArgument) as caught:
        make(**changes)
    assert caught.value.details == {"argument": "projection"}
    return caught.value.message


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "Seats"}, "'Seats' is not a valid name of a table or column"),
        ({"name": "a__b"}, "single underscores"),
        ({"name": "seats_"}, "is not a valid name"),
        ({"name": "1seats"}, "is not a valid name"),
        ({"name": "plätze"}, "is not a valid name"),
        ({"name": "a\n"}, "is not a valid name"),
        ({"name": ""}, "is not a valid name"),
        ({"name": None}, "is not a valid name"),
        ({"name": 'x"; drop table events; --'}, "is not a valid name"),
        ({"name": "a" * 41}, "at most 40"),
        ({"name": "seriatim_failures"}, "names that begin with seriatim or sqlite are reserved"),
        ({"name": "seriatim"}, "are reserved"),
        ({"name": "sqlite_master"}, "are reserved"),
        ({"events": []}, "events must be a list of types"),
        ({"events": "seat.*"}, "events must be a list of types"),
        ({"events": 7}, "events must be a list of types"),
        ({"events": [7]}, "events must be a list of types"),
        ({"events": [""]}, "events must be a list of types"),
        ({"events": ["seat*"]}, "'seat.reserved' or 'seat.*'"),
        ({"events": ["*.taken"]}, "'seat.reserved' or 'seat.*'"),
        ({"events": [".*"]}, "'seat.reserved' or 'seat.*'"),
        ({"events": ["a,b"]}, "events must be a list of types"),
        ({"stream_types": "seat"}, "stream_types must be a list of types"),
        ({"stream_types": []}, "stream_types must be a list of types"),
        ({"stream_types": [""]}, "stream_types must be a list of types"),
        ({"stream_types": ["a,b"]}, "stream_types must be a list of types"),
        ({"on_failure": "ignore"}, "on_failure must be one of stop, park, skip"),
        ({"version": 0}, "version must be a whole number from 1"),
        ({"version": True}, "version must be a whole number from 1"),
        ({"version": "1"}, "version must be a whole number from 1"),
        ({"key": "seat"}, "key 'seat' is not a field of an event: use a field, payload.name"),
        ({"key": "payload"}, "key 'payload' is not a field"),
        ({"key": "payload."}, "key 'payload.' is not a field"),
        ({"key": "tags"}, "key 'tags' is not a field"),
        ({"key": None}, "key None is not a field"),
        ({"key": 5}, "key 5 is not a field"),
        ({"columns": {"position": int}}, "column position is reserved for the read model"),
        ({"columns": {"xmin": int}}, "column xmin is reserved for the read model"),
        ({"columns": {"Taken": bool}}, "'Taken' is not a valid name"),
        (
            {"columns": {"taken": "bool"}},
            "column taken has an unsupported type; use one of str, int",
        ),
        ({"columns": {"taken": bytes}}, "column taken has an unsupported type"),
        ({"columns": {"taken": []}}, "column taken has an unsupported type"),
        ({"columns": {"taken": dict[str, int]}}, "column taken has an unsupported type"),
        ({"columns": {"stream_id": str}}, "table seats needs key columns that are not in columns"),
        ({"columns": None}, "pass either columns, or tables and a state type"),
        ({"state": State}, "pass either columns, or tables and a state type"),
        ({"tables": []}, "pass either columns, or tables and a state type"),
        ({"upcasters": {"seat.taken": dict}}, "upcasters must map (event type, version from 1) to"),
        (
            {"upcasters": {("seat.taken", 0): dict}},
            "upcasters must map (event type, version from 1) to",
        ),
        (
            {"upcasters": {("seat.taken", True): dict}},
            "upcasters must map (event type, version from 1) to",
        ),
        (
            {"upcasters": {("seat.taken", 1): {}}},
            "upcasters must map (event type, version from 1) to",
        ),
    ],
)
def test_invalid_folds_are_refused(changes: dict[str, Any], problem: str) -> None:
    """I1: the error names the projection, the problem and the valid form."""
    message = refusal(fold, **changes)

    assert problem in message
    assert message.startswith(f"projection {changes.get('name', 'seats')!r:.80}")


SEATS = Table("seats", {"seat": str}, {"taken": bool})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tables": []}, "it needs at least one table"),
        ({"tables": [SEATS, SEATS]}, "two tables have the same name"),
        ({"tables": [Table("seats", {}, {"taken": bool})]}, "needs key columns"),
        ({"tables": [Table("seats", {"seat": float}, {})]}, "must be str, int or datetime"),
        ({"tables": [Table("seats", {"seat": dict}, {})]}, "must be str, int or datetime"),
        ({"tables": [Table("seats", {"seat": bool}, {})]}, "must be str, int or datetime"),
        ({"tables": [Table("a__b", {"seat": str}, {})]}, "'a__b' is not a valid name"),
        (
            {"tables": [Table("seats", {"seat": str}, {}, keep="best")]},  # type: ignore[arg-type]
            "keep of table seats must be first or last",
        ),
        (
            {"tables": [Table("seats", {"seat": str}, {"n": int}, merge={"n": "sum"})]},
            "merge is for frame_projection only: a fold aggregates in its state",
        ),
        ({"state": None}, "pass either columns, or tables and a state type"),
        ({"state": Opaque}, "state must be a type that JSON can represent"),
        ({"state": "State"}, "state must be a type that JSON can represent"),
        ({"state": dict[Opaque, int] | list[int] | set[int]}, "JSON can represent"),
    ],
)
def test_invalid_tables_and_states_are_refused(changes: dict[str, Any], problem: str) -> None:
    """I1: invalid tables and states are refused."""
    assert problem in refusal(fold_with_state, **changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"merge": {}}, "merge must have a rule for every column"),
        ({"merge": {"events": "sum", "more": "sum"}}, "merge must have a rule for every column"),
        ({"merge": {"events": "average"}}, "merge rules must be one of sum, min, max"),
        (
            {"columns": {"events": float}},
            "column events has merge rule sum, which requires type int",
        ),
        ({"columns": {"events": str}}, "column events has merge rule sum, which requires type int"),
        ({"columns": {"events": dict}, "merge": {"events": "max"}}, "column events is JSON"),
        ({"key": {}}, "table activity needs key columns"),
    ],
)
def test_invalid_frame_projection_is_refused(changes: dict[str, Any], problem: str) -> None:
    """I1, I3: a DataFrame projection without a merge rule for each column is refused."""
    assert problem in refusal(frame, **changes)


def test_names_longer_than_postgres_allows_are_refused() -> None:
    """I4: a table whose shadow would have a name over 63 bytes is refused."""
    fitting, long = "t" * 14, "t" * 15
    name = "p" * 40

    def declare(table: str) -> Projection:
        return projection(
            name, key="stream_id", tables=[Table(table, {"a": str}, {})], state=State
        )(keep_state)

    assert len(f"{name}_{fitting}__shadow") == 63
    assert declare(fitting).tables
    assert "exceed 55" in refusal(lambda: declare(long))


@pytest.mark.parametrize(
    "made",
    [
        Projection(name="seats", tables=(SEATS,), key="stream_id"),
        Projection(name="seats", tables=(SEATS,), transform=3),  # type: ignore[arg-type]
    ],
)
def test_a_projection_needs_a_function(made: Projection) -> None:
    """I1: a projection without a function is refused."""
    assert "it needs a function" in refusal(lambda: check_projection(made))


@pytest.mark.parametrize(
    "tables",
    [(SEATS, Table("more", {"seat": str}, {})), (Table("seats", {"a": str, "b": str}, {}),)],
)
def test_several_tables_or_keys_need_a_state_type(tables: tuple[Table, ...]) -> None:
    """I1: a fold with several tables or key columns needs a state type."""
    made = Projection(name="seats", tables=tables, key="stream_id", apply=keep_state)

    assert "require a state type" in refusal(lambda: check_projection(made))


# -- upcasters


def test_upcasters_are_chained() -> None:
    """I5: an old event is upcast to the newest version; the newest one is unchanged."""
    made = fold(
        upcasters={
            ("seat.taken", 1): lambda old: {"seat": old["s"]},
            ("seat.taken", 2): lambda old: {**old, "by": None},
        }
    )
    old, newer = made.upcast(event({"s": "1a"})), made.upcast(event({"seat": "1a"}, 2))
    newest = event({"seat": "1a", "by": "x"}, 3)

    assert (old.event_version, old.payload) == (3, {"seat": "1a", "by": None})
    assert (newer.event_version, newer.payload) == (3, {"seat": "1a", "by": None})
    assert made.upcast(newest) is newest
    assert old.position == 7


def test_upcasters_apply_to_their_type() -> None:
    """I5: an upcaster applies to its event type only, and a gap of versions ends the chain."""
    made = fold(upcasters={("seat.taken", 1): dict, ("seat.taken", 3): dict})
    other = event({}, event_type="seat.freed")

    assert made.upcast(other) is other
    assert made.upcast(event({})).event_version == 2


def test_an_upcaster_may_change_its_payload_in_place() -> None:
    """I5: an upcaster that changes its payload in place does not change the event."""

    def change(payload: dict[str, Any]) -> dict[str, Any]:
        payload["seat"] = payload.pop("s")
        return payload

    old = event({"s": "1a"})
    made = fold(upcasters={("seat.taken", 1): change}).upcast(old)

    assert (made.payload, old.payload, old.event_version) == ({"seat": "1a"}, {"s": "1a"}, 1)


@pytest.mark.parametrize("rubbish", [None, [], "{}", 1])
def test_an_upcaster_must_return_a_dict(rubbish: Any) -> None:
    """I5, I7: another result is an error with the event type and version."""
    made = fold(upcasters={("seat.taken", 1): lambda _: rubbish})

    with pytest.raises(
        TypeError, match=r"the upcaster of seat.taken version 1 must return a dict, got"
    ):
        made.upcast(event({}))


def test_an_upcaster_must_return_json() -> None:
    """I5: a result that is not JSON is refused."""
    made = fold(upcasters={("seat.taken", 1): lambda _: {"a": float("nan")}})

    with pytest.raises(Exception, match="NaN"):
        made.upcast(event({}))
