"""Queries: their shape, their dictionary form, and the matcher."""

from typing import Any

import msgspec
import pytest

from seriatim.core.canonical import canonical_text
from seriatim.core.errors import InvalidArgument, InvalidQuery, LimitExceeded
from seriatim.core.limits import Limits
from seriatim.core.predicate import PayloadDocument
from seriatim.core.query import (
    MATCH_ALL,
    Filter,
    Matcher,
    Query,
    check_context_version,
    check_query,
    matches,
    matches_json,
)
from tests.unit.core.test_event import RECORD

_query: Any = Query  # for values that its types forbid
_filter: Any = Filter


def record(**fields: object) -> Any:
    """Make a record; `payload` is given as a value."""
    if "payload" in fields:
        fields["payload"] = canonical_text(fields["payload"])
    return msgspec.structs.replace(RECORD, **fields)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (None, True),
        ([], True),
        ([Filter()], True),
        ([Filter(types=["x"])], True),
        ([Filter(types=["y", "x"])], True),
        ([Filter(types=["y"])], False),
        ([Filter(types=[])], False),
        ([Filter(payload=[])], False),
        ([Filter(tags=[])], False),
        ([Filter(streams=[])], False),
        ([Filter(tags=["t"])], True),
        ([Filter(tags=["t", "u"])], False),
        ([Filter(streams=[("s", "2"), ("s", "1")])], True),
        ([Filter(streams=[("s", "2")])], False),
        ([Filter(payload=[{"n": [2]}, {"n": [1]}])], True),
        ([Filter(payload=[{"n": [2]}])], False),
        ([Filter(types=["x"], payload=[{"n": [2]}])], False),
        ([Filter(types=["y"], payload=[{}])], False),
        ([Filter(types=["x"], tags=["t"], streams=[("s", "1")], payload=[{}])], True),
        ([Filter(types=["x"], tags=["t"], streams=[("s", "2")], payload=[{}])], False),
        ([Filter(types=["x"], tags=["u"], streams=[("s", "1")], payload=[{}])], False),
        ([Filter(correlation_id="absent")], False),
        ([Filter(types=["x"], actor_id="absent")], False),
        ([Filter(types=[]), Filter(types=["x"])], True),
        ([Filter(types=[]), Filter(payload=[])], False),
    ],
)
def test_filters_are_combined(filters: Any, expected: Any) -> None:
    """D2: filters, types, predicates and streams are combined by OR; parts and tags by AND."""
    assert matches(Query(filters), RECORD) is expected


def test_the_matcher_ignores_min_position() -> None:
    """D4: min_position does not affect which events match."""
    assert matches(Query(min_position=10**9), RECORD)


def test_stream_filters_never_match_facts() -> None:
    """D2: a filter on streams never matches a plain fact."""
    fact = record(stream_type=None, stream_id=None, stream_seq=None)

    assert not matches(Query([Filter(streams=[("s", "1")])]), fact)
    assert matches(Query([Filter(types=["x"])]), fact)


def test_payloads_are_parsed_only_for_predicates() -> None:
    """D2: a query without predicates does not parse payloads."""
    unreadable = msgspec.structs.replace(RECORD, payload_json="not json")

    assert matches(Query([Filter(types=["x"])]), unreadable)
    assert not matches(Query([Filter(payload=[])]), unreadable)


@pytest.mark.parametrize(
    ("want", "have", "expected"),
    [
        (1, 1, True),
        (1, 1.0, True),
        (1.0, 1, True),
        (1, 2, False),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (True, False, False),
        (False, 0, False),
        (0, False, False),
        (None, None, True),
        (None, 0, False),
        (None, {}, False),
        ("", None, False),
        ("a", "a", True),
        ("a", "A", False),
        ("1", 1, False),
        (1, "1", False),
        (1, None, False),
        (1, [1], False),
        ("a", ["a"], False),
        ({}, {}, True),
        ({}, {"a": 1}, True),
        ({}, [], False),
        ({}, None, False),
        ([], [], True),
        ([], [1], True),
        ([], {}, False),
        ([], "", False),
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": None}, {}, False),
        ({"a": None}, {"a": None}, True),
        ({"a": {"b": {}}}, {"a": {"b": {"c": 1}}}, True),
        ({"a": {"b": {}}}, {"a": {"b": 1}}, False),
        ([1, 1], [1], True),
        ([1, 2], [2, 3, 1], True),
        ([1, 4], [2, 3, 1], False),
        ([[1]], [[1, 2]], True),
        ([[1]], [1], False),
        ([{"a": 1}], [{"b": 1}, {"a": 1.0, "c": 1}], True),
        ((1,), [1], True),
        ([1], (1,), True),
        (10**23, 1e23, True),
        (1e23, 10**23, True),
        (10**23 + 1, 1e23, False),
        (1e23, 10**23 - 1, False),
        (1e23, 1e23, True),
        (2**53, float(2**53), True),
        (2**53 + 1, float(2**53), False),
        (float(2**53), 2**53 + 1, False),
        (2**53 - 1, float(2**53 - 1), True),
        (-(2**53) - 1, -float(2**53), False),
        (10**400, 1e308, False),
        (10**30, 10**30 + 1, False),
        (0, -0.0, True),
        (0.1, 0.1, True),
        (5e-324, 0, False),
    ],
)
def test_predicates_match_json(want: Any, have: Any, expected: Any) -> None:
    """D3: scalars match by type and value, objects by subset, array elements by any element."""
    assert matches_json(want, have) is expected


@pytest.mark.parametrize(
    ("query", "where"),
    [
        (None, "query"),
        ({}, "query"),
        (_query(min_position=-1), "min_position"),
        (_query(min_position=True), "min_position"),
        (_query(min_position=2**63), "min_position"),
        (_query(filters="x"), "filters"),
        (_query(filters={}), "filters"),
        (_query([None]), "filters[0]"),
        (_query([_filter(types="x")]), "filters[0].types"),
        (_query([_filter(), _filter(types=[""])]), "filters[1].types[0]"),
        (_query([_filter(tags=["a", 1])]), "filters[0].tags[1]"),
        (_query([_filter(streams=[["a", "b"]])]), "filters[0].streams[0]"),
        (_query([_filter(correlation_id="\0")]), "filters[0].correlation_id"),
        (_query([_filter(), _filter(actor_id=7)]), "filters[1].actor_id"),
        (_query([_filter(streams=[("a",)])]), "filters[0].streams[0]"),
        (_query([_filter(streams=[("a", "")])]), "filters[0].streams[0]"),
        (_query([_filter(payload=[1, "\0"])]), "filters[0].payload[1]"),
    ],
)
def test_invalid_queries_are_refused(query: Any, where: Any) -> None:
    """D6: an invalid query is refused with the place of the error."""
    with pytest.raises(InvalidQuery) as caught:
        check_query(query)
    assert caught.value.details == {"where": where}


def test_valid_queries_are_accepted() -> None:
    """D2: queries of every valid shape are accepted."""
    check_query(MATCH_ALL)
    check_query(Query((), 0))
    check_query(Query([Filter()], 2**63 - 1))
    check_query(Query([Filter(correlation_id="c", causation_id="", actor_id="p")]))
    check_query(Query([Filter((), (), (), ())]))
    check_query(Query([Filter(["a"], [None, 1, {}, []], [""], [("a", "b")])]))


def test_filters_and_predicates_are_bounded() -> None:
    """K3: filters, entries and depth of predicates are bounded."""
    limits = Limits(filters=2, predicates=2, payload_depth=2)
    check_query(Query([Filter(types=["a", "b"]), Filter(payload=[[[]], 1])]), limits)
    for query, name in (
        (Query([Filter()] * 3), "filters"),
        (Query([Filter(tags=["a"] * 3)]), "predicates"),
        (Query([Filter(payload=[[[[]]]])]), "payload_depth"),
    ):
        with pytest.raises(LimitExceeded) as caught:
            check_query(query, limits)
        assert caught.value.details["limit"] == name


def test_values_are_bounded() -> None:
    """K3: a query has at most 4,096 values in all its predicates together."""
    half = Filter(payload=[list(range(1023)), list(range(1023))])
    check_query(Query([half, half]))
    for more in (Filter(payload=[None]), Filter(payload=[{"a": []}])):
        with pytest.raises(LimitExceeded) as caught:
            check_query(Query([half, more, half]))
        assert caught.value.details["limit"] == "predicate_values"
        assert caught.value.details["bound"] == 4096


def test_matchers_share_a_document() -> None:
    """D3: several queries can match one parsed payload."""
    document = PayloadDocument('{"a":[1,2]}')
    one = Matcher(Query([Filter(payload=[{"a": [1]}])]))
    other = Matcher(Query([Filter(payload=[{"a": [3]}])]))

    assert one.matches(RECORD, document)
    assert not other.matches(RECORD, document)


def test_context_versions() -> None:
    """D6: an expected version is None or a position from 1."""
    for version in (None, 1, 2**63 - 1):
        check_context_version(version)
    for wrong in (0, -1, True, 1.0, "1", 2**63):
        with pytest.raises(InvalidArgument) as caught:
            check_context_version(wrong)
        assert caught.value.details == {"argument": "expected_version"}


def test_queries_from_mappings() -> None:
    """D2: a mapping may use the names of the log or of facts."""
    query = Query(
        [Filter(types=["a"], payload=[{"n": 1}], tags=["t"], streams=[("s", "1")])], min_position=3
    )
    ours = {
        "filters": [
            {"types": ["a"], "payload": [{"n": 1}], "tags": ["t"], "streams": [["s", "1"]]}
        ],
        "min_position": 3,
    }
    theirs = {
        "filters": [
            {
                "event_types": ["a"],
                "payload_predicates": [{"n": 1}],
                "tags": ["t"],
                "streams": [("s", "1")],
            }
        ],
        "min_sequence_number": 3,
    }

    assert Query.from_mapping(ours) == Query.from_mapping(theirs) == query
    assert query.as_dict() == ours
    assert Query.from_mapping({}) == Query.from_mapping({"filters": None}) == MATCH_ALL


def test_dictionary_forms() -> None:
    """E5: equal queries have one dictionary form; None and an empty list of filters are equal."""
    assert Query().as_dict() == Query([]).as_dict() == Query(()).as_dict() == {"filters": []}
    assert Query([Filter(types=[])]).as_dict() == {"filters": [{"types": []}]}
    assert Query([Filter()], 0).as_dict() == {"filters": [{}], "min_position": 0}


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ([], "$"),
        (None, "$"),
        ({"filter": []}, "$"),
        ({1: []}, "$"),
        ({"min_position": 1, "min_sequence_number": 1}, "$"),
        ({"filters": {}}, "filters"),
        ({"filters": "x"}, "filters"),
        ({"filters": [{}, 7]}, "filters[1]"),
        ({"filters": [{"type": []}]}, "filters[0]"),
        ({"filters": [{"types": [], "event_types": []}]}, "filters[0]"),
    ],
)
def test_invalid_mappings_are_refused(given: Any, where: Any) -> None:
    """D6: unknown and repeated names and values that are no objects are refused."""
    with pytest.raises(InvalidQuery) as caught:
        Query.from_mapping(given)
    assert caught.value.details == {"where": where}


def test_streams_of_a_mapping_are_validated_with_the_query() -> None:
    """D6: an invalid stream of a mapping is refused when the query is validated."""
    made = Query.from_mapping({"filters": [{"streams": ["s"]}, {"streams": "s"}]})
    with pytest.raises(InvalidQuery) as caught:
        check_query(made)
    assert caught.value.details == {"where": "filters[0].streams[0]"}
