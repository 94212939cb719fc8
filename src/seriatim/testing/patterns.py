"""E7: a pattern such as `seat.*` means the same wherever event types are named."""

from __future__ import annotations

from typing import Any

from seriatim.core.indexes import PayloadIndex
from seriatim.core.query import Filter, Query
from seriatim.core.request import ExpectedContext
from seriatim.factory import Log
from seriatim.testing.factories import assert_refused, event, positions

TYPES = [
    "seat.held",
    "seat.sold",
    "seat",
    "seats.sold",
    "order.paid",
    "seat.",
    "seat.a.b",
    "Seat.x",
]
"""The types of positions 1 to 8."""

# Each list of names with the positions of the types that it stands for.
NAMED: list[tuple[list[str], list[int]]] = [
    (["seat.*"], [1, 2, 6, 7]),
    (["seat.a.*"], [7]),
    (["seat.*", "order.paid"], [1, 2, 5, 6, 7]),
    (["seat.*", "seat.held"], [1, 2, 6, 7]),
    (["seat.*", "order.*"], [1, 2, 5, 6, 7]),
    (["*"], [1, 2, 3, 4, 5, 6, 7, 8]),
    (["*", "seat"], [1, 2, 3, 4, 5, 6, 7, 8]),
    (["absent.*"], []),
    (["absent.*", "seat"], [3]),
    (["seat.%", "seat._", "seat.?"], []),
]
REFUSED = ["seat*", "*.sold", "seat.*.b", "**", ".*", "*seat", "seat.**"]


class PatternContract:
    """E7: patterns work alike in reads, queries, conditions, tails and subscriptions."""

    def _fill(self, log: Log) -> None:
        log.append([event(name, stream=("s", "1")) for name in TYPES])
        log.for_tenant("other").append([event("seat.other")])

    def test_patterns_apply_to_reads(self, log: Log) -> None:
        """E7: patterns select types in reads by position and by stream, in both directions."""
        self._fill(log)

        for names, expected_positions in NAMED:
            for more in ({}, {"stream": ("s", "1")}):
                filters: dict[str, Any] = {"types": names, **more}
                assert positions(list(log.read(**filters))) == expected_positions, names
                assert positions(log.page(**filters).records) == expected_positions
                down = positions(list(log.read(newest_first=True, **filters)))
                assert down == expected_positions[::-1], names
                assert (
                    positions(list(log.read(limit=2, batch_size=1, **filters)))
                    == expected_positions[:2]
                )

    def test_patterns_apply_to_queries(self, log: Log) -> None:
        """E7, D2: patterns work in the filters of a query, with tags, streams and predicates."""
        self._fill(log)
        log.append([event("seat.sold", payload={"n": 1}, tags=("t",)), event("late", tags=("t",))])

        for names, expected_positions in NAMED:
            result = log.query(Query([Filter(types=names)], min_position=0), until=8)
            assert positions(result.records) == expected_positions, names
            result = log.query(Query([Filter(types=names, streams=[("s", "1")])]))
            assert positions(result.records) == expected_positions, names
            assert result.context_version == (
                expected_positions[-1] if expected_positions else None
            )
        for combined in (
            Filter(types=["seat.*"], tags=["t"]),
            Filter(types=["seat.*"], payload=[{"n": 1}]),
            Filter(types=["seat.*"], payload=[{"n": 1}], tags=["t"]),
        ):
            assert positions(log.query(Query([combined])).records) == [10]
        assert positions(log.query(Query([Filter(types=["*"], tags=["t"])])).records) == [10, 11]

    def test_pattern_matches_any_number_of_types(self, log: Log) -> None:
        """E7: a pattern can match any number of types."""
        log.append([event(f"n{i % 2}.{i}", stream=("s", str(i % 3))) for i in range(300)])

        expected_positions = list(range(2, 301, 2))
        assert positions(list(log.read(types=["n1.*"]))) == expected_positions
        assert (
            positions(list(log.read(types=["n1.*"], newest_first=True))) == expected_positions[::-1]
        )
        query = Query([Filter(types=["n1.*"])])
        assert positions(log.query(query).records) == expected_positions
        assert log.query(query).context_version == 300
        inside = Query([Filter(types=["n1.*"], streams=[("s", "1")])])
        assert positions(log.query(inside).records) == list(range(2, 301, 6))
        assert positions(list(log.read(types=["n1.*"], stream=("s", "1")))) == (
            list(range(2, 301, 6))
        )

    def test_condition_covers_types_that_appear_later(self, log: Log) -> None:
        """E7, D5: a condition covers types that appear after the context was read."""
        seats = Query([Filter(types=["seat.*"])])
        log.append([event("order.paid")], ExpectedContext(seats, None))
        log.append([event("seat.held")], ExpectedContext(seats, None))
        version = log.query(seats).context_version
        assert version == 2
        log.append([event("seat.of.a.new.type")])

        with assert_refused(log, "conditional_append_conflict", expected=2, actual=3):
            log.append([event("seat.sold")], ExpectedContext(seats, version))
        log.append([event("order.paid")], ExpectedContext(seats, 3))
        log.append([event("seat.sold")], ExpectedContext(seats, 3))

    def test_patterns_combine_with_indexed_predicates(self, log: Log) -> None:
        """E7, D5: a pattern combines with a predicate that is indexed for some of the types."""
        log.declare(PayloadIndex("seat.held", "n"))
        seats = Query([Filter(types=["seat.*"], payload=[{"n": 1}])])
        log.append([event("seat.held", payload={"n": 1})], ExpectedContext(seats, None))
        log.append([event("seat.sold", payload={"n": 1})], ExpectedContext(seats, 1))

        assert log.query(seats).context_version == 2
        with assert_refused(log, "conditional_append_conflict", expected=1, actual=2):
            log.append([event("seat.sold")], ExpectedContext(seats, 1))

    def test_subscription_covers_types_that_appear_later(self, log: Log) -> None:
        """E7, E5: a subscription also delivers matching types that appear later."""
        self._fill(log)
        seats = Query([Filter(types=["seat.*"])])
        for follow in (
            lambda: log.tail(seats, after=0, idle_timeout=0.2, poll_s=0.05),
            lambda: log.subscribe("seats", seats, idle_timeout=0.2, poll_s=0.05),
        ):
            seen: list[int] = []
            appended = 0
            for batch in follow():
                seen += positions(batch)
                if not appended:
                    log.append([event("late")])
                    appended = log.append([event(f"seat.at.{log.head()}")]).first_position
            assert seen[:4] == [1, 2, 6, 7]
            assert appended in seen[4:]

    def test_escaped_star_matches_a_star(self, log: Log) -> None:
        r"""E7, A4: a type may contain a star, and is then written with a backslash before it."""
        names = ["seat.*", "*", "a*b", "seat.x", "a\\*", "a\\b"]
        log.append([event(name) for name in names])

        written = ["seat.\\*", "\\*", "a\\*b", "seat.x", "a\\\\*", "a\\b"]
        for position, text in enumerate(written, start=1):
            assert positions(list(log.read(types=[text]))) == [position], text
            assert positions(log.query(Query([Filter(types=[text])])).records) == [position]
        assert positions(list(log.read(types=["seat.*"]))) == [1, 4]

    def test_invalid_patterns_are_refused(self, log: Log) -> None:
        """E7: a star in another place is refused before anything runs."""
        self._fill(log)

        for text in REFUSED:
            with assert_refused(log, "invalid_argument", argument="types"):
                list(log.read(types=["seat.held", text]))
            with assert_refused(log, "invalid_query"):
                log.query(Query([Filter(types=[text])]))
            with assert_refused(log, "invalid_query"):
                log.append([event()], ExpectedContext(Query([Filter(types=[text])]), None))
            with assert_refused(log, "invalid_query"):
                log.tail(Query([Filter(types=[text])]))
            with assert_refused(log, "invalid_query"):
                log.subscribe("x", Query([Filter(types=[text])]))
        for text in (*REFUSED, "seat.*", "*"):
            with assert_refused(log, "invalid_argument", argument="event_type"):
                log.declare(PayloadIndex(text, "n"))
