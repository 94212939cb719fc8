"""Seed 002: reads of traces, their filters and bounds, and cursors of projections."""

import inspect
from typing import Any

import pytest

import seriatim
from seriatim.profiles.traces import StoredEvent, Traces
from tests.contract.profiles.trace_factories import append_trace, envelope

OFFERED = {
    "append_event",
    "get_trace_events",
    "list_events",
    "iter_event_batches",
    "get_last_log_seq",
    "is_trace_finished",
    "get_next_trace_seq",
    "get_projection_cursor",
    "put_projection_cursor",
    "list_projection_cursors",
}


def positions(events: list[StoredEvent]) -> list[int]:
    """Return the positions of events."""
    return [event.log_seq for event in events]


@pytest.fixture
def two_traces(log: seriatim.Log) -> seriatim.Log:
    """Two traces and another event: t-1 at 1, 4 and 5, t-2 at 3 and 6, an order at 2."""
    traces = log.traces
    traces.append_event(envelope(occurred_at="2026-03-01T10:00:00Z"))
    log.append([seriatim.NewEvent("order.placed", {}, stream=("order", "t-1"))])
    traces.append_event(envelope(trace_id="t-2", occurred_at="2026-03-01T12:00:00+02:00"))
    traces.append_event(envelope("PrecedentCited", 1, occurred_at="2026-03-01T11:00:00Z"))
    traces.append_event(envelope("TraceFinished", 2, occurred_at="2026-03-01T12:00:00Z"))
    traces.append_event(envelope("PrecedentCited", 1, "t-2", occurred_at="2026-03-01T09:00:00Z"))
    return log


def test_the_facade_has_ten_methods() -> None:
    """E4: the profile has exactly ten methods."""
    acts = inspect.getmembers(Traces, inspect.isfunction)

    assert {name for name, _ in acts if not name.startswith("_")} == OFFERED


def test_events_of_a_trace_are_ordered_by_number(two_traces: seriatim.Log) -> None:
    """E2: get_trace_events is ordered by trace_seq; since_trace_seq is exclusive."""
    traces = two_traces.traces

    assert [e.trace_seq for e in traces.get_trace_events("t-1")] == [0, 1, 2]
    assert [e.trace_seq for e in traces.get_trace_events("t-1", since_trace_seq=0)] == [1, 2]
    assert [e.trace_seq for e in traces.get_trace_events("t-1", limit=2)] == [0, 1]


def test_missing_trace_has_no_events(log: seriatim.Log) -> None:
    """L3: a trace that does not exist has no events and the next number 0."""
    assert log.traces.get_trace_events("t-9") == []
    assert log.traces.get_next_trace_seq("t-9") == 0
    assert not log.traces.is_trace_finished("t-9")


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [1, 3, 4, 5, 6]),
        ({"trace_id": "t-2"}, [3, 6]),
        ({"event_type": "PrecedentCited"}, [4, 6]),
        ({"trace_id": "t-1", "event_type": "PrecedentCited"}, [4]),
        ({"since_log_seq": 3}, [4, 5, 6]),
        ({"until_log_seq": 4}, [1, 3, 4]),
        ({"since_log_seq": 1, "until_log_seq": 4}, [3, 4]),
        ({"since_log_seq": 4, "until_log_seq": 4}, []),
        ({"since_log_seq": 99}, []),
        ({"since_occurred_at": "2026-03-01T10:00:00Z"}, [4, 5]),
        ({"until_occurred_at": "2026-03-01T10:00:00Z"}, [1, 3, 6]),
        (
            {
                "since_occurred_at": "2026-03-01T09:00:00Z",
                "until_occurred_at": "2026-03-01T12:00:00+01:00",
            },
            [1, 3, 4],
        ),
        ({"trace_id": "nobody"}, []),
    ],
)
def test_filters_of_reads(
    two_traces: seriatim.Log, filters: dict[str, Any], expected: list[int]
) -> None:
    """E1: filters apply to lists, lists with a limit and batches alike."""
    traces = two_traces.traces

    assert positions(traces.list_events(**filters)) == expected
    assert positions(traces.list_events(**filters, limit=2)) == expected[:2]
    batches = list(traces.iter_event_batches(**filters, batch_size=2))
    assert [place for batch in batches for place in positions(batch)] == expected
    assert all(1 <= len(batch) <= 2 for batch in batches)
    limited = list(traces.iter_event_batches(**filters, batch_size=2, limit=3))
    assert [place for batch in limited for place in positions(batch)] == expected[:3]


def test_list_without_a_limit_is_complete() -> None:
    """D6: a list without a limit has all matching events, over several pages."""
    small = seriatim.Settings(limits=seriatim.Limits(page=3))
    with seriatim.open("memory:", settings=small) as narrow:
        append_trace(narrow, "TraceStarted", *["PrecedentCited"] * 7)

        assert positions(narrow.traces.list_events()) == list(range(1, 9))


@pytest.mark.parametrize(
    ("filters", "argument"),
    [
        ({"since_log_seq": 5, "until_log_seq": 4}, "until_log_seq"),
        ({"since_log_seq": -1}, "since_log_seq"),
        ({"since_log_seq": "1"}, "since_log_seq"),
        ({"until_log_seq": 1.5}, "until_log_seq"),
        (
            {
                "since_occurred_at": "2026-03-02T00:00:00Z",
                "until_occurred_at": "2026-03-01T23:59:59Z",
            },
            "until_occurred_at",
        ),
        ({"since_occurred_at": "monday"}, "since_occurred_at"),
        ({"until_occurred_at": 7}, "until_occurred_at"),
        ({"trace_id": ""}, "trace_id"),
        ({"event_type": " "}, "event_type"),
        ({"limit": 0}, "limit"),
        ({"limit": True}, "limit"),
    ],
)
def test_invalid_filters_are_refused(
    log: seriatim.Log, filters: dict[str, Any], argument: str
) -> None:
    """E3: an invalid filter is an invalid argument under its name."""
    for read in (log.traces.list_events, log.traces.iter_event_batches):
        with pytest.raises(seriatim.InvalidArgument) as caught:
            read(**filters)

        assert caught.value.details["argument"] == argument
        assert argument in caught.value.message


def test_unknown_filters_are_refused(log: seriatim.Log) -> None:
    """E3: an unknown filter is a TypeError with its name."""
    unknown: dict[str, Any] = {"colour": "red"}
    for read in (log.traces.list_events, log.traces.iter_event_batches):
        with pytest.raises(TypeError, match="colour"):
            read(**unknown)


@pytest.mark.parametrize("size", [0, -1, 10_001, 1.5])
def test_sizes_are_bounded(log: seriatim.Log, size: Any) -> None:
    """E3: a limit or batch size below 1 or over the maximum is refused."""
    with pytest.raises(seriatim.InvalidArgument, match="batch_size"):
        log.traces.iter_event_batches(batch_size=size)
    with pytest.raises(seriatim.InvalidArgument, match="limit"):
        log.traces.list_events(limit=size)


def test_reads_contain_traces_only(two_traces: seriatim.Log) -> None:
    """A9: reads exclude other streams and facts; the last log_seq is the head."""
    two_traces.facts.append([{"event_type": "fact", "payload": 1}])

    assert positions(two_traces.traces.list_events()) == [1, 3, 4, 5, 6]
    assert two_traces.traces.get_last_log_seq() == two_traces.head() == 7
    assert two_traces.traces.get_trace_events("order") == []


def test_the_state_of_a_trace(two_traces: seriatim.Log) -> None:
    """E4: a trace reports whether it is finished, and its next number."""
    traces = two_traces.traces

    assert traces.is_trace_finished("t-1")
    assert not traces.is_trace_finished("t-2")
    assert (traces.get_next_trace_seq("t-1"), traces.get_next_trace_seq("t-2")) == (3, 2)


def test_tenants_are_isolated(log: seriatim.Log) -> None:
    """K2: a call for another tenant reads that tenant's traces only."""
    log.traces.append_event(envelope(), tenant_id="acme")

    assert log.traces.list_events() == []
    assert log.traces.get_trace_events("t-1") == []
    assert positions(log.traces.list_events(tenant_id="acme")) == [1]
    assert log.traces.get_next_trace_seq("t-1", tenant_id="acme") == 1
    assert positions(log.for_tenant("acme").traces.list_events()) == [1]
    with pytest.raises(seriatim.InvalidArgument, match="tenant_id"):
        log.traces.list_events(tenant_id="")


def test_a_projection_cursor_is_stored(two_traces: seriatim.Log) -> None:
    """E4: a cursor is None, then the stored position with its time."""
    traces = two_traces.traces
    assert traces.get_projection_cursor("graph") is None

    put = traces.put_projection_cursor("graph", 2)
    moved = traces.put_projection_cursor("graph", 5)

    assert (put.projection_name, put.last_log_seq, put.tenant_id) == ("graph", 2, "default")
    assert moved.updated_at >= put.updated_at != ""
    assert traces.get_projection_cursor("graph") == moved


def test_projection_cursors_are_listed_per_tenant(two_traces: seriatim.Log) -> None:
    """E4: the list contains every cursor of the tenant, and no other."""
    traces = two_traces.traces
    for name, place in (("b", 1), ("a", 0), ("B", 2)):
        traces.put_projection_cursor(name, place)
    traces.put_projection_cursor("a", 3, tenant_id="acme")

    listed = traces.list_projection_cursors()
    assert {(one.projection_name, one.last_log_seq) for one in listed} == {
        ("a", 0),
        ("b", 1),
        ("B", 2),
    }
    assert [cursor.last_log_seq for cursor in traces.list_projection_cursors(tenant_id="acme")] == [
        3
    ]


def test_a_cursor_moves_backwards_only_by_a_reset(two_traces: seriatim.Log) -> None:
    """E5: a lower place is refused unless it is a reset."""
    traces = two_traces.traces
    traces.put_projection_cursor("graph", 5)
    with pytest.raises(seriatim.InvalidArgument):
        traces.put_projection_cursor("graph", 4)

    assert traces.put_projection_cursor("graph", 4, reset=True).last_log_seq == 4


@pytest.mark.parametrize("place", [7, -1, True, "3", None])
def test_invalid_cursor_positions_are_refused(two_traces: seriatim.Log, place: Any) -> None:
    """E5: a cursor after the head, or that is no number, is an invalid argument."""
    with pytest.raises(seriatim.InvalidArgument, match="last_log_seq"):
        two_traces.traces.put_projection_cursor("graph", place)


@pytest.mark.parametrize("name", ["", " x", "a\nb", None])
def test_names_of_projections_are_ids(log: seriatim.Log, name: Any) -> None:
    """A4: an invalid projection name is refused."""
    with pytest.raises(seriatim.InvalidArgument, match="projection_name"):
        log.traces.get_projection_cursor(name)
    with pytest.raises(seriatim.InvalidArgument, match="projection_name"):
        log.traces.put_projection_cursor(name, 0)


def test_a_cursor_of_another_epoch_is_refused(two_traces: seriatim.Log) -> None:
    """F8: after the epoch was raised a cursor is refused until it is reset."""
    traces = two_traces.traces
    traces.put_projection_cursor("graph", 3)
    two_traces.store.raise_epoch()

    with pytest.raises(seriatim.LogIdentityChanged):
        traces.get_projection_cursor("graph")
    with pytest.raises(seriatim.LogIdentityChanged):
        traces.put_projection_cursor("graph", 4)
    assert [cursor.last_log_seq for cursor in traces.list_projection_cursors()] == [3]
    traces.put_projection_cursor("graph", 0, reset=True)
    assert traces.get_projection_cursor("graph") is not None


def test_telemetry_events_of_the_profile(log: seriatim.Log) -> None:
    """M1: the profile emits the four telemetry events of the specification."""
    seen: list[str] = []
    log.telemetry.subscribe(lambda event: seen.append(event.name))
    append_trace(log, "TraceStarted")
    append_trace(log, "TraceStarted")
    with pytest.raises(seriatim.EventSequenceInvalid):
        log.traces.append_event(envelope("PrecedentCited", 5))
    list(log.traces.iter_event_batches())

    assert seen == [
        "store.append.stop",
        "store.append.stop",
        "store.idempotency.reuse",
        "store.append.exception",
        "store.read_batch.stop",
    ]
