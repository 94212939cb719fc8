"""Stream kinds, event types, and the lookup of declarations."""

from typing import Any

import pytest

from seriatim.core.errors import Conflict, InvalidArgument
from seriatim.core.ids import tag_key
from seriatim.core.indexes import PayloadIndex, StoredIndex, term_key
from seriatim.core.kinds import (
    DEFAULT_STREAM_KIND,
    NO_RULES,
    EventType,
    Rules,
    StreamKind,
    check_event_type,
    check_kind,
    closed_catalogue,
)
from seriatim.profiles.trace_rules import TRACE_STREAM_KIND, TRACE_TYPES


def test_built_in_kinds() -> None:
    """A5: the kinds trace and aggregate have the rules of the contract."""
    assert (
        StreamKind(
            name="trace",
            first_seq=0,
            numbered_by="caller",
            opening_type="TraceStarted",
            closing_types=("TraceFinished",),
            catalogue="closed",
        )
        == TRACE_STREAM_KIND
    )
    assert (
        StreamKind(name="aggregate", first_seq=1, numbered_by="log", catalogue="open")
        == DEFAULT_STREAM_KIND
    )
    for kind in (TRACE_STREAM_KIND, DEFAULT_STREAM_KIND):
        check_kind(kind)


def test_undeclared_kinds() -> None:
    """A8: streams of an undeclared kind follow the rules of aggregate."""
    rules = Rules((StreamKind(name="case", first_seq=0),), ())

    assert rules.kind_of("case").first_seq == 0
    assert rules.kind_of("other") is DEFAULT_STREAM_KIND
    assert NO_RULES.kind_of("trace") is TRACE_STREAM_KIND
    assert NO_RULES.kind_of("Trace") is DEFAULT_STREAM_KIND


def test_declared_kinds_exclude_built_in_ones() -> None:
    """A8: a log stores declared kinds, not built-in ones."""
    doc = StreamKind(name="doc")
    assert Rules((doc, TRACE_STREAM_KIND), ()).declared_kinds == [doc]


def test_versions_of_event_types() -> None:
    """A8: the declared versions of a type are known; an undeclared type has none."""
    rules = Rules((), (EventType(event_type="a"), EventType(event_type="a", event_version=3)), 2)

    assert rules.versions_of("a") == {1, 3}
    assert rules.versions_of("b") == set()
    assert rules.version == 2


def test_known_declarations() -> None:
    """A8: an equal declaration is known, a new one is not, and a changed one conflicts."""
    case = StreamKind(name="case")
    entry = EventType(event_type="a", schema={"type": "object", "title": "A"})
    rules = Rules((case,), (entry,))

    assert rules.has_kind(StreamKind(name="case"))
    assert rules.has_kind(TRACE_STREAM_KIND)
    assert not rules.has_kind(StreamKind(name="other"))
    assert rules.has_type(EventType(event_type="a", schema={"title": "A", "type": "object"}))
    assert not rules.has_type(EventType(event_type="a", event_version=2))
    for other in (StreamKind(name="case", first_seq=0), StreamKind(name="trace")):
        with pytest.raises(Conflict) as caught:
            rules.has_kind(other)
        assert caught.value.details == {"name": other.name}
    for changed in (
        EventType(event_type="a"),
        EventType(event_type="a", schema={"type": "array"}),
        EventType(event_type="a", schema=entry.schema, kind="case"),
    ):
        with pytest.raises(Conflict) as caught:
            rules.has_type(changed)
        assert caught.value.details == {"name": "a v1"}


def test_closed_catalogues() -> None:
    """A5: the catalogue of a closed kind has the types declared for it; trace has its ten."""
    rules = Rules(
        (StreamKind(name="case", catalogue="closed"),),
        (
            EventType(event_type="a", kind="case"),
            EventType(event_type="a", kind="case", event_version=2),
            EventType(event_type="b", kind="case"),
            EventType(event_type="c", kind="other"),
            EventType(event_type="d"),
        ),
    )

    assert sorted(closed_catalogue(rules, rules.kind_of("case"))) == ["a", "b"]
    assert closed_catalogue(rules, TRACE_STREAM_KIND) == TRACE_TYPES


@pytest.mark.parametrize(
    ("fields", "argument"),
    [
        ({"name": ""}, "kind.name"),
        ({"name": None}, "kind.name"),
        ({"opening_type": " x"}, "kind.opening_type"),
        ({"closing_types": ["x"]}, "kind.closing_types"),
        ({"closing_types": ("x", "")}, "kind.closing_types"),
        ({"first_seq": 2}, "kind.first_seq"),
        ({"first_seq": False}, "kind.first_seq"),
        ({"first_seq": 1.0}, "kind.first_seq"),
        ({"numbered_by": "us"}, "kind.numbered_by"),
        ({"catalogue": None}, "kind.catalogue"),
        ({"expected_seq_required": 0}, "kind.expected_seq_required"),
        ({"infrastructure": "no"}, "kind.infrastructure"),
    ],
)
def test_invalid_kinds_are_refused(fields: Any, argument: Any) -> None:
    """A8: an invalid kind is refused with the field."""
    with pytest.raises(InvalidArgument) as caught:
        check_kind(StreamKind(**({"name": "k"} | fields)))
    assert caught.value.details == {"argument": argument}


@pytest.mark.parametrize(
    ("fields", "argument"),
    [
        ({"event_type": ""}, "event_type"),
        ({"event_version": 0}, "event_version"),
        ({"event_version": True}, "event_version"),
        ({"event_version": 2**31}, "event_version"),
        ({"kind": ""}, "kind"),
        ({"kind": "trace"}, "kind"),
        ({"schema": {"title": "\0"}}, "schema"),
        ({"schema": {"minimum": float("nan")}}, "schema"),
    ],
)
def test_invalid_event_types_are_refused(fields: Any, argument: Any) -> None:
    """A8: an invalid event type is refused with the field."""
    with pytest.raises(InvalidArgument) as caught:
        check_event_type(EventType(**({"event_type": "x"} | fields)))
    assert caught.value.details == {"argument": argument}


def test_valid_event_types_are_accepted() -> None:
    """A8: event types at the edge of validity are accepted."""
    good: list[dict[str, Any]] = [
        {},
        {"event_version": 2**31 - 1},
        {"kind": "case"},
        {"schema": {}},
    ]
    for fields in good:
        check_event_type(EventType(event_type="x", **fields))


def test_known_payload_indexes() -> None:
    """A8: a declared path is known in any spelling; other paths and types are not."""
    rules = Rules((), (), 2, (StoredIndex("a", "x.y"), StoredIndex("a", "z[]", 5)))

    assert rules.has_index(PayloadIndex("a", "x.y"))
    assert rules.has_index(PayloadIndex("a", '["x"]["y"]'))
    assert not rules.has_index(PayloadIndex("a", "x"))
    assert not rules.has_index(PayloadIndex("b", "x.y"))
    assert [path.since for path in rules.indexed_paths["a"]] == [0, 5]


def test_index_keys_of_stored_events() -> None:
    """A8: a stored event has the keys of its tags and of the paths declared before it."""
    rules = Rules((), (), 2, (StoredIndex("a", "x"), StoredIndex("a", "z[]", 5)))
    x, z = term_key("t", "a", "x", 1), term_key("t", "a", "z[]", 2)
    payload = '{"x":1,"z":[2]}'

    assert rules.row_index_keys((6, "t", "a", '["p","p"]', payload)) == (tag_key("t", "p"), x, z)
    assert rules.row_index_keys((5, "t", "a", None, payload)) == (x,)
    assert rules.row_index_keys((6, "t", "b", None, payload)) == ()
    assert rules.row_index_keys((6, "t", "a", '["p"]', "{broken")) == (tag_key("t", "p"),)
    assert rules.row_index_keys((6, "t", "a", None, None)) == ()
