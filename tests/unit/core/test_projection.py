"""Declarations of projections, their refusals, and upcasters."""

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
    """What JSON cannot hold."""


def same(state: Any, _event: EventRecord) -> Any:
    """Change nothing."""
    return state


def fold(name: Any = "seats", **changes: Any) -> Projection:
    """Declare a fold whose row is its state."""
    options: dict[str, Any] = {"key": "stream_id", "columns": {"taken": bool}, **changes}
    return projection(name, **options)(same)


def fold_with_state(**changes: Any) -> Projection:
    """Declare a fold with a state of its own."""
    tables = [Table("seats", {"seat": str}, {"taken": bool})]
    options: dict[str, Any] = {"key": "stream_id", "tables": tables, "state": State, **changes}
    return projection("plan", **options)(same)


def frame(**changes: Any) -> Projection:
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


# -- what a declaration makes


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
def test_the_only_table_has_the_key_of_its_rows(key: Any, column: str) -> None:
    """I1: with columns alone, the table is named as the projection and keyed by its key."""
    (table,) = fold(key=key).tables

    assert (table.name, dict(table.key), dict(table.columns)) == (
        "seats",
        {column: str},
        {"taken": bool},
    )
    assert table.fields == {column: str, "taken": bool}


def test_a_table_is_found_by_its_name() -> None:
    """Names are the projection's own; an unknown one is answered with those that are there."""
    made = fold_with_state()

    assert made.table("seats") is made.tables[0]
    with pytest.raises(
        InvalidArgument, match="projection plan has no table 'chairs'; its tables are seats"
    ):
        made.table("chairs")


def test_declaration_text() -> None:
    """I4: the text by which a changed declaration is known."""
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


def test_every_change_of_a_declaration_is_seen() -> None:
    """I4: no two of these have the same text; what may change freely is the policy."""
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


def test_a_fold_with_a_state_is_another_kind() -> None:
    """I4: one that gains a state needs other tables, though its own look the same."""
    plain = fold("plan", columns={"taken": bool}, key="payload.x")
    stateful = projection("plan", key="payload.x", tables=plain.tables, state=State)(same)

    assert plain.declaration != stateful.declaration


def test_kinds() -> None:
    """I1: a fold or a DataFrame transformation."""
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
    """I1: all of this is fine."""
    assert check_projection(fold(**changes)).tables


@pytest.mark.parametrize("state", [State, dict, dict[str, list[int]], int, State | None])
def test_states_that_json_holds(state: Any) -> None:
    """I1: a state is of any type that comes back from JSON."""
    assert fold_with_state(state=state).state is state


# -- what is refused


def refusal(make: Any, **changes: Any) -> str:
    """Return why a declaration is refused."""
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
def test_a_wrong_fold_is_refused(changes: dict[str, Any], problem: str) -> None:
    """I1: the error names the projection, the problem and the valid form."""
    said = refusal(fold, **changes)

    assert problem in said
    assert said.startswith(f"projection {changes.get('name', 'seats')!r:.80}")


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
def test_wrong_tables_are_refused(changes: dict[str, Any], problem: str) -> None:
    """I1: so are wrong tables and states."""
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
    """I1, I3: a frame whose result depends on the order of merges is refused."""
    assert problem in refusal(frame, **changes)


def test_a_name_that_postgres_would_cut_is_refused() -> None:
    """I4: cut at 63 bytes, a table and its shadow would have one name."""
    fitting, long = "t" * 14, "t" * 15
    name = "p" * 40

    def declare(table: str) -> Projection:
        return projection(
            name, key="stream_id", tables=[Table(table, {"a": str}, {})], state=State
        )(same)

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
def test_a_projection_needs_code(made: Projection) -> None:
    """I1: nothing runs without a function."""
    assert "it needs a function" in refusal(lambda: check_projection(made))


@pytest.mark.parametrize(
    "tables",
    [(SEATS, Table("more", {"seat": str}, {})), (Table("seats", {"a": str, "b": str}, {}),)],
)
def test_a_row_that_is_the_state_has_one_table_and_one_key(tables: tuple[Table, ...]) -> None:
    """I1: everything else needs a state."""
    made = Projection(name="seats", tables=tables, key="stream_id", apply=same)

    assert "require a state type" in refusal(lambda: check_projection(made))


# -- upcasters


def test_upcasters_lead_from_version_to_version() -> None:
    """I5: an old event comes in the newest form, one that is newest as it is."""
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


def test_upcasters_are_of_their_type() -> None:
    """I5: another type of the same version stays as it is; a gap ends the chain."""
    made = fold(upcasters={("seat.taken", 1): dict, ("seat.taken", 3): dict})
    other = event({}, event_type="seat.freed")

    assert made.upcast(other) is other
    assert made.upcast(event({})).event_version == 2


def test_an_upcaster_may_change_its_payload_in_place() -> None:
    """I5: an upcaster gets a copy of the payload; the event is unchanged."""

    def change(payload: dict[str, Any]) -> dict[str, Any]:
        payload["seat"] = payload.pop("s")
        return payload

    old = event({"s": "1a"})
    made = fold(upcasters={("seat.taken", 1): change}).upcast(old)

    assert (made.payload, old.payload, old.event_version) == ({"seat": "1a"}, {"s": "1a"}, 1)


@pytest.mark.parametrize("rubbish", [None, [], "{}", 1])
def test_an_upcaster_returns_a_payload(rubbish: Any) -> None:
    """I5, I7: anything else is the event's failure, reported with type and version."""
    made = fold(upcasters={("seat.taken", 1): lambda _: rubbish})

    with pytest.raises(
        TypeError, match=r"the upcaster of seat.taken version 1 must return a dict, got"
    ):
        made.upcast(event({}))


def test_an_upcaster_returns_json() -> None:
    """I5: a result that is no JSON is refused, not converted to null."""
    made = fold(upcasters={("seat.taken", 1): lambda _: {"a": float("nan")}})

    with pytest.raises(Exception, match="NaN"):
        made.upcast(event({}))
