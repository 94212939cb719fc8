"""Seed 001: the compliance checklist of the facts profile."""

import threading
from typing import Any

import pytest

import seriatim
from seriatim import Filter, NewEvent, Query
from seriatim.profiles.facts import (
    FactAppendConflict,
    FactAppendResult,
    FactQueryResult,
    Facts,
)


@pytest.fixture
def facts(log: seriatim.Log) -> Facts:
    """The profile on an empty log."""
    return log.facts


@pytest.fixture
def tools(facts: Facts) -> Facts:
    """Four facts about two tools."""
    facts.append(
        [
            {"event_type": "tool_registered", "payload": {"tool_id": "tool_1"}},
            {"event_type": "tool_registered", "payload": {"tool_id": "tool_2"}},
            {"event_type": "tool_checked_out", "payload": {"tool_id": "tool_1", "by": ["ann"]}},
            {"event_type": "tool_returned", "payload": {"tool_id": "tool_1"}},
        ]
    )
    return facts


TOOL_1 = {"filters": [{"payload_predicates": [{"tool_id": "tool_1"}]}]}


def numbers(result: FactQueryResult) -> list[int]:
    """Return the sequence numbers of the returned records."""
    return [record.sequence_number for record in result.event_records]


def fact(name: str = "noted", payload: Any = None) -> dict[str, Any]:
    """Return a fact to append."""
    return {"event_type": name, "payload": payload}


# -- append


def test_rejects_an_empty_append(facts: Facts, log: seriatim.Log) -> None:
    """B2: append and append_if refuse an empty batch."""
    with pytest.raises(seriatim.EmptyAppend):
        facts.append([])
    with pytest.raises(seriatim.EmptyAppend):
        facts.append_if([], {}, None)
    assert log.head() == 0


def test_a_batch_gets_one_consecutive_range(facts: Facts) -> None:
    """B1: the receipt has the consecutive range of the batch."""
    first = facts.append([fact(), fact()])
    more: list[NewEvent | dict[str, Any]] = [NewEvent("noted", 3), fact(), fact()]
    second = facts.append(iter(more))

    assert first == FactAppendResult(1, 2, 2)
    assert second == FactAppendResult(3, 5, 3)


def test_a_failed_append_commits_nothing_and_uses_no_number(facts: Facts) -> None:
    """B3: a batch with an invalid event stores nothing and uses no sequence number."""
    facts.append([fact()])
    with pytest.raises(seriatim.InvalidEvent) as caught:
        facts.append([fact(), fact(payload=float("nan"))])

    assert caught.value.details["index"] == 1
    assert numbers(facts.query()) == [1]
    assert facts.append([fact()]).first_sequence_number == 2


@pytest.mark.parametrize(
    "payload", [None, True, 0, -1.5, 10**40, "text", [], {}, [1, {"deep": [None]}]]
)
def test_a_payload_is_any_json_value(facts: Facts, payload: Any) -> None:
    """A3: the payload of a fact may be any JSON value."""
    facts.append([fact(payload=payload)])
    (record,) = facts.query().event_records

    assert record.payload == payload
    assert type(record.payload) is type(payload)


@pytest.mark.parametrize(
    "event",
    [
        {"payload": 1},
        {"event_type": "noted"},
        {"event_type": "", "payload": 1},
        {"event_type": None, "payload": 1},
        {"event_type": "noted", "payload": {1: 2}},
        {"event_type": "noted", "payload": "\0"},
        {"event_type": "noted", "payload": 1, "sequence_number": 7},
        {"event_type": "noted", "payload": 1, "occurred_at": "2026-01-01T00:00:00Z"},
        {"event_type": "noted", "payload": 1, "recorded_at": "2026-01-01T00:00:00Z"},
        {"event_type": "noted", "payload": 1, "colour": "red"},
        {"event_type": "noted", "payload": 1, "tags": "red"},
        {"event_type": "noted", "payload": 1, "idempotency_key": ""},
        NewEvent("noted", 1, occurred_at="2026-01-01T00:00:00Z"),
        NewEvent("noted", {1, 2}),
        "noted",
        None,
    ],
)
def test_every_malformed_event_is_an_invalid_event(facts: Facts, event: Any) -> None:
    """L3: every malformed fact is `invalid_event` with its index."""
    with pytest.raises(seriatim.InvalidEvent) as caught:
        facts.append([fact(), event])

    assert caught.value.details["index"] == 1
    assert numbers(facts.query()) == []


def test_occurred_at_is_the_stores_time(facts: Facts, log: seriatim.Log) -> None:
    """B2: the store sets occurred_at of a fact to the time of recording."""
    facts.append([fact()])
    (record,) = facts.query().event_records

    assert record.occurred_at == log.event(record.event_id).recorded_at


def test_a_repeated_append_returns_its_first_receipt(facts: Facts) -> None:
    """C4: an append repeated with its idempotency key returns the first receipt."""
    first = facts.append([fact(), fact()], idempotency_key="order-7")
    again = facts.append([fact(), fact()], idempotency_key="order-7")

    assert (again.first_sequence_number, again.last_sequence_number) == (1, 2)
    assert again.replayed
    assert not first.replayed


# -- query


def test_records_are_in_ascending_order(tools: Facts) -> None:
    """D1: records are ordered by sequence number for any filters."""
    result = tools.query({"filters": [{"event_types": ["tool_returned", "tool_registered"]}]})

    assert numbers(result) == [1, 2, 4]
    assert [record.event_type for record in result.event_records][-1] == "tool_returned"


def test_min_sequence_number_limits_returned_records_only(tools: Facts) -> None:
    """D4: min_sequence_number limits the returned records, but not the context version."""
    result = tools.query({**TOOL_1, "min_sequence_number": 3})

    assert numbers(result) == [4]
    assert result.last_returned_sequence_number == 4
    assert result.current_context_version == 4


def test_last_returned_and_context_version_are_separate(tools: Facts) -> None:
    """D1: a context has a version without returned records, and none without matches."""
    beyond = tools.query({**TOOL_1, "min_sequence_number": 4})
    nothing = tools.query({"filters": [{"event_types": ["unheard"]}]})

    assert numbers(beyond) == numbers(nothing) == []
    assert beyond.last_returned_sequence_number is None
    assert beyond.current_context_version == 4
    assert nothing.last_returned_sequence_number is None
    assert nothing.current_context_version is None


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (None, [1, 2, 3, 4]),
        ({}, [1, 2, 3, 4]),
        ({"filters": []}, [1, 2, 3, 4]),
        ({"filters": [{}]}, [1, 2, 3, 4]),
        ({"filters": None}, [1, 2, 3, 4]),
        ({"filters": [{"event_types": []}]}, []),
        ({"filters": [{"payload_predicates": []}]}, []),
        ({"filters": [{"event_types": ["tool_returned"], "payload_predicates": []}]}, []),
        ({"filters": [{"event_types": []}, {"event_types": ["tool_returned"]}]}, [4]),
        ({"filters": [{"event_types": ["tool_returned", "tool_checked_out"]}]}, [3, 4]),
        ({"filters": [{"payload_predicates": [{"tool_id": "tool_2"}, {"by": ["ann"]}]}]}, [2, 3]),
        (
            {
                "filters": [
                    {
                        "event_types": ["tool_registered"],
                        "payload_predicates": [{"tool_id": "tool_1"}],
                    }
                ]
            },
            [1],
        ),
        (
            {
                "filters": [
                    {"event_types": ["tool_returned"]},
                    {"payload_predicates": [{"tool_id": "tool_2"}]},
                ]
            },
            [2, 4],
        ),
        ({"filters": [{"payload_predicates": [{}]}]}, [1, 2, 3, 4]),
        ({"filters": [{"payload_predicates": [{"by": "ann"}]}]}, []),
        ({"filters": [{"payload_predicates": [{"by": []}]}]}, [3]),
        (Query([Filter(types=["tool_returned"])]), [4]),
        (Query(), [1, 2, 3, 4]),
    ],
)
def test_filter_semantics(tools: Facts, query: Any, expected: list[int]) -> None:
    """D2: a missing part matches everything, an empty one nothing; parts are combined by AND."""
    result = tools.query(query)

    assert numbers(result) == expected
    assert result.current_context_version == (expected[-1] if expected else None)


def test_the_example_of_the_specification(facts: Facts) -> None:
    """D4: the version covers the whole context, the records only those after 40."""
    other = [fact("noise", {"tool_id": "tool_1"})] * 39
    facts.append([fact("tool_registered", {"tool_id": "tool_1"}), *other])
    query = {
        "filters": [
            {
                "event_types": ["tool_registered", "tool_checked_out"],
                "payload_predicates": [{"tool_id": "tool_1"}],
            }
        ],
        "min_sequence_number": 40,
    }
    before = facts.query(query)
    facts.append([fact("tool_checked_out", {"tool_id": "tool_1"})])
    after = facts.query(query)

    assert (numbers(before), before.current_context_version) == ([], 1)
    assert (numbers(after), after.current_context_version) == ([41], 41)


@pytest.mark.parametrize(
    "query",
    [
        7,
        "everything",
        [],
        {"filter": []},
        {"filters": {}},
        {"filters": [7]},
        {"filters": [{"event_types": "tool"}]},
        {"filters": [{"event_types": [7]}]},
        {"filters": [{"payload_predicates": {"tool_id": 1}}]},
        {"filters": [{"payload_predicates": [{"x": "\0"}]}]},
        {"filters": [{"payload_predicates": [{"x": "\ud800"}]}]},
        {"filters": [{"colour": []}]},
        {"min_sequence_number": -1},
        {"min_sequence_number": "1"},
        {"min_sequence_number": True},
        {"min_sequence_number": 1 << 70},
        Query(filters="x"),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_query_is_refused(tools: Facts, query: Any) -> None:
    """D6: an invalid query is refused before anything is read or stored."""
    with pytest.raises(seriatim.InvalidQuery):
        tools.query(query)
    with pytest.raises(seriatim.InvalidQuery):
        tools.append_if([fact()], query, 4)
    assert numbers(tools.query()) == [1, 2, 3, 4]


def test_pages_belong_to_one_snapshot(tools: Facts) -> None:
    """D1: later pages have the version and the records of the first page's snapshot."""
    first = tools.query(TOOL_1, limit=2)
    tools.append([fact("tool_lost", {"tool_id": "tool_1"})])
    last = first.last_returned_sequence_number
    second = tools.query(TOOL_1, limit=2, after=last, head=first.head)

    assert (numbers(first), first.more) == ([1, 3], True)
    assert (numbers(second), second.more) == ([4], False)
    assert first.current_context_version == second.current_context_version == 4


# -- append_if


def test_commits_when_the_context_is_unchanged(tools: Facts) -> None:
    """D5: append_if succeeds if no fact of the context was appended meanwhile."""
    seen = tools.query(TOOL_1)
    tools.append([fact("tool_registered", {"tool_id": "tool_3"})])
    result = tools.append_if([fact("lent", {"tool_id": "tool_1"})], TOOL_1, 4)

    assert seen.current_context_version == 4
    assert result == FactAppendResult(6, 6, 1)


@pytest.mark.parametrize(("expected", "actual"), [(3, 4), (None, 4), (99, 4)])
def test_a_changed_context_is_returned_as_a_conflict(
    tools: Facts, expected: int | None, actual: int
) -> None:
    """D5: a changed context is returned as a conflict with both versions, and nothing is stored."""
    result = tools.append_if([fact(), fact()], TOOL_1, expected)

    assert result == FactAppendConflict(expected, actual)
    assert not result
    assert numbers(tools.query()) == [1, 2, 3, 4]
    assert tools.append([fact()]).first_sequence_number == 5


def test_absent_equals_absent_only(tools: Facts) -> None:
    """D5: a missing version equals only a missing expectation."""
    unheard = {"filters": [{"event_types": ["unheard"]}]}

    assert tools.append_if([fact()], unheard, 1) == FactAppendConflict(1, None)
    assert tools.append_if([fact("unheard")], unheard, None)
    assert tools.append_if([fact("unheard")], unheard, None) == FactAppendConflict(None, 5)


def test_min_sequence_number_is_ignored_in_conflicts(tools: Facts) -> None:
    """D5: append_if ignores min_sequence_number of the query."""
    late = {**TOOL_1, "min_sequence_number": 4}

    assert tools.append_if([fact()], late, None) == FactAppendConflict(None, 4)
    assert tools.append_if([fact()], late, 4)


@pytest.mark.parametrize("expected", [0, -1, True, "4", 4.0, 1 << 63])
def test_invalid_expected_versions_are_refused(tools: Facts, expected: Any) -> None:
    """D6: an invalid expected version is refused under the name of the argument."""
    with pytest.raises(seriatim.InvalidArgument) as caught:
        tools.append_if([fact()], TOOL_1, expected)

    assert caught.value.details["argument"] == "expected_context_version"


def test_a_retry_does_not_conflict_with_its_append(tools: Facts) -> None:
    """B4: a repeated conditional append returns its receipt."""
    event = fact("lent", {"tool_id": "tool_1"})
    first = tools.append_if([event], TOOL_1, 4, idempotency_key="lend-1")
    again = tools.append_if([event], TOOL_1, 4, idempotency_key="lend-1")

    assert isinstance(first, FactAppendResult)
    assert again == FactAppendResult(5, 5, 1, replayed=True)


def test_exactly_one_concurrent_append_on_a_context_succeeds(facts: Facts) -> None:
    """B9: check and append are one atomic operation."""
    query = {"filters": [{"event_types": ["seat_taken"]}]}
    results: list[FactAppendResult | FactAppendConflict] = []
    barrier = threading.Barrier(8)

    def take(number: int) -> None:
        barrier.wait()
        results.append(facts.append_if([fact("seat_taken", number)], query, None))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(map(bool, results)) == 1
    assert [result for result in results if not result] == [FactAppendConflict(None, 1)] * 7
    assert numbers(facts.query(query)) == [1]


# -- streams


def test_a_tail_yields_one_batch_per_append(tools: Facts) -> None:
    """E5: a tail yields the matching records of each append as one batch, in order."""
    tools.append([fact("tool_lost", {"tool_id": "tool_1"})])
    stream = tools.tail(TOOL_1, after=0, idle_timeout=0.05)

    found = [[record.sequence_number for record in batch] for batch in stream]
    assert found == [[1, 3, 4], [5]]


def test_a_tail_applies_min_sequence_number(tools: Facts) -> None:
    """D4: min_sequence_number limits the records of a tail."""
    stream = tools.tail({**TOOL_1, "min_sequence_number": 3}, after=0, idle_timeout=0.05)

    assert [[record.sequence_number for record in batch] for batch in stream] == [[4]]


def test_a_subscription_continues_at_its_cursor(tools: Facts) -> None:
    """E5: a subscription continues at its cursor; its name with another query conflicts."""
    seen: list[int] = []

    def note(batch: list[Any]) -> None:
        seen.extend(record.sequence_number for record in batch)

    tools.subscribe("notes", TOOL_1, idle_timeout=0.05).run(note)
    tools.append([fact("tool_lost", {"tool_id": "tool_1"})])
    tools.subscribe("notes", TOOL_1, idle_timeout=0.05).run(note)

    assert seen == [1, 3, 4, 5]
    with pytest.raises(seriatim.Conflict):
        tools.subscribe("notes", {})


def test_facts_include_every_event_of_the_tenant(log: seriatim.Log) -> None:
    """A9: facts include events of all streams of the tenant, and none of other tenants."""
    log.append([NewEvent("order.placed", {"n": 1}, stream=("order", "o-1"), tags=("x",))])
    log.for_tenant("acme").append([NewEvent("order.placed", {})])
    (record,) = log.facts.query().event_records

    assert (record.stream, record.tags) == (("order", "o-1"), ("x",))
