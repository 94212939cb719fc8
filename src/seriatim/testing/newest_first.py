"""E7: reads in descending order, and reads by correlation and causation id."""

from __future__ import annotations

from typing import Any, Unpack

from seriatim.core.event import NewEvent
from seriatim.core.query import Filter, Query
from seriatim.core.request import ExpectedContext
from seriatim.factory import Log
from seriatim.log.arguments import ReadFilters
from seriatim.testing.factories import assert_refused, event, events, positions, stream_seqs, trace


def read_newest_first(log: Log, **filters: Unpack[ReadFilters]) -> list[int]:
    """Return the positions of a descending read; check that pages and batches agree."""
    newest: ReadFilters = {**filters, "newest_first": True}
    all_positions = positions(list(log.read(**newest)))
    assert all_positions == positions(list(log.read(**filters)))[::-1]
    batches = log.read_batches(batch_size=2, **newest)
    assert [position for batch in batches for position in positions(batch)] == all_positions
    paged: list[int] = []
    after, until = filters.get("after", 0), filters.get("until", log.head())
    while until is not None and until > after:
        newest["until"] = until
        page = log.page(limit=2, **newest)
        paged += positions(page.records)
        assert page.last_scanned <= until or not page.records
        until = page.last_scanned - 1
    assert paged == all_positions
    return all_positions


class NewestFirstContract:
    """E7: every read has a descending form with the same filters and bounds."""

    def _fill(self, log: Log) -> None:
        for number in range(12):
            log.append(
                [
                    event(
                        f"t{number % 3}",
                        payload={"n": number % 2},
                        stream=("s", str(number % 2)),
                        app_id="app" if number % 4 else None,
                        tags=("even",) if number % 2 else (),
                    )
                ]
            )

    def test_bounds_keep_their_meaning(self, log: Log) -> None:
        """E7, E1: newest first, `after` stays exclusive and `until` inclusive."""
        log.append(events(5))

        assert read_newest_first(log) == [5, 4, 3, 2, 1]
        assert read_newest_first(log, after=2) == [5, 4, 3]
        assert read_newest_first(log, until=3) == [3, 2, 1]
        assert read_newest_first(log, after=1, until=3) == [3, 2]
        assert read_newest_first(log, after=3, until=3) == []
        assert positions(list(log.read(newest_first=True, limit=2))) == [5, 4]

    def test_empty_result_has_no_position(self, log: Log) -> None:
        """E7: an empty result has no position to continue from."""
        page = log.page(newest_first=True)

        assert (page.records, page.last_scanned) == ([], 1)
        assert list(log.read(newest_first=True)) == []
        assert log.query(newest_first=True).records == []

    def test_stream_is_read_by_descending_number(self, log: Log) -> None:
        """E7, E2: a stream is read by descending sequence number."""
        self._fill(log)
        stream = ("s", "1")

        seqs = [record.stream_seq for record in log.read_stream(stream, newest_first=True)]
        assert seqs == stream_seqs(log, stream)[::-1] == [6, 5, 4, 3, 2, 1]
        assert read_newest_first(log, stream=stream) == [12, 10, 8, 6, 4, 2]
        assert read_newest_first(log, stream=stream, until=9) == [8, 6, 4, 2]
        assert read_newest_first(log, stream=stream, since_seq=3) == [12, 10, 8]
        assert read_newest_first(log, stream=stream, types=["t1"]) == [8, 2]
        limited = log.read_stream(stream, newest_first=True, since=2, limit=2)
        assert positions(list(limited)) == [12, 10]

    def test_long_stream_is_read_from_any_bound(self, log: Log) -> None:
        """E7: a long stream is read newest first from any bound, with and without types."""
        log.append([event(f"t{number % 2}", stream=("s", "1")) for number in range(250)])

        assert read_newest_first(log, stream=("s", "1"), types=["t1"], after=90, until=110) == (
            list(range(110, 90, -2))
        )
        assert read_newest_first(log, stream=("s", "1"), after=200) == list(range(250, 200, -1))

    def test_every_filter_applies(self, log: Log) -> None:
        """E7: every filter applies, and an empty page still advances."""
        self._fill(log)
        log.append(trace("t")[:2])

        assert read_newest_first(log, types=["t0", "t1"], app_id="app") == [11, 10, 8, 7, 4, 2]
        assert read_newest_first(log, types=[]) == []
        assert read_newest_first(log, scope="traces") == [14, 13]
        assert read_newest_first(log, scope="aggregates", until=3) == [3, 2, 1]
        page = log.page(types=["absent"], newest_first=True, after=4)
        assert (page.records, page.last_scanned) == ([], 5)

    def test_tenant_reads_only_its_own_events(self, log: Log) -> None:
        """K2: a tenant reads only its own events in this direction, too."""
        log.append(events(2))
        log.for_tenant("other").append(events(2))

        assert read_newest_first(log) == [2, 1]
        assert read_newest_first(log.for_tenant("other")) == [4, 3]

    def test_descending_query_keeps_version_and_snapshot(self, log: Log) -> None:
        """E7, D1: a descending query has the same version, and pages share its snapshot."""
        self._fill(log)
        for filters, expected_positions in (
            ([], list(range(12, 0, -1))),
            ([Filter(types=["t1"])], [11, 8, 5, 2]),
            ([Filter(payload=[{"n": 1}])], [12, 10, 8, 6, 4, 2]),
            ([Filter(tags=["even"], types=["t1"])], [8, 2]),
            ([Filter(types=["t1"]), Filter(streams=[("s", "1")])], [12, 11, 10, 8, 6, 5, 4, 2]),
        ):
            query = Query(filters)
            result = log.query(query, newest_first=True, head=12)
            assert positions(result.records) == expected_positions
            assert result.context_version == max(expected_positions)
            assert not result.more
            part = log.query(query, newest_first=True, after=4, until=8)
            assert positions(part.records) == [
                position for position in expected_positions if 4 < position <= 8
            ]
            paged: list[int] = []
            page = log.query(query, newest_first=True, limit=2, head=12)
            log.append([event("t1", payload={"n": 1}, tags=("even",), stream=("s", "1"))])
            paged += positions(page.records)
            while page.more:
                until = paged[-1] - 1
                page = log.query(query, newest_first=True, limit=2, until=until, head=page.head)
                paged += positions(page.records)
                assert page.context_version == max(expected_positions)
            assert paged == expected_positions

    def test_reversed_bounds_and_invalid_order_are_refused(self, log: Log) -> None:
        """E3: reversed bounds and an invalid order are refused."""
        with assert_refused(log, "invalid_argument", argument="until"):
            list(log.read(newest_first=True, after=3, until=2))
        with assert_refused(log, "invalid_argument", argument="until"):
            log.query(newest_first=True, after=3, until=2)
        wrong_values: list[Any] = ["yes", 1, None]
        for wrong in wrong_values:
            with assert_refused(log, "invalid_argument", argument="newest_first"):
                log.page(newest_first=wrong)


class RelationContract:
    """E7: reads by `correlation_id`, `causation_id` and `actor_id`."""

    def _fill(self, log: Log) -> None:
        batch = [
            NewEvent("a", {}, correlation_id="c-1", stream=("s", "1"), actor_id="p"),
            NewEvent("b", {}, correlation_id="c-1", causation_id="x", stream=("s", "2")),
            NewEvent("a", {}, correlation_id="c-2", causation_id="x"),
            NewEvent("a", {}, actor_id="p"),
            NewEvent("b.c", {}, correlation_id="c-1", causation_id="y", stream=("s", "1")),
        ]
        log.append(batch)
        related = NewEvent("a", {}, correlation_id="c-1", causation_id="x", actor_id="p")
        log.for_tenant("other").append([related])

    def test_relation_ids_select_their_events(self, log: Log) -> None:
        """E7: correlation and causation ids select events alone and together, within the tenant."""
        self._fill(log)

        assert read_newest_first(log, correlation_id="c-1") == [5, 2, 1]
        assert read_newest_first(log, causation_id="x") == [3, 2]
        assert read_newest_first(log, correlation_id="c-1", causation_id="x") == [2]
        assert read_newest_first(log, correlation_id="absent") == []
        assert read_newest_first(log, actor_id="p") == [4, 1]
        assert read_newest_first(log, actor_id="p", correlation_id="c-1") == [1]
        assert read_newest_first(log, actor_id="absent") == []
        assert read_newest_first(log.for_tenant("other"), correlation_id="c-1") == [6]
        assert read_newest_first(log.for_tenant("other"), actor_id="p") == [6]

    def test_relation_ids_combine_with_other_filters(self, log: Log) -> None:
        """E7: the ids combine with types, patterns, streams, numbers and bounds."""
        self._fill(log)

        assert read_newest_first(log, correlation_id="c-1", types=["a", "b"]) == [2, 1]
        assert read_newest_first(log, correlation_id="c-1", types=["b.*"]) == [5]
        assert read_newest_first(log, correlation_id="c-1", stream=("s", "1")) == [5, 1]
        assert read_newest_first(log, causation_id="y", stream=("s", "1"), since_seq=1) == [5]
        assert read_newest_first(log, correlation_id="c-1", stream=("s", "1"), types=["a"]) == [1]
        assert read_newest_first(log, correlation_id="c-1", after=1, until=4) == [2]
        assert read_newest_first(log, actor_id="p", types=["a"]) == [4, 1]
        assert read_newest_first(log, actor_id="p", types=["b.*"]) == []
        assert read_newest_first(log, actor_id="p", stream=("s", "1")) == [1]
        assert read_newest_first(log, actor_id="p", stream=("s", "1"), types=["a"]) == [1]
        assert read_newest_first(log, actor_id="p", after=1) == [4]

    def _find(self, log: Log, filter_: Filter) -> list[int]:
        """Return the positions of a query, which has its version, in both directions."""
        query = Query([filter_])
        result = log.query(query)
        found = positions(result.records)
        assert result.context_version == (found[-1] if found else None)
        assert positions(log.query(query, newest_first=True).records) == found[::-1]
        return found

    def test_relation_ids_filter_queries(self, log: Log) -> None:
        """E7, D2: the ids combine with every other field of a filter."""
        self._fill(log)
        tagged = NewEvent("a", {"n": 1}, correlation_id="c-1", actor_id="p", tags=("t", "u"))
        log.append([tagged, NewEvent("a", {"n": 1}, correlation_id="c-3", tags=("t",))])

        assert self._find(log, Filter(correlation_id="c-1")) == [1, 2, 5, 7]
        assert self._find(log, Filter(causation_id="x")) == [2, 3]
        assert self._find(log, Filter(actor_id="p")) == [1, 4, 7]
        assert self._find(log, Filter(correlation_id="c-1", causation_id="x")) == [2]
        assert self._find(log, Filter(correlation_id="c-1", actor_id="p", types=["a", "b.*"])) == [
            1,
            7,
        ]
        assert self._find(log, Filter(correlation_id="c-1", tags=["t"])) == [7]
        assert self._find(
            log, Filter(correlation_id="c-1", tags=["t", "u"], payload=[{"n": 1}])
        ) == [7]
        assert self._find(log, Filter(correlation_id="c-3", tags=["t", "u"])) == []
        assert self._find(log, Filter(actor_id="p", tags=["t"])) == [7]
        assert self._find(log, Filter(actor_id="absent", tags=["t"])) == []
        assert self._find(log, Filter(correlation_id="c-1", streams=[("s", "1"), ("s", "3")])) == [
            1,
            5,
        ]
        assert self._find(log, Filter(actor_id="p", streams=[("s", "1")], types=["a", "b"])) == [1]
        assert self._find(log, Filter(correlation_id="c-1", types=[])) == []
        assert self._find(log.for_tenant("other"), Filter(correlation_id="c-1")) == [6]
        either = Query([Filter(correlation_id="c-3"), Filter(actor_id="p"), Filter(tags=["t"])])
        assert positions(log.query(either).records) == [1, 4, 7, 8]

    def test_empty_relation_id_is_an_id(self, log: Log) -> None:
        """E7, D2: an empty id selects the events that have it, unlike an empty list."""
        log.append([NewEvent("a", {}, correlation_id=""), NewEvent("a", {})])

        assert self._find(log, Filter(correlation_id="")) == [1]
        assert read_newest_first(log, correlation_id="") == [1]

    def test_relation_ids_filter_contexts(self, log: Log) -> None:
        """E7, B8: an append may depend on the events of a correlation."""
        self._fill(log)
        query = Query([Filter(correlation_id="c-2")])
        new = NewEvent("a", {}, correlation_id="c-2")

        version = log.query(query).context_version
        assert log.append([new], ExpectedContext(query, version)).first_position == 7
        with assert_refused(log, "conditional_append_conflict"):
            log.append([new], ExpectedContext(query, version))
        assert log.append([new], ExpectedContext(query, after=7)).first_position == 8

    def test_relation_ids_filter_tails(self, log: Log) -> None:
        """E7, E5: a tail with ids skips other events and continues where it stopped."""
        self._fill(log)
        query = Query([Filter(correlation_id="c-1", types=["a", "b.*"])])

        tail = log.tail(query, after=0, idle_timeout=0.05)
        assert [positions(batch) for batch in tail] == [[1, 5]]
        assert tail.position == 6
        log.append([NewEvent("a", {}, correlation_id="c-1"), NewEvent("a", {})])
        log.append([NewEvent("a", {}, correlation_id="c-2")])
        again = log.tail(query, after=tail.position, idle_timeout=0.05)
        assert [positions(batch) for batch in again] == [[7]]
        assert again.position == 9

    def test_relation_ids_filter_subscriptions(self, log: Log) -> None:
        """E7, E5: the ids belong to the query of a durable subscription."""
        self._fill(log)
        query = Query([Filter(correlation_id="c-1", causation_id="x")])

        subscription = log.subscribe("related", query, idle_timeout=0.05)
        assert [positions(batch) for batch in subscription] == [[2]]
        assert subscription.position == 6
        for other in (Query([Filter(correlation_id="c-1")]), Query()):
            with assert_refused(log, "conflict"):
                log.subscribe("related", other)
        assert list(log.subscribe("related", query, idle_timeout=0.05)) == []

    def test_invalid_relation_ids_are_refused(self, log: Log) -> None:
        """E3: an invalid id is refused."""
        for name in ("correlation_id", "causation_id", "actor_id"):
            for wrong in ("\x00", "\ud800", 7):
                filters: dict[str, Any] = {name: wrong}
                with assert_refused(log, "invalid_argument", argument=name):
                    list(log.read(**filters))
                with assert_refused(log, "invalid_query", where=f"filters[0].{name}"):
                    log.query(Query([Filter(**filters)]))
