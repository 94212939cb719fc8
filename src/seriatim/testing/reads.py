"""Section E: reads by position, by stream and in batches, with every filter."""

from __future__ import annotations

from typing import Any, Unpack

from seriatim.core.query import Filter, Query
from seriatim.core.times import parse_us
from seriatim.factory import Log
from seriatim.log.arguments import ReadFilters
from seriatim.store.port import EVENT_COUNT_MAX, EVENT_TYPES_MAX
from seriatim.testing.factories import (
    assert_all_refused,
    assert_refused,
    event,
    events,
    positions,
    stream_seqs,
    trace,
)


def read_positions(log: Log, **filters: Unpack[ReadFilters]) -> list[int]:
    """Return the positions of a read; check that its pages and batches agree."""
    all_positions = positions(list(log.read(**filters)))
    assert positions(log.page(**filters).records) == all_positions
    assert [p for batch in log.read_batches(batch_size=2, **filters) for p in positions(batch)] == (
        all_positions
    )
    return all_positions


class ReadContract:
    """E1 to E3: reads are ascending, apply all filters and check their arguments first."""

    def test_after_is_exclusive_and_until_inclusive(self, log: Log) -> None:
        """E1: `after` is exclusive, `until` inclusive."""
        log.append(events(5))

        assert read_positions(log) == [1, 2, 3, 4, 5]
        assert read_positions(log, after=2) == [3, 4, 5]
        assert read_positions(log, until=2) == [1, 2]
        assert read_positions(log, after=1, until=3) == [2, 3]
        assert read_positions(log, after=3, until=3) == []
        assert read_positions(log, after=5) == []
        assert read_positions(log, after=10**9) == []
        assert read_positions(log, until=10**9) == [1, 2, 3, 4, 5]

    def test_empty_log_has_head_0(self, log: Log) -> None:
        """E1: an empty log has head 0 and nothing to read."""
        assert log.head() == 0
        assert read_positions(log) == []
        assert log.page().last_scanned == 0
        assert list(log.read_stream(("s", "1"))) == []
        assert log.last_event(("s", "1")) is None
        assert log.streams() == []

    def test_types_are_ored(self, log: Log) -> None:
        """E1: several types are OR-ed; an empty list matches nothing."""
        log.append([event("a"), event("b"), event("A"), event("c")])

        assert read_positions(log, types=["a", "c"]) == [1, 4]
        assert read_positions(log, types=["absent"]) == []
        assert read_positions(log, types=[]) == []

    def test_types_are_found_along_a_whole_stream(self, log: Log) -> None:
        """E1, D1: a rare type is found at the start, middle and end of a long stream."""
        rare = (3, 99, 100, 101, 119)
        stream, other = ("s", "1"), ("s", "2")
        batch = [
            event("rare" if number in rare else "often", stream=to)
            for number in range(120)
            for to in (other, stream)
        ]
        log.append(batch)

        found = [2 * number + 2 for number in rare]
        assert read_positions(log, stream=stream, types=["rare"]) == found
        assert read_positions(log, stream=stream, types=["rare", "absent"], after=9) == found[1:]
        assert read_positions(log, stream=stream, types=["rare"], until=202) == found[:3]
        assert (
            positions(list(log.read(stream=stream, types=["rare"], newest_first=True)))
            == (found[::-1])
        )
        query = Query([Filter(types=["rare"], streams=[stream])])
        assert positions(log.query(query).records) == found
        assert log.query(query).context_version == found[-1]
        assert positions(log.query(query, after=9, until=202).records) == found[1:3]
        assert log.query(query, head=202).context_version == found[2]

    def test_stream_is_selected_by_type_and_id(self, log: Log) -> None:
        """E1: a read can be limited to one stream, by type and id."""
        log.append(
            [event(stream=("s", "1")), event(stream=("s", "2")), event(), event(stream=("r", "1"))]
        )

        assert read_positions(log, stream=("s", "1")) == [1]
        assert read_positions(log, stream=("r", "1")) == [4]
        assert read_positions(log, stream=("s", "absent")) == []

    def test_scopes_filter_alone_and_together(self, log: Log) -> None:
        """E1: app and env filter alone and together; an empty name is a name."""
        log.append(
            [
                event(app_id="a", env_id="x"),
                event(app_id="a", env_id="y"),
                event(app_id="b", env_id="x"),
                event(),
                event(app_id=""),
            ]
        )

        assert read_positions(log, app_id="a") == [1, 2]
        assert read_positions(log, env_id="x") == [1, 3]
        assert read_positions(log, app_id="a", env_id="x") == [1]
        assert read_positions(log, app_id="absent") == []
        assert read_positions(log, app_id="") == [5]

    def test_reads_by_profile(self, log: Log) -> None:
        """A9: the log reads all events, traces read traces, aggregates all other streams."""
        log.append(trace("t")[:2])
        log.append([event(stream=("order", "1")), event()])

        assert read_positions(log) == [1, 2, 3, 4]
        assert positions(log.page(scope="traces").records) == [1, 2]
        assert positions(log.page(scope="aggregates").records) == [3]

    def test_occurred_at_window_compares_instants(self, log: Log) -> None:
        """E1: a window of `occurred_at` excludes its start and compares instants, not texts."""
        times = [
            "2024-01-01T12:00:00Z",
            "2024-01-01T13:00:00+01:00",
            "2024-01-01T12:00:00.000001Z",
            "2024-01-01T10:00:00-03:00",
            "2023-12-31T23:59:59.999999Z",
        ]
        log.append([event(occurred_at=text) for text in times])

        assert read_positions(log, occurred_after="2024-01-01T12:00:00Z") == [3, 4]
        assert read_positions(log, occurred_after="2024-01-01T11:59:59.999999Z") == [1, 2, 3, 4]
        assert read_positions(log, occurred_until="2024-01-01T12:00:00Z") == [1, 2, 5]
        assert read_positions(log, occurred_until="2023-12-31T23:59:59.999999Z") == [5]
        noon = "2024-01-01T12:00:00Z"
        assert read_positions(log, occurred_after=noon, occurred_until=noon) == []
        assert read_positions(log, occurred_after=times[4], occurred_until=noon) == [1, 2]

    def test_times_before_1970_are_compared(self, log: Log) -> None:
        """E1: times before 1970 are compared correctly."""
        log.append(
            [event(occurred_at="1969-12-31T23:59:59.5Z"), event(occurred_at="0001-01-01T00:00:00Z")]
        )

        assert read_positions(log, occurred_until="1969-12-31T23:59:59.5Z") == [1, 2]
        assert read_positions(
            log, occurred_after="1900-01-01T00:00:00Z", occurred_until="1970-01-01T00:00:00Z"
        ) == [1]

    def test_recorded_at_window_is_exact_to_the_microsecond(self, log: Log) -> None:
        """E1: a window of `recorded_at` has the same bounds, exact to the microsecond."""
        for _ in range(4):
            log.append([event(occurred_at="2001-01-01T00:00:00Z")])
        records = list(log.read())
        bound = records[1].recorded_at
        limit = parse_us(bound) or 0

        late = [r.position for r in records if (parse_us(r.recorded_at) or 0) > limit]
        early = [r.position for r in records if (parse_us(r.recorded_at) or 0) <= limit]
        assert read_positions(log, recorded_after=bound) == late
        assert read_positions(log, recorded_until=bound) == early
        assert 2 in early

    def test_default_occurred_at_is_the_time_of_recording(self, log: Log) -> None:
        """E1: an event without a time of its own is found by the time that the store sets."""
        log.append(events(1))
        (record,) = log.read()

        assert read_positions(log, occurred_until=record.recorded_at) == [1]
        assert read_positions(log, occurred_after=record.recorded_at) == []

    def test_all_filters_are_anded(self, log: Log) -> None:
        """E1: a read returns the events that match every filter."""
        fields: dict[str, Any] = {
            "event_type": "a",
            "stream": ("s", "1"),
            "app_id": "app",
            "env_id": "env",
            "occurred_at": "2024-01-01T00:00:00Z",
        }
        log.append([event(**fields), event(**(fields | {"event_type": "b"}))])
        log.append([event(**(fields | {"app_id": None})), event(**(fields | {"env_id": "e"}))])
        log.append([event(**(fields | {"stream": ("s", "2")})), event(**fields)])
        filters: dict[str, Any] = {
            "types": ["a"],
            "stream": ("s", "1"),
            "app_id": "app",
            "env_id": "env",
            "occurred_after": "2023-12-31T00:00:00Z",
            "occurred_until": "2024-01-01T00:00:00Z",
            "recorded_after": "2020-01-01T00:00:00Z",
        }

        assert read_positions(log, **filters) == [1, 6]
        assert read_positions(log, **filters, after=1) == [6]
        assert read_positions(log, **filters, until=5) == [1]

    def test_empty_page_advances(self, log: Log) -> None:
        """E1: a page returns the last scanned position, so that filtered reads advance."""
        log.append([*events(5), event("rare"), *events(4)])

        page = log.page(types=["absent"])
        assert (page.records, page.last_scanned) == ([], 10)
        page = log.page(types=["absent"], until=4)
        assert page.last_scanned == 4
        page = log.page(types=["rare"], limit=1)
        assert (positions(page.records), page.last_scanned) == ([6], 6)
        page = log.page(types=["rare"], after=6, limit=1)
        assert (page.records, page.last_scanned) == ([], 10)
        assert log.page(after=10).last_scanned == 10
        assert log.page(after=50).last_scanned == 50
        assert log.page(until=50).last_scanned == 10

    def test_paging_by_last_scanned_reads_each_event_once(self, log: Log) -> None:
        """E1: paging by last_scanned reads every event once, including new ones."""
        log.append(events(5))
        seen: list[int] = []
        after = 0
        while len(seen) < 8:
            page = log.page(after=after, limit=2)
            seen += positions(page.records)
            after = page.last_scanned
            if after == 4:
                log.append(events(3))

        assert seen == [1, 2, 3, 4, 5, 6, 7, 8]

    def test_limit_ends_a_read_at_any_batch_size(self, log: Log) -> None:
        """E1: a limit ends a read at any batch size."""
        log.append(events(7))

        for limit in (1, 2, 3, 6, 7, 8, 100):
            result = positions(list(log.read(limit=limit, batch_size=3, after=1)))
            assert result == [2, 3, 4, 5, 6, 7][:limit]
        assert positions(log.page(limit=3).records) == [1, 2, 3]

    def test_stream_is_read_by_number(self, log: Log) -> None:
        """E2: a stream is read in the order of its numbers, after an exclusive bound."""
        log.append([event(stream=("s", str(number % 2))) for number in range(6)])

        def after(since: int | None) -> list[int | None]:
            return [r.stream_seq for r in log.read_stream(("s", "0"), since=since)]

        assert after(None) == [1, 2, 3]
        assert after(0) == [1, 2, 3]
        assert after(1) == [2, 3]
        assert after(3) == []
        assert after(10**9) == []
        assert [r.stream_seq for r in log.read_stream(("s", "0"), limit=2)] == [1, 2]
        assert [r.stream_seq for r in log.read_stream(("s", "0"), since=1, limit=1)] == [2]

    def test_stream_numbered_from_zero_is_read_completely(self, log: Log) -> None:
        """E2: a stream numbered from 0 is read completely by default, and from 1 after 0."""
        log.append(trace("t"))

        assert stream_seqs(log, ("trace", "t")) == list(range(10))
        assert [r.stream_seq for r in log.read_stream(("trace", "t"), since=-1)] == list(range(10))
        assert next(log.read_stream(("trace", "t"), since=0)).stream_seq == 1

    def test_last_event_of_a_stream_is_found(self, log: Log) -> None:
        """E2: the last event of a stream is returned, None if the stream does not exist."""
        log.append([event(stream=("s", "1"), n=1), event(stream=("s", "1"), n=2), event()])

        last = log.last_event(("s", "1"))
        assert last is not None
        assert (last.position, last.stream_seq, last.payload) == (2, 2, {"n": 2})
        assert log.last_event(("s", "2")) is None

    def test_batches_do_not_overlap(self, log: Log) -> None:
        """E2: batches are ascending, complete and keep the filters, for every size."""
        log.append([event("a" if number % 2 else "b", n=number) for number in range(11)])

        for size in (1, 2, 3, 5, 6, 100):
            batches = [positions(batch) for batch in log.read_batches(batch_size=size, types=["a"])]
            assert [p for batch in batches for p in batch] == [2, 4, 6, 8, 10]
            assert all(0 < len(batch) <= size for batch in batches)

    def test_streams_are_listed_in_the_order_of_their_first_events(self, log: Log) -> None:
        """E2: streams are listed with their first and last position, in pages."""
        log.append([event("a", stream=("s", "2")), event("b", stream=("s", "1")), event()])
        log.append([event("c", stream=("r", "1")), event("d", stream=("s", "2"))])

        first, second, third = log.streams()
        assert (first.stream_type, first.stream_id) == ("s", "2")
        assert (first.first_position, first.last_position) == (1, 5)
        assert (first.last_seq, first.last_type) == (2, "d")
        assert [summary.stream_id for summary in (second, third)] == ["1", "1"]
        assert log.streams("s") == [first, second]
        assert log.streams(limit=1) == [first]
        assert log.streams(after=first.first_position, limit=1) == [second]
        assert log.streams("absent") == []

    def test_event_types_are_listed_by_name(self, log: Log) -> None:
        """E7: event types are listed by name, with their number of events and last position."""
        other = log.for_tenant("other-tenant")
        log.append([event("order.paid"), event("order.placed"), event("seat.held"), event("order")])
        other.append([event("order.paid"), event("order.secret")])
        log.append([event("order.paid"), event("ord\U0010ffff"), event("Order")])

        found = log.event_types()
        assert [one.event_type for one in found] == sorted(
            ["order.paid", "order.placed", "seat.held", "order", "ord\U0010ffff", "Order"]
        )
        assert {(one.event_type, one.counted, one.last_position) for one in found} == {
            ("Order", 1, 9),
            ("order", 1, 4),
            ("order.paid", 2, 7),
            ("order.placed", 1, 2),
            ("ord\U0010ffff", 1, 8),
            ("seat.held", 1, 3),
        }
        assert all(one.exact for one in found)
        of_orders = log.event_types("order.")
        assert [one.event_type for one in of_orders] == ["order.paid", "order.placed"]
        assert log.event_types("order.", limit=1) == of_orders[:1]
        assert log.event_types("order.", after="order.paid") == of_orders[1:]
        assert log.event_types("ord\U0010ffff") == [found[-2]]
        assert log.event_types(after="zzz") == log.event_types("absent") == []
        assert [one.event_type for one in other.event_types()] == ["order.paid", "order.secret"]

    def test_event_types_are_counted_up_to_a_bound(self, log: Log) -> None:
        """K3, N1: counting stops at a bound, so that its cost does not grow with the log."""
        most = EVENT_COUNT_MAX
        log.append([event("rare")])
        for _ in range(2):
            log.append([event("full") for _ in range(most // 2)])
        full, rare = log.event_types()
        assert (full.counted, full.exact, full.last_position) == (most, True, most + 1)
        log.append([event("full")])
        full, rare = log.event_types()
        assert (full.counted, full.exact, full.last_position) == (most, False, most + 2)
        assert (rare.counted, rare.exact) == (1, True)

    def test_event_is_found_by_its_id(self, log: Log) -> None:
        """L3: an event is found by its id; an unknown id is `not_found`."""
        log.append([event(event_id="e-1"), event(event_id="0190b5e2-0000-7000-8000-000000000001")])

        assert log.event("e-1").position == 1
        assert log.event("0190b5e2-0000-7000-8000-000000000001").position == 2
        with assert_refused(log, "not_found", event_id="E-1"):
            log.event("E-1")

    def test_missing_stream_has_no_events(self, log: Log) -> None:
        """L3: reading a missing stream returns no events and raises no error."""
        log.append(events(1))

        assert list(log.read_stream(("absent", "1"))) == []
        assert list(log.read(stream=("absent", "1"))) == []

    def test_reversed_bounds_and_invalid_sizes_are_refused(self, log: Log) -> None:
        """E3: reversed bounds, reversed windows and invalid sizes are refused and named."""
        log.append(events(3))
        early, late = "2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"
        cases: dict[str, tuple[dict[str, Any], str]] = {
            "reversed": ({"after": 3, "until": 2}, "until"),
            "negative": ({"after": -1}, "after"),
            "too large": ({"after": 2**63}, "after"),
            "until too large": ({"until": 2**63}, "until"),
            "text": ({"after": "1"}, "after"),
            "boolean": ({"until": True}, "until"),
            "float": ({"after": 1.0}, "after"),
            "occurred reversed": (
                {"occurred_after": late, "occurred_until": early},
                "occurred_until",
            ),
            "recorded reversed": (
                {"recorded_after": late, "recorded_until": early},
                "recorded_until",
            ),
            "no time": ({"occurred_after": "yesterday"}, "occurred_after"),
            "before the year 1": (
                {"occurred_after": "0001-01-01T00:00:00+23:59"},
                "occurred_after",
            ),
            "after the year 9999": ({"recorded_until": "9999-12-31T23:59:60Z"}, "recorded_until"),
            "no zone": ({"recorded_until": "2024-01-01T00:00:00"}, "recorded_until"),
            "time a number": ({"recorded_after": 1}, "recorded_after"),
            "types a string": ({"types": "a"}, "types"),
            "types a number": ({"types": 1}, "types"),
            "type empty": ({"types": [""]}, "types"),
            "stream a string": ({"stream": "s"}, "stream"),
            "stream of one": ({"stream": ("s",)}, "stream"),
            "stream id empty": ({"stream": ("s", "")}, "stream"),
            "app a number": ({"app_id": 1}, "app_id"),
            "app with NUL": ({"app_id": "a\0"}, "app_id"),
            "env a surrogate": ({"env_id": "\ud800"}, "env_id"),
            "since without a stream": ({"since_seq": 1}, "since_seq"),
            "since text": ({"since_seq": "1"}, "since_seq"),
            "since negative": ({"since_seq": -2}, "since_seq"),
            "since too large": ({"since_seq": 2**63}, "since_seq"),
        }
        refused_by_name = {
            name: (filters, "invalid_argument", field) for name, (filters, field) in cases.items()
        }
        assert_all_refused(log, lambda filters: log.page(**filters), refused_by_name)
        assert_all_refused(log, lambda filters: log.read(**filters), refused_by_name)
        assert_all_refused(log, lambda filters: log.read_batches(**filters), refused_by_name)

    def test_sizes_are_bounded(self, log: Log) -> None:
        """E3: limits and batch sizes lie between 1 and the maximum."""
        operations: dict[str, Any] = {
            "page": lambda size: log.page(limit=size),
            "batches": lambda size: log.read_batches(batch_size=size),
            "read": lambda size: log.read(batch_size=size),
            "streams": lambda size: log.streams(limit=size),
        }
        for operation in operations.values():
            cases = {
                repr(size): (size, "invalid_argument", "limit")
                for size in (0, -1, 10_001, "1", 1.0, True)
            }
            assert_all_refused(log, operation, cases)
        assert_all_refused(
            log,
            lambda limit: log.event_types(limit=limit),
            {
                repr(n): (n, "invalid_argument", "limit")
                for n in (0, -1, EVENT_TYPES_MAX + 1, "1", 1.0, True)
            },
        )
        assert_all_refused(
            log,
            lambda limit: log.read(limit=limit),
            {repr(n): (n, "invalid_argument", "limit") for n in (0, -1, "1", 1.0, True)},
        )
        assert log.page(limit=10_000).records == []

    def test_invalid_ids_are_refused(self, log: Log) -> None:
        """A4: an invalid id in a read is refused, never altered."""
        wrong: list[Any] = ["", " a", "a\n", "\ud800", "x" * 513, 1]
        operations: dict[str, Any] = {
            "event_id": log.event,
            "stream": lambda name: log.last_event(("s", name)),
            "tenant_id": log.for_tenant,
            "stream_type": log.streams,
            "prefix": lambda name: log.event_types(name or " "),
            "after": lambda name: log.event_types(after=name or " "),
        }
        for field, operation in operations.items():
            cases = {repr(name): (name, "invalid_argument", field) for name in wrong}
            assert_all_refused(log, operation, cases)
