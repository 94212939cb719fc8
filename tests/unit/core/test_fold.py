"""Folds: equal results for any batch size, refusal of invalid values, failure policies."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seriatim.core.event import EventRecord
from seriatim.core.fold import Fold, ReadModelRow, RowDigest, RowFormat, RowHasher, TenantKey
from seriatim.core.projection import Projection, Table, projection

OWNER = ("default", "1a")


def event(
    position: int, payload: dict[str, Any] | None = None, *, tenant: str = "default"
) -> EventRecord:
    """Make a record."""
    nothing = dict.fromkeys(EventRecord.__struct_fields__)
    fields = {
        "position": position,
        "event_id": f"e{position}",
        "tenant_id": tenant,
        "event_type": "seat.changed",
        "event_version": 1,
        "payload_json": json.dumps(payload or {}),
    }
    return EventRecord(**{**nothing, **fields})  # type: ignore[arg-type]


def seats(apply: Any, **changes: Any) -> Projection:
    """Declare a fold whose row is its state."""
    columns = {"count": int, "notes": dict, "names": list}
    return projection("seats", **{"key": "stream_id", "columns": columns, **changes})(apply)


class State(msgspec.Struct):
    """The state of a fold."""

    count: int = 0
    seen: list[int] = []


TABLES = [
    Table("firsts", {"name": str}, {"at": int}, keep="first"),
    Table("lasts", {"name": str}, {"at": int}),
]


def with_state(apply: Any, **changes: Any) -> Projection:
    """Declare a fold with a separate state."""
    options = {"key": "stream_id", "tables": TABLES, "state": State, **changes}
    return projection("plan", **options)(apply)


def count_events(state: dict[str, Any] | None, event: EventRecord) -> dict[str, Any] | None:
    """Change the given row in place as the event says."""
    changes = event.payload
    row = state or {"count": 0, "notes": {}, "names": []}
    row["count"] += 1
    row["notes"][changes.get("note", "none")] = event.position
    row["names"].append(event.event_id)
    if changes.get("raise"):
        msg = "as declared"
        raise RuntimeError(msg)
    return None if changes.get("gone") else row


def note_names(state: State | None, event: EventRecord) -> tuple[State, dict[str, Any]]:
    """Change the given state in place as the event says."""
    changes = event.payload
    state = state or State(seen=[])
    state.count += 1
    state.seen.append(event.position)
    rows = [{"name": name, "at": event.position * 1000 + state.count} for name in changes["names"]]
    if changes.get("raise"):
        msg = "as declared"
        raise RuntimeError(msg)
    return state, {"firsts": rows, "lasts": rows}


def fold_events(made: Projection, *events: tuple[str, EventRecord], **options: Any) -> Fold:
    """Fold events in one batch."""
    fold = Fold(made, **options)
    for key, one in events:
        fold.add(key, one)
    return fold


# -- the state is the row


def test_a_fold_gets_its_last_row() -> None:
    """I1: a fold gets the row that it returned last, with its key."""
    fold = fold_events(seats(count_events), ("1a", event(1)), ("1b", event(2)), ("1a", event(5)))

    assert fold.states[OWNER] == {
        "stream_id": "1a",
        "count": 2,
        "notes": '{"none":5}',
        "names": '["e1","e5"]',
    }
    assert fold.changed == {OWNER: 5, ("default", "1b"): 2}
    assert dict(fold.state_rows())[OWNER] == ReadModelRow("default", 5, fold.states[OWNER])
    assert fold.failures == []


def test_tenants_are_isolated() -> None:
    """K1: the same key of two tenants has two states."""
    fold = fold_events(seats(count_events), ("1a", event(1)), ("1a", event(2, tenant="other")))

    assert [fold.states[owner]["count"] for owner in fold.changed] == [1, 1]
    assert [kept.tenant_id for _, kept in fold.state_rows()] == ["default", "other"]


def test_none_deletes_the_row() -> None:
    """I1: a fold that returns None deletes the row; the next event finds none."""
    fold = fold_events(seats(count_events), ("1a", event(1)), ("1a", event(2, {"gone": True})))

    assert list(fold.state_rows()) == [(OWNER, ReadModelRow("default", 2, None))]
    fold.add("1a", event(3))
    assert fold.states[OWNER]["count"] == 1


def test_null_columns() -> None:
    """A null column of a row is None in the fold."""
    given_rows: list[Any] = []

    def empty(state: Any, _event: EventRecord) -> Any:
        given_rows.append(state)
        return {"count": None, "notes": None, "names": None}

    fold = fold_events(seats(empty), ("1a", event(1)), ("1a", event(2)))

    assert given_rows[1] == {"stream_id": "1a", "count": None, "notes": None, "names": None}
    assert fold.failures == []


def test_a_failed_event_does_not_change_the_row() -> None:
    """I7: a row that the fold changed in place before it raised is restored."""
    made = seats(count_events, on_failure="skip")
    fold = fold_events(
        made, ("1a", event(1)), ("1a", event(2, {"raise": True, "note": "x"})), ("1a", event(3))
    )

    assert fold.states[OWNER] == {
        "stream_id": "1a",
        "count": 2,
        "notes": '{"none":3}',
        "names": '["e1","e3"]',
    }


ROW = {"count": 1, "notes": {}, "names": []}


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (7, "TypeError: a row must be a dict, got int"),
        ([], "TypeError: a row must be a dict, got list"),
        (False, "TypeError: a row must be a dict, got bool"),
        ({}, "ValueError: the row lacks count, notes, names"),
        ({**ROW, "more": 1}, "ValueError: the row has the undeclared more"),
        (
            {"count": 1, "notes": {}, 5: 1},
            "ValueError: the row lacks names and has the undeclared 5",
        ),
        ({**ROW, "count": "1"}, "TypeError: column count: expected a 64-bit int, got str"),
        ({**ROW, "count": 1 << 63}, "TypeError: column count: expected a 64-bit int, got int"),
        ({**ROW, "notes": []}, "TypeError: column notes: expected a dict, got list"),
        ({**ROW, "notes": {"a": {1}}}, "ValueError: column notes: $.a: set is not a JSON type"),
        (
            {**ROW, "names": ["\ud800"]},
            "ValueError: column names: $[0]: text must not contain lone",
        ),
        (
            {**ROW, "stream_id": "1b"},
            "ValueError: column stream_id is the key, which a fold cannot",
        ),
        (
            {**ROW, "stream_id": None},
            "ValueError: column stream_id is the key, which a fold cannot",
        ),
    ],
)
def test_invalid_rows_are_refused(returned: Any, reason: str) -> None:
    """I7: an invalid row is a failure of its event, with the reason."""
    (failure,) = fold_events(seats(lambda *_: returned), ("1a", event(4))).failures

    assert failure.reason.startswith(reason)
    assert (failure.tenant_id, failure.key) == OWNER
    assert (failure.position, failure.event_id, failure.event_type) == (4, "e4", "seat.changed")


def test_too_deep_json_names_its_column() -> None:
    """I7: a column over a limit is a failure that names the column."""
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    (failure,) = fold_events(seats(lambda *_: {**ROW, "names": deep}), ("1a", event(1))).failures

    assert failure.reason.startswith("ValueError: column names: ")


def test_a_row_without_columns_may_be_empty() -> None:
    """A fold of a table without value columns returns an empty row."""
    fold = fold_events(seats(lambda *_: {}, columns={}), ("1a", event(1)))

    assert fold.states == {OWNER: {"stream_id": "1a"}}


@pytest.mark.parametrize(("key", "fits"), [("ü" * 1000, True), ("ü" * 1000 + "x", False)])
@pytest.mark.parametrize("made", [seats(count_events), with_state(lambda s, _: (s or State(), {}))])
def test_keys_are_bounded_in_bytes(key: str, fits: bool, made: Projection) -> None:
    """I7: a key that is too long for an index of Postgres is a failure of its event."""
    fold = fold_events(made, (key, event(1)))

    assert (not fold.failures) is fits
    if not fits:
        assert fold.failures[0].reason == "ValueError: the key is longer than 2000 bytes"


# -- a separate state, and rows


def test_rows_of_a_fold_with_a_state() -> None:
    """I1: a table keeps the first or last row of a key, as declared."""
    fold = fold_events(
        with_state(note_names),
        ("1a", event(1, {"names": ["x", "y"]})),
        ("1b", event(2, {"names": ["x"]})),
        ("1a", event(3, {"names": ["x"]})),
    )

    assert {place[1]: kept.position for place, kept in fold.rows["firsts"].items()} == {
        "x": 1,
        "y": 1,
    }
    assert {place[1]: kept.row for place, kept in fold.rows["lasts"].items()} == {
        "x": {"name": "x", "at": 3002},
        "y": {"name": "y", "at": 1001},
    }
    assert msgspec.json.decode(fold.states[OWNER]) == {"count": 2, "seen": [1, 3]}


def test_two_rows_of_one_event() -> None:
    """I1: of two rows of one event a table keeps the first or the last, as declared."""

    def twice(_state: Any, _event: EventRecord) -> Any:
        rows = [{"name": "x", "at": 1}, {"name": "x", "at": 2}]
        return State(), {"firsts": rows, "lasts": iter(rows)}

    fold = fold_events(with_state(twice), ("1a", event(1)))
    found = {name: [kept.row for kept in rows.values()] for name, rows in fold.rows.items()}

    assert found == {"firsts": [{"name": "x", "at": 1}], "lasts": [{"name": "x", "at": 2}]}


def test_rows_are_scoped_by_tenant() -> None:
    """K1: rows with one key of two tenants are two rows."""
    fold = fold_events(
        with_state(note_names),
        ("1a", event(1, {"names": ["x"]})),
        ("1a", event(2, {"names": ["x"]}, tenant="other")),
    )

    assert set(fold.rows["firsts"]) == {("default", "x"), ("other", "x")}


def test_a_new_batch_keeps_states_but_no_changes() -> None:
    """I1: a fold that continues with a new batch reports only the changes of that batch."""
    fold = fold_events(
        with_state(note_names, on_failure="park"),
        ("1a", event(1, {"names": ["x"]})),
        ("1b", event(2, {"names": [], "raise": True})),
    )
    first_rows = fold.rows["lasts"]
    fold.begin_batch()
    fold.add("1b", event(3, {"names": ["z"]}))
    fold.add("1a", event(4, {"names": ["y"]}))

    assert [place[1] for place in first_rows] == ["x"]
    assert [place[1] for place in fold.rows["lasts"]] == ["y"]
    assert (fold.changed, fold.failures) == ({OWNER: 4}, [])
    assert msgspec.json.decode(fold.states[OWNER]) == {"count": 2, "seen": [1, 4]}


def test_a_failed_event_does_not_change_state_and_rows() -> None:
    """I7: a state that the fold changed in place before it raised is restored."""
    fold = fold_events(
        with_state(note_names, on_failure="skip"),
        ("1a", event(1, {"names": []})),
        ("1a", event(2, {"names": ["x"], "raise": True})),
        ("1a", event(3, {"names": ["y"]})),
    )

    assert msgspec.json.decode(fold.states[OWNER]) == {"count": 2, "seen": [1, 3]}
    assert [place[1] for place in fold.rows["lasts"]] == ["y"]


class Odd:
    """Nothing that JSON has."""


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (None, "the fold must return (state, {table: [rows]})"),
        (State(), "the fold must return (state, {table: [rows]})"),
        ((State(),), "the fold must return (state, {table: [rows]})"),
        ((State(), {}, {}), "the fold must return (state, {table: [rows]})"),
        ("ab", "the fold must return (state, {table: [rows]})"),
        ((State(), None), "the fold must return (state, {table: [rows]})"),
        ((State(), []), "the fold must return (state, {table: [rows]})"),
        ((State(), {"lasts": 5}), "the fold must return (state, {table: [rows]})"),
        (
            (State(), {"lasts": {"name": "x", "at": 1}}),
            "the fold must return (state, {table: [rows]})",
        ),
        ((State(), {"lasts": "x"}), "the fold must return (state, {table: [rows]})"),
        ((State(), {"lasts": [5]}), "a row must be a dict, got int"),
        ((State(), {"lasts": [None]}), "a row must be a dict, got NoneType"),
        ((State(), {"lasts": [{"name": "x"}]}), "the row lacks at"),
        ((State(), {"lasts": [{"name": None, "at": 1}]}), "the key columns name must have a value"),
        ((State(), {"lasts": [{"name": "x" * 2001, "at": 1}]}), "the key is longer than 2000"),
        ((State(), {"others": [{}]}), "the fold wrote to the undeclared table 'others'"),
        ((None, {}), "the state cannot be restored from JSON as its declared type"),
        ((5, {}), "the state cannot be restored from JSON as its declared type"),
        ((Odd(), {}), "the state cannot be restored from JSON as its declared type"),
        ((State(count="1"), {}), "Expected `int`, got `str` - at `$.count`"),  # type: ignore[arg-type]
        ((State(seen=[Odd()]), {}), "cannot be restored from JSON"),  # type: ignore[list-item]
        ((State(count=float("nan")), {}), "Expected `int`, got `null`"),  # type: ignore[arg-type]
    ],
)
def test_invalid_states_are_refused(returned: Any, reason: str) -> None:
    """I7: a state that cannot be restored from JSON is a failure of its event."""
    fold = fold_events(with_state(lambda *_: returned), ("1a", event(4)))

    assert reason in fold.failures[0].reason
    assert (fold.states, fold.changed) == ({}, {})
    assert not any(fold.rows.values())


def test_error_while_generating_rows_is_reported() -> None:
    """I7: an error of a generator of rows is the reason of the failure."""

    def rows() -> Any:
        yield {"name": "x", "at": 1}
        msg = "no such seat"
        raise TypeError(msg)

    (failure,) = fold_events(
        with_state(lambda *_: (State(), {"lasts": rows()})), ("1a", event(1))
    ).failures

    assert failure.reason == "TypeError: no such seat"


def test_states_of_plain_types() -> None:
    """I1: a state of a plain type is passed to the next event as JSON restores it."""
    states: list[Any] = []

    def keep(state: Any, event: EventRecord) -> Any:
        states.append(state)
        return {"last": (event.position, 1.0)}, {}

    fold_events(with_state(keep, state=dict[str, Any]), ("1a", event(1)), ("1a", event(2)))

    assert states == [None, {"last": [1, 1.0]}]


def test_states_outside_the_cache_are_loaded() -> None:
    """I1: a state that is no longer cached is restored from its stored form."""
    keys = [str(number) for number in range(10_001)]
    fold = Fold(with_state(note_names))
    for turn in range(2):
        for number, key in enumerate(keys):
            fold.add(key, event(turn * 20_000 + number + 1, {"names": []}))

    assert all(
        msgspec.json.decode(fold.states["default", key])["seen"] == [number + 1, number + 20_001]
        for number, key in enumerate(keys)
    )


# -- failures


def fold_with_failure(policy: Literal["stop", "park", "skip"], **options: object) -> Fold:
    """Fold five events of two keys, the second of which fails."""
    made = seats(count_events, on_failure=policy)
    return fold_events(
        made,
        ("1a", event(1)),
        ("1a", event(2, {"raise": True})),
        ("1b", event(3)),
        ("1a", event(4)),
        ("1b", event(5)),
        **options,
    )


@pytest.mark.parametrize(
    ("policy", "changed"),
    [("stop", {"1a": 1}), ("park", {"1a": 1, "1b": 5}), ("skip", {"1a": 4, "1b": 5})],
)
def test_failure_policies(policy: Any, changed: dict[str, int]) -> None:
    """I7: after a failure a fold stops, parks the key or skips the event, as declared."""
    fold = fold_with_failure(policy)

    assert {key: position for (_, key), position in fold.changed.items()} == changed
    assert [failure.position for failure in fold.failures] == [2]
    assert fold.failures[0].reason == "RuntimeError: as declared"
    assert (fold.stopped, fold.parked) == (policy == "stop", {OWNER} if policy == "park" else set())


def test_parked_keys_apply_no_events() -> None:
    """I7: events of a parked key are not folded; other tenants' events of the key are."""
    fold = fold_events(
        seats(count_events, on_failure="park"),
        ("1a", event(1)),
        ("1a", event(2, tenant="other")),
        parked=[OWNER],
    )

    assert list(fold.changed) == [("other", "1a")]
    assert fold.failures == []


def test_skipped_positions_are_skipped() -> None:
    """I7: an event at a skipped position does not fail, under any policy."""
    fold = fold_with_failure("stop", skipped=[2])

    assert {key: position for (_, key), position in fold.changed.items()} == {"1a": 4, "1b": 5}
    assert (fold.failures, fold.stopped) == ([], False)


def test_failures_without_a_key_can_be_skipped() -> None:
    """I7: an event without a key can be skipped, and after a stop no failure is recorded."""
    fold = Fold(seats(count_events), skipped=[1])
    for position in (1, 2, 3):
        fold.record_failure(("default", ""), event(position), ValueError("no key"))

    assert [failure.position for failure in fold.failures] == [2]


class Mute(Exception):  # noqa: N818 - a user's own
    """An error whose text raises."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("x" * 1000), "ValueError: " + "x" * 488),
        (ValueError("a\0b"), "ValueError: a\\x00b"),
        (ValueError("a\ud800b"), "ValueError: a\\ud800b"),
        (ValueError("ü"), "ValueError: ü"),
        (Mute(), "Mute: message not available"),
        (KeyError("seat"), "KeyError: 'seat'"),
    ],
)
def test_reasons_can_be_stored(error: Exception, reason: str) -> None:
    """I7: every error message is stored in a form that databases accept."""
    fold = Fold(seats(count_events))
    fold.record_failure(OWNER, event(1), error)

    assert fold.failures[0].reason == reason


def test_reasons_are_bounded_after_escaping() -> None:
    """I7: a reason has at most 500 characters, also if all of them are escaped."""
    fold = Fold(seats(count_events))
    fold.record_failure(OWNER, event(1), ValueError("\0" * 1000))

    assert len(fold.failures[0].reason) == 500


def test_a_failing_upcaster_is_a_failure_of_the_event() -> None:
    """I5, I7: a failing upcaster is a failure of its event."""
    made = seats(count_events, on_failure="skip", upcasters={("seat.changed", 1): lambda _: None})
    fold = fold_events(made, ("1a", event(1)))

    assert fold.failures[0].reason.startswith("TypeError: the upcaster of seat.changed version 1")


def test_folds_see_the_newest_version() -> None:
    """I5: a fold gets the payload that the upcasters return."""
    made = seats(count_events, upcasters={("seat.changed", 1): lambda old: {"note": old["n"]}})
    fold = fold_events(made, ("1a", event(1, {"n": "x"})))

    assert fold.states[OWNER]["notes"] == '{"x":1}'


# -- batches of any size

PAYLOADS = st.fixed_dictionaries(
    {"names": st.lists(st.sampled_from("xyz"), max_size=3)},
    optional={"raise": st.just(True), "gone": st.just(True), "note": st.sampled_from("pq")},
)
EVENTS = st.lists(st.tuples(st.sampled_from(["1a", "1b", "1c"]), PAYLOADS), max_size=25)


def fold_in_batches(made: Projection, events: list[tuple[str, Any]], ends: list[int]) -> Any:
    """Fold in batches, passing states and rows between them as a database does."""
    states: dict[TenantKey, Any] = {}
    tables: dict[str, dict[Any, ReadModelRow]] = {table.name: {} for table in made.tables}
    parked: set[TenantKey] = set()
    failures: list[int] = []
    for start, end in zip([0, *ends], [*ends, len(events)], strict=True):
        fold = Fold(made, parked=parked)
        fold.states = {owner: state for owner, state in states.items() if state is not None}
        for number in range(start, end):
            key, payload = events[number]
            fold.add(key, event(number + 1, payload))
        states |= {owner: fold.states[owner] for owner in fold.changed}
        parked, failures = fold.parked, failures + [failure.position for failure in fold.failures]
        for name, rows in fold.rows.items():
            first = made.table(name).keep == "first"
            for place, kept in rows.items():
                if not (first and place in tables[name]):
                    tables[name][place] = kept
    return {o: s for o, s in states.items() if s is not None}, tables, failures


@pytest.mark.parametrize("policy", ["park", "skip"])
@given(events=EVENTS, cuts=st.sets(st.integers(0, 25)))
def test_results_do_not_depend_on_batch_sizes(policy: Any, events: Any, cuts: set[int]) -> None:
    """I3: rows and failures of a key do not depend on the batches."""
    ends = sorted(cut for cut in cuts if cut <= len(events))
    for made in (seats(count_events, on_failure=policy), with_state(note_names, on_failure=policy)):
        assert fold_in_batches(made, events, ends) == fold_in_batches(made, events, [])


@given(events=EVENTS, seed=st.integers(0, 1000))
def test_events_of_each_key_are_folded_in_order(events: Any, seed: int) -> None:
    """I8: folding all events equals folding those of each key separately."""
    made = seats(count_events, on_failure="park")
    together = fold_events(
        made, *((key, event(n + 1, payload)) for n, (key, payload) in enumerate(events))
    )
    separate = [
        fold_events(
            made, *((k, event(n + 1, payload)) for n, (k, payload) in enumerate(events) if k == key)
        ).states
        for key in random.Random(seed).sample(["1a", "1b", "1c"], 3)
    ]

    assert {owner: state for part in separate for owner, state in part.items()} == together.states


# -- digests

WIDE = Table(
    "wide",
    {"key": str, "n": int, "at": datetime},
    {"flag": bool, "size": float, "more": dict},
)
WIDE_ROW: dict[str, Any] = {
    "key": "a",
    "n": 1,
    "at": datetime(2026, 1, 1, tzinfo=UTC),
    "flag": True,
    "size": 1.0,
    "more": {"a": 1},
}


def digest_of(*rows: dict[str, Any], table: Table = WIDE, tenant: str = "default") -> str:
    """Return the digest of rows in this order."""
    digest, shape = RowDigest(), RowFormat(table)
    for row in rows:
        digest.add(table, tenant, shape.normalize(row))
    assert digest.count == len(rows)
    return digest.text()


def test_digests_depend_on_every_value() -> None:
    """I3: a digest changes with any value, the tenant, the table and the rows."""
    changes: list[dict[str, Any]] = [
        {"key": "b"},
        {"n": 2},
        {"at": datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)},
        {"flag": False},
        {"flag": None},
        {"size": 1.0000000000000002},
        {"size": None},
        {"more": {"a": 1.0}},
        {"more": {}},
        {"more": None},
    ]
    renamed = msgspec.structs.replace(WIDE, name="other")
    digests = [digest_of(), digest_of(WIDE_ROW), digest_of(WIDE_ROW, WIDE_ROW)]
    digests += [digest_of(WIDE_ROW | change) for change in changes]
    digests += [digest_of(WIDE_ROW, tenant="other"), digest_of(WIDE_ROW, table=renamed)]

    assert len(set(digests)) == len(digests)
    assert digests[0] == "sum-sha256:" + "0" * 64


def test_digest_distinguishes_columns() -> None:
    """I3: the same value in another column has another digest."""
    table = Table("t", {"k": str}, {"a": str, "b": str})
    one, other = {"k": "k", "a": "x", "b": None}, {"k": "k", "a": None, "b": "x"}

    assert digest_of(one, table=table) != digest_of(other, table=table)


@given(st.permutations(range(6)))
def test_digest_does_not_depend_on_row_order(order: list[int]) -> None:
    """I3: the digest of rows does not depend on their order."""
    rows = [WIDE_ROW | {"n": n} for n in range(6)]

    assert digest_of(*(rows[n] for n in order)) == digest_of(*rows)


def test_digest_has_a_known_value() -> None:
    """I3: the digest sums the sha256 of each row, as of `["t","default",{"k":"a","v":1}]`."""
    table = Table("t", {"k": str}, {"v": int})

    assert RowHasher(table)("default", {"k": "a", "v": 1}) == int(
        "9872e73b24b0c0792bc3f5a108d100be46c1bf6dbb4067ad2070f4525f6cb41c", 16
    )


def test_a_copy_is_independent() -> None:
    """I3: a fold and its copy continue from the same state, and do not affect each other."""

    def count(state: State | None, event: EventRecord) -> Any:
        if event.position == 2:
            raise ValueError
        state = state or State()
        state.seen.append(event.position)
        return state, {"lasts": [{"name": "n", "at": event.position}]}

    declared = with_state(count, on_failure="skip")
    fold = Fold(declared, parked=[("default", "parked")], skipped=[9])
    for position in (1, 2):
        fold.add("1a", event(position))
    copy = fold.copy()
    states, rows = dict(fold.states), {table: dict(found) for table, found in fold.rows.items()}
    copy.add("1a", event(3))
    copy.add("parked", event(4))
    copy.add("1a", event(9))

    assert (fold.states, fold.rows, len(fold.failures)) == (states, rows, 1)
    assert fold.changed == {OWNER: 1}
    assert copy.changed == {OWNER: 3}
    assert copy.states == {OWNER: '{"count":0,"seen":[1,3]}'}
    assert len(copy.failures) == 1
