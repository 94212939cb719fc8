"""Section D: results of queries, versions of contexts, and matches of predicates."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim.core.errors import InvalidArgument
from seriatim.core.event import NewEvent
from seriatim.core.query import Filter, Query
from seriatim.factory import Log
from seriatim.profiles.facts import FACTS_PROFILE
from seriatim.testing.factories import assert_all_refused, event, events, positions

_query: Any = Query  # for values that its types forbid
_filter: Any = Filter


def find_positions(log: Log, *filters: Filter) -> list[int]:
    """Return the positions of the events that match a query."""
    return positions(log.query(Query(list(filters))).records)


class QueryContract:
    """D1, D2, D4, D6: filters, cursors, versions and pages."""

    def test_empty_query_matches_everything(self, log: Log) -> None:
        """D2: filters omitted or empty match everything."""
        log.append(events(3))

        for query in (Query(), Query([]), Query(())):
            result = log.query(query)
            assert positions(result.records) == [1, 2, 3]
            assert (result.last_returned_position, result.context_version) == (3, 3)

    def test_version_without_matches_is_none(self, log: Log) -> None:
        """D1: without matches, the version and the last position are None."""
        for query in (Query(), Query([Filter(types=["absent"])])):
            result = log.query(query)
            assert (result.records, result.last_returned_position) == ([], None)
            assert result.context_version is None

    def test_limit_does_not_change_the_version(self, log: Log) -> None:
        """D1: a limit restricts the records, not the version."""
        log.append(events(5))

        result = log.query(limit=2)

        assert positions(result.records) == [1, 2]
        assert (result.last_returned_position, result.context_version) == (2, 5)
        assert result.more

    def test_the_cursor_is_exclusive_and_only_for_records(self, log: Log) -> None:
        """D4: min_position restricts the records and never changes the version."""
        log.append([event("a"), event("b"), event("a"), event("b")])
        only_a = [Filter(types=["a"])]

        expected = {None: [1, 3], 0: [1, 3], 1: [3], 2: [3], 3: [], 4: [], 10**9: []}
        for cursor, expected_positions in expected.items():
            result = log.query(Query(only_a, min_position=cursor))
            assert positions(result.records) == expected_positions
            assert result.context_version == 3
            assert result.last_returned_position == (3 if expected_positions else None)

    def test_types_are_ored(self, log: Log) -> None:
        """D2: types of a filter are OR-ed, names are exact, an empty list matches nothing."""
        log.append([event("a"), event("b"), event("A"), event("a.b")])

        assert find_positions(log, Filter(types=["a", "b"])) == [1, 2]
        assert find_positions(log, Filter(types=["a"])) == [1]
        assert find_positions(log, Filter(types=["a%", "_", "a.b.*"])) == []
        assert find_positions(log, Filter(types=[])) == []

    def test_predicates_are_ored(self, log: Log) -> None:
        """D2: the predicates of a filter are OR-ed, and an empty list matches nothing."""
        log.append([event(payload={"x": number, "y": number % 2}) for number in range(4)])

        assert find_positions(log, Filter(payload=[{"x": 0}, {"y": 1}])) == [1, 2, 4]
        assert find_positions(log, Filter(payload=[{"x": 0, "y": 1}])) == []
        assert find_positions(log, Filter(payload=[])) == []

    def test_types_and_predicates_are_anded(self, log: Log) -> None:
        """D2: types and predicates of one filter are AND-ed, and an empty list matches nothing."""
        log.append([event("a", n=1), event("b", n=1), event("a", n=2)])

        assert find_positions(log, Filter(types=["a"], payload=[{"n": 1}])) == [1]
        assert find_positions(log, Filter(types=["a"], payload=[])) == []
        assert find_positions(log, Filter(types=[], payload=[{"n": 1}])) == []

    def test_filters_are_ored(self, log: Log) -> None:
        """D2: filters are OR-ed, each record is returned once, and an empty filter adds nothing."""
        log.append([event("a", n=1), event("b", n=1), event("c", n=2)])

        assert find_positions(log, Filter(types=["a"]), Filter(payload=[{"n": 1}])) == [1, 2]
        assert find_positions(log, Filter(types=["c"]), Filter(types=[])) == [3]
        assert find_positions(log, Filter(types=[]), Filter(payload=[])) == []
        assert find_positions(log, Filter(types=["c"]), Filter()) == [1, 2, 3]

    def test_tags_are_anded(self, log: Log) -> None:
        """D2: an event must have all tags of a filter; an empty list matches nothing."""
        log.append(
            [event(tags=("a", "b")), event(tags=("b",)), event(), event(tags=("B", "b", "b"))]
        )

        assert find_positions(log, Filter(tags=["b"])) == [1, 2, 4]
        assert find_positions(log, Filter(tags=["b", "a"])) == [1]
        assert find_positions(log, Filter(tags=["b", "b"])) == [1, 2, 4]
        assert find_positions(log, Filter(tags=["a", "absent"])) == []
        assert find_positions(log, Filter(tags=[])) == []

    def test_streams_are_ored(self, log: Log) -> None:
        """D2: the streams of a filter are OR-ed, and an empty list matches nothing."""
        log.append(
            [event(stream=("s", "1")), event(stream=("s", "2")), event(stream=("r", "1")), event()]
        )

        assert find_positions(log, Filter(streams=[("s", "1"), ("r", "1")])) == [1, 3]
        assert find_positions(log, Filter(streams=[("s", "absent")])) == []
        assert find_positions(log, Filter(streams=[])) == []

    def test_all_parts_of_a_filter_are_anded(self, log: Log) -> None:
        """D2: types, tags, streams and predicates of a filter must all match."""
        fields: dict[str, Any] = {"stream": ("s", "1"), "tags": ("t",), "payload": {"n": 1}}
        log.append([event("a", **fields)])
        lacks: list[dict[str, Any]] = [{"stream": None}, {"tags": ()}, {"payload": {}}]
        for lacking in lacks:
            log.append([event("a", **(fields | lacking))])
        log.append([event("b", **fields)])
        complete = Filter(types=["a"], payload=[{"n": 1}], tags=["t"], streams=[("s", "1")])

        assert find_positions(log, complete) == [1]

    def test_a_query_is_within_its_tenant(self, log: Log) -> None:
        """D1: records and version cover only the events of the tenant."""
        log.append(events(1))
        log.for_tenant("other").append(events(2))

        result = log.query()

        assert (positions(result.records), result.context_version) == ([1], 1)
        assert log.for_tenant("nobody").query().context_version is None

    def test_paging_keeps_the_snapshot(self, log: Log) -> None:
        """D1: the pages of a query share a snapshot, and the version covers exactly its events."""
        log.append([event("a"), event("b")] * 3)
        query = Query([Filter(types=["a"])])
        first = log.query(query, limit=2)
        log.append([event("a")])

        second = log.query(query, limit=2, after=first.last_returned_position, head=first.head)

        assert (positions(first.records), first.context_version, first.more) == ([1, 3], 5, True)
        assert (positions(second.records), second.context_version) == ([5], 5)
        assert not second.more
        assert (first.head, second.head) == (6, 6)
        assert log.query(query).context_version == 7

    def test_a_head_beyond_the_log_is_refused(self, log: Log) -> None:
        """D1: a snapshot beyond the head of the log is refused."""
        log.append(events(2))

        with pytest.raises(InvalidArgument):
            log.query(head=3)

    def test_full_last_page_has_no_more(self, log: Log) -> None:
        """D1: `more` is false when the limit happens to end at the last match."""
        log.append([*events(4), event("other")])

        result = log.query(Query([Filter(types=["thing.happened"])]), limit=4)

        assert (len(result.records), result.more) == (4, False)

    def test_limits_and_pages_do_not_change_the_matches(self, log: Log) -> None:
        """D6: limits and paging never change the set of matches."""
        log.append([event("a" if number % 3 else "b", n=number) for number in range(30)])
        query = Query([Filter(types=["a"])], min_position=4)
        result = log.query(query)

        for size in (1, 2, 7, 19, 20):
            pages: list[int] = []
            page = log.query(query, limit=size)
            pages += positions(page.records)
            while page.more:
                page = log.query(
                    query, limit=size, after=page.last_returned_position, head=page.head
                )
                pages += positions(page.records)
            assert pages == positions(result.records)
            assert page.context_version == result.context_version

    def test_invalid_query_is_refused_with_its_location(self, log: Log) -> None:
        """D6: a query of invalid shape is `invalid_query` with the location, and is not run."""
        log.append(events(1))
        one = [_filter(types=["a"])]
        cases: dict[str, tuple[Any, str]] = {
            "no query": ({"filters": []}, "query"),
            "filters no list": (_query(_filter()), "filters"),
            "no filter": (_query([{"types": ["a"]}]), "filters[0]"),
            "types a string": (_query([_filter(types="a")]), "filters[0].types"),
            "type a number": (_query([*one, _filter(types=["a", 1])]), "filters[1].types[1]"),
            "type empty": (_query([_filter(types=[""])]), "filters[0].types[0]"),
            "type with NUL": (_query([_filter(types=["a\0"])]), "filters[0].types[0]"),
            "tags a string": (_query([_filter(tags="a")]), "filters[0].tags"),
            "tag a number": (_query([_filter(tags=[1])]), "filters[0].tags[0]"),
            "tag with NUL": (_query([_filter(tags=["\0"])]), "filters[0].tags[0]"),
            "stream a string": (_query([_filter(streams=["s"])]), "filters[0].streams[0]"),
            "stream of three": (
                _query([_filter(streams=[("a", "b", "c")])]),
                "filters[0].streams[0]",
            ),
            "stream id empty": (_query([_filter(streams=[("a", "")])]), "filters[0].streams[0]"),
            "payload an object": (_query([_filter(payload={"a": 1})]), "filters[0].payload"),
            "NUL": (_query([_filter(payload=[{"a": "\0"}])]), "filters[0].payload[0]"),
            "NUL in a key": (_query([_filter(payload=[{"\0": 1}])]), "filters[0].payload[0]"),
            "surrogate": (_query([_filter(payload=[1, ["\udc00"]])]), "filters[0].payload[1]"),
            "NaN": (_query([_filter(payload=[float("nan")])]), "filters[0].payload[0]"),
            "infinity": (_query([_filter(payload=[float("inf")])]), "filters[0].payload[0]"),
            "bytes": (_query([_filter(payload=[b"x"])]), "filters[0].payload[0]"),
            "key a number": (_query([_filter(payload=[{1: 1}])]), "filters[0].payload[0]"),
            "cursor negative": (_query(min_position=-1), "min_position"),
            "cursor a string": (_query(min_position="1"), "min_position"),
            "cursor a boolean": (_query(min_position=True), "min_position"),
            "cursor a float": (_query(min_position=1.0), "min_position"),
            "cursor too large": (_query(min_position=2**63), "min_position"),
        }
        assert_all_refused(
            log,
            log.query,
            {name: (query, "invalid_query", where) for name, (query, where) in cases.items()},
        )

    def test_invalid_limit_or_cursor_is_refused(self, log: Log) -> None:
        """D6: an invalid limit or cursor is refused, and the error names it."""
        bad = "invalid_argument"
        assert_all_refused(
            log,
            lambda options: log.query(Query(), **options),
            {
                "limit 0": ({"limit": 0}, bad, "limit"),
                "limit over": ({"limit": 10_001}, bad, "limit"),
                "limit text": ({"limit": "1"}, bad, "limit"),
                "after": ({"after": -1}, bad, "after"),
                "head": ({"head": 1.5}, bad, "head"),
            },
        )

    def test_query_in_dictionary_form_has_the_same_meaning(self, log: Log) -> None:
        """D2: a query in dictionary form has the same meaning as a `Query`."""
        log.append([event("a", n=1), event("b", n=1), event("a", n=2, tags=("t",))])
        ours = Query.from_mapping(
            {"filters": [{"types": ["a"], "payload": [{"n": 1}]}, {"tags": ["t"]}]}
        )
        theirs = Query.from_mapping(
            {
                "filters": [{"event_types": ["a"], "payload_predicates": [{"n": 1}]}],
                "min_sequence_number": 1,
            }
        )

        assert positions(log.query(ours).records) == [1, 3]
        assert log.query(theirs).records == []
        assert log.query(theirs).context_version == 1


# Each predicate with the payloads it matches, by their place in PAYLOADS.
PAYLOADS: list[Any] = [
    {},  # 1
    [],  # 2
    {"a": 1},  # 3
    {"a": 1.0},  # 4
    {"a": True},  # 5
    {"a": "1"},  # 6
    {"a": None},  # 7
    {"a": [1, 2]},  # 8
    {"a": [[1], {"b": 2}]},  # 9
    {"a": {}},  # 10
    {"a": {"b": 1, "c": [2, 3]}},  # 11
    1,  # 12
    "1",  # 13
    None,  # 14
    False,  # 15
    [1, "x", None, {"a": 1}],  # 16
    {"a": []},  # 17
    {"a": 10**23},  # 18
    {"a": 1e23},  # 19
    {"a": 10**23 + 1},  # 20
    {"a": 2**53 + 1},  # 21
    {"a": float(2**53)},  # 22
    {"a": "\u00e9", "é": 1},  # 23
    {"a": "e\u0301"},  # 24
    {"a.b": 1, "": 2, "a[0]": 3, "$": 4, '"': 5},  # 25
    {"a": 0},  # 26
    {"a": -0.0},  # 27
]

EXPECTED: list[tuple[Any, list[int]]] = [
    ({}, [1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27]),
    ([], [2, 16]),
    ({"a": 1}, [3, 4]),
    ({"a": 1.0}, [3, 4]),
    ({"a": True}, [5]),
    ({"a": False}, []),
    ({"a": "1"}, [6]),
    ({"a": None}, [7]),
    ({"b": None}, []),
    ({"a": [1]}, [8]),
    ({"a": [2, 1]}, [8]),
    ({"a": [2, 2]}, [8]),
    ({"a": [3]}, []),
    ({"a": [[1]]}, [9]),
    ({"a": [{}]}, [9]),
    ({"a": [{"b": 2.0}]}, [9]),
    ({"a": []}, [8, 9, 17]),
    ({"a": {}}, [10, 11]),
    ({"a": {"b": 1}}, [11]),
    ({"a": {"c": [3]}}, [11]),
    ({"a": {"b": 1, "c": [2, 3], "d": 1}}, []),
    (1, [12]),
    (1.0, [12]),
    ("1", [13]),
    (None, [14]),
    (False, [15]),
    (0, []),
    ([1], [16]),
    ([None, "x"], [16]),
    ([{}], [16]),
    ([{"a": 1}], [16]),
    ([[1]], []),
    ({"a": 10**23}, [18, 19]),
    ({"a": 1e23}, [18, 19]),
    ({"a": 10**23 + 1}, [20]),
    ({"a": 2**53}, [22]),
    ({"a": float(2**53)}, [22]),
    ({"a": 2**53 + 1}, [21]),
    ({"a": "\u00e9"}, [23]),
    ({"a": "e\u0301"}, [24]),
    ({"é": 1}, [23]),
    ({"a.b": 1}, [25]),
    ({"": 2}, [25]),
    ({"a[0]": 3, "$": 4}, [25]),
    ({'"': 5}, [25]),
    ({"a": 0}, [26, 27]),
    ({"a": -0.0}, [26, 27]),
]


class PredicateContract:
    """D3: every backend evaluates predicates like the reference matcher."""

    @pytest.fixture
    def payloads(self, log: Log) -> Log:
        """Fill the log with one event for each payload."""
        batch = [NewEvent("p", payload) for payload in PAYLOADS]
        log.append_draft(log.draft(FACTS_PROFILE, batch))
        return log

    def test_predicates_match_scalars_objects_and_arrays(self, payloads: Log) -> None:
        """D3: scalars match by type and value, objects by subset, arrays by their elements."""
        wrong = [
            f"{predicate!r} found {seen}, not {expected_positions}"
            for predicate, expected_positions in EXPECTED
            if (seen := find_positions(payloads, Filter(payload=[predicate]))) != expected_positions
        ]
        assert not wrong

    def test_versions_agree_with_records(self, payloads: Log) -> None:
        """D3: the context's version is the highest position that matches."""
        for predicate, expected_positions in EXPECTED:
            result = payloads.query(Query([Filter(payload=[predicate])]))
            assert result.context_version == (
                expected_positions[-1] if expected_positions else None
            ), predicate

    def test_predicates_of_one_filter_are_ored(self, payloads: Log) -> None:
        """D3: predicates of one filter are OR-ed, whatever their types."""
        combined = Filter(payload=[1, None, {"a": "1"}, [[]]])

        assert find_positions(payloads, combined) == [6, 12, 14]

    def test_predicate_of_another_type_matches_nothing(self, payloads: Log) -> None:
        """D3: a predicate with a value of another type matches nothing."""
        assert find_positions(payloads, Filter(types=["q"], payload=[{}])) == []
