"""Seed 004: the invariants of aggregates, their organisations, commands and reads."""

import threading
from typing import Any

import pytest

import seriatim
from seriatim import Command, NewEvent, StreamKind
from seriatim.profiles.aggregates import AggregateAppendResult, AggregateEvent, Aggregates
from tests.contract.profiles.trace_factories import envelope

WHO: dict[str, Any] = {"actor_type": "user", "actor_id": "u-1", "request_id": "req-1"}


@pytest.fixture
def aggregates(log: seriatim.Log) -> Aggregates:
    """The profile on an empty log."""
    return log.aggregates


def route_created(n: int = 1, **fields: object) -> dict[str, Any]:
    """Return an event of a command."""
    return {"event_type": "RouteCreated", "payload": {"n": n}, **fields}


def append(
    aggregates: Aggregates, aggregate_id: str = "r-1", *events: Any, **options: Any
) -> AggregateAppendResult:
    """Append to one route of org-1, by default."""
    options = {"org_id": "org-1", "aggregate_type": "route", **WHO, **options}
    return aggregates.append(events or [route_created()], aggregate_id=aggregate_id, **options)


def seqs(events: list[AggregateEvent]) -> list[int]:
    """Return the sequence numbers of events."""
    return [event.aggregate_seq for event in events]


def positions(events: list[AggregateEvent]) -> list[int]:
    """Return the positions of events."""
    return [event.event_id for event in events]


# -- the event


def test_event_has_the_fields_of_the_specification(aggregates: Aggregates) -> None:
    """A1: event_id is the position, aggregate_seq starts at 1, org_id is the tenant."""
    result = append(
        aggregates,
        "r-1",
        route_created(occurred_at="2026-03-01T10:00:00Z", event_version=2, record_id="own-1"),
        idempotency_key="cmd-1",
        app_id="app",
        env_id="prod",
        correlation_id="deploy-1",
        causation_id="7",
    )
    (event,) = result.events

    assert (event.event_id, event.aggregate_seq) == (1, 1)
    assert (event.aggregate_type, event.aggregate_id, event.org_id) == ("route", "r-1", "org-1")
    assert (event.event_type, event.event_version) == ("RouteCreated", 2)
    assert (event.actor_type, event.actor_id, event.request_id) == ("user", "u-1", "req-1")
    assert (event.app_id, event.env_id, event.correlation_id) == ("app", "prod", "deploy-1")
    assert (event.causation_id, event.idempotency_key, event.record_id) == ("7", "cmd-1", "own-1")
    assert event.occurred_at == "2026-03-01T10:00:00Z"
    assert event.payload == {"n": 1}
    with pytest.raises(AttributeError):
        event.event_id = 2  # type: ignore[misc]


def test_occurred_at_defaults_to_the_stores_time(aggregates: Aggregates) -> None:
    """B2: an event without occurred_at gets the time of recording."""
    (event,) = append(aggregates).events

    assert event.occurred_at == event.recorded_at


def test_global_and_aggregate_order(aggregates: Aggregates) -> None:
    """B5: events have a global order, and gapless numbers within each aggregate."""
    append(aggregates, "r-1", route_created(), route_created())
    append(aggregates, "r-2")
    append(aggregates, "r-1")

    everything = aggregates.read(org_id="org-1").events
    assert positions(everything) == [1, 2, 3, 4]
    assert [(event.aggregate_id, event.aggregate_seq) for event in everything] == [
        ("r-1", 1),
        ("r-1", 2),
        ("r-2", 1),
        ("r-1", 3),
    ]


def test_events_override_common_fields(aggregates: Aggregates) -> None:
    """B9: one command may append to several aggregates in one transaction."""
    result = append(
        aggregates,
        "r-1",
        route_created(),
        {"event_type": "CertIssued", "payload": {}, "aggregate_type": "cert", "aggregate_id": "c"},
        NewEvent("RouteNamed", {}, actor_type="system", actor_id="namer"),
    )

    assert [(event.aggregate_type, event.aggregate_seq) for event in result.events] == [
        ("route", 1),
        ("cert", 1),
        ("route", 2),
    ]
    assert [event.actor_type for event in result.events] == ["user", "user", "system"]
    assert (result.first_event_id, result.last_event_id, result.count) == (1, 3, 3)


@pytest.mark.parametrize("field", ["request_id", "actor_type", "actor_id", "aggregate_type"])
def test_required_fields(aggregates: Aggregates, log: seriatim.Log, field: str) -> None:
    """A7: an event without stream type, request id or actor is refused."""
    with pytest.raises(seriatim.InvalidEvent) as caught:
        append(aggregates, "r-1", **{field: None})

    assert caught.value.details == {"index": 0, "field": field}
    assert log.head() == 0


@pytest.mark.parametrize(
    "event",
    [
        {"payload": {}},
        {"event_type": "RouteCreated"},
        {"event_type": "RouteCreated", "payload": []},
        {"event_type": "RouteCreated", "payload": {"x": float("nan")}},
        route_created(event_id=7),
        route_created(recorded_at="2026-01-01T00:00:00Z"),
        route_created(colour="red"),
        route_created(actor_type="agent"),
        route_created(occurred_at="yesterday"),
        route_created(event_version=0),
        route_created(aggregate_id=["r-1"]),
        route_created(aggregate_type="trace"),
        NewEvent("RouteCreated", {}, stream=["route", "r-1"]),  # type: ignore[arg-type]
        "RouteCreated",
        None,
    ],
)
def test_a_malformed_event_is_refused(
    aggregates: Aggregates, log: seriatim.Log, event: Any
) -> None:
    """B2: a malformed event is `invalid_event` with its index, and nothing is stored."""
    with pytest.raises(seriatim.InvalidEvent) as caught:
        append(aggregates, "r-1", route_created(), event)

    assert caught.value.details["index"] == 1
    assert log.head() == 0


def test_an_empty_append_is_refused(aggregates: Aggregates) -> None:
    """B2: an append without events is `empty_append`."""
    with pytest.raises(seriatim.EmptyAppend):
        aggregates.append([], org_id="org-1", aggregate_type="route", aggregate_id="r-1", **WHO)


@pytest.mark.parametrize("events", [None, 7, "RouteCreated", route_created()])
def test_events_must_be_a_list(aggregates: Aggregates, events: Any) -> None:
    """B1: a value that is no list of events is an invalid argument."""
    with pytest.raises(seriatim.InvalidArgument):
        aggregates.append(events, org_id="org-1", expected_seq=1)


def test_credentials_are_refused(aggregates: Aggregates, log: seriatim.Log) -> None:
    """K1: the default guard refuses credentials without repeating the value."""
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    with pytest.raises(seriatim.PiiPolicyViolation) as caught:
        append(aggregates, "r-1", {"event_type": "KeySet", "payload": {"key": key}})

    assert key not in str(caught.value.as_dict())
    assert log.head() == 0


# -- expected sequence


def test_the_expected_number_must_be_the_last(aggregates: Aggregates) -> None:
    """B8: expected_seq is the last number of the aggregate, or None for a new one."""
    append(aggregates, expected_seq=None)
    append(aggregates, expected_seq=1)
    for wrong, actual in ((None, 2), (1, 2), (3, 2)):
        with pytest.raises(seriatim.EventSequenceInvalid) as caught:
            append(aggregates, expected_seq=wrong)

        assert (caught.value.details["expected"], caught.value.details["actual"]) == (wrong, actual)
    assert aggregates.load("route", "r-1", org_id="org-1").aggregate_seq == 2


def test_unconditional_aggregate_appends_all_succeed(aggregates: Aggregates) -> None:
    """B9: concurrent unconditional appends to one aggregate all succeed, with gapless numbers."""
    threads = [threading.Thread(target=append, args=(aggregates,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert seqs(aggregates.load("route", "r-1", org_id="org-1").events) == list(range(1, 9))


def test_an_event_may_have_an_expected_number(aggregates: Aggregates) -> None:
    """B5: aggregate_seq of an event is the number that it must get."""
    append(aggregates, "r-1", route_created(aggregate_seq=1), route_created(aggregate_seq=2))
    with pytest.raises(seriatim.EventSequenceInvalid):
        append(aggregates, "r-1", route_created(aggregate_seq=2))


def test_expectations_of_several_aggregates(aggregates: Aggregates) -> None:
    """B8: several aggregates need a mapping of expected numbers; one number is refused."""
    both = [route_created(aggregate_id="r-1"), route_created(aggregate_id="r-2")]
    options: dict[str, Any] = {"org_id": "org-1", "aggregate_type": "route", **WHO}
    with pytest.raises(seriatim.InvalidArgument, match="expected_seq"):
        aggregates.append(both, expected_seq=1, **options)
    expected: dict[tuple[str, str], int | None] = {("route", "r-1"): None, ("route", "r-2"): None}
    aggregates.append(both, expected_seq=expected, **options)
    with pytest.raises(seriatim.EventSequenceInvalid):
        aggregates.append(both, expected_seq={**expected, ("route", "r-1"): 1}, **options)

    assert aggregates.load("route", "r-2", org_id="org-1").aggregate_seq == 1


@pytest.mark.parametrize("expected", [-1, True, "1", 1.0])
def test_invalid_expected_numbers_are_refused(aggregates: Aggregates, expected: Any) -> None:
    """B8: an invalid expected_seq is an invalid argument of that name."""
    with pytest.raises(seriatim.InvalidArgument) as caught:
        append(aggregates, expected_seq=expected)

    assert caught.value.details["argument"] == "expected_seq"


def test_a_kind_may_require_the_expected_number(aggregates: Aggregates, log: seriatim.Log) -> None:
    """B11: a kind may require expected_seq on every append to an existing aggregate."""
    log.declare(StreamKind(name="volume", expected_seq_required=True))
    append(aggregates, "v-1", aggregate_type="volume")
    with pytest.raises(seriatim.InvalidArgument):
        append(aggregates, "v-1", aggregate_type="volume")

    append(aggregates, "v-1", aggregate_type="volume", expected_seq=1)


# -- organisations


def test_org_id_is_required(aggregates: Aggregates, log: seriatim.Log) -> None:
    """A7: an append without an organisation is refused."""
    with pytest.raises(seriatim.InvalidEvent) as caught:
        append(aggregates, org_id=None)

    assert caught.value.details["field"] == "org_id"
    assert log.head() == 0


def test_a_bound_log_or_an_event_may_name_the_org(log: seriatim.Log) -> None:
    """A7: the organisation comes from the call, the events or the log's tenant."""
    bound = append(log.for_tenant("org-2").aggregates, org_id=None)
    named = append(log.aggregates, "r-1", route_created(org_id="org-3"), org_id=None)

    assert [one.events[0].org_id for one in (bound, named)] == ["org-2", "org-3"]


def test_one_append_is_for_one_org(aggregates: Aggregates, log: seriatim.Log) -> None:
    """B8: an append with events of two organisations is refused."""
    with pytest.raises(seriatim.InvalidArgument) as caught:
        append(aggregates, "r-1", route_created(), route_created(org_id="org-9"))

    assert caught.value.details["argument"] == "org_id"
    assert log.head() == 0


def test_organisations_are_isolated(aggregates: Aggregates) -> None:
    """K2: the same aggregate id in two organisations is two aggregates."""
    append(aggregates, org_id="org-1")
    append(aggregates, org_id="org-2")

    assert positions(aggregates.read(org_id="org-2").events) == [2]
    assert seqs(aggregates.load("route", "r-1", org_id="org-2").events) == [1]
    assert aggregates.load("route", "r-1", org_id="org-3").events == []
    assert aggregates.read().events == []


def test_infrastructure_aggregates_have_a_reserved_tenant(
    aggregates: Aggregates, log: seriatim.Log
) -> None:
    """K2: aggregates of an infrastructure kind have no organisation and are invisible to all."""
    log.declare(StreamKind(name="node", infrastructure=True))
    (event,) = append(aggregates, "n-1", aggregate_type="node", org_id=None).events

    assert event.org_id is None
    assert positions(aggregates.read(infrastructure=True).events) == [1]
    assert seqs(aggregates.load("node", "n-1").events) == [1]
    assert aggregates.read(org_id="org-1").events == []
    assert aggregates.load("node", "n-1", org_id="org-1").events == []


def test_the_reserved_tenant_cannot_be_named(aggregates: Aggregates, log: seriatim.Log) -> None:
    """K2: an org_id may not be the reserved tenant or be combined with infrastructure."""
    log.declare(StreamKind(name="node", infrastructure=True))
    for attempt in (
        lambda: append(aggregates, org_id="_infrastructure"),
        lambda: append(aggregates, "r-1", route_created(org_id="_infrastructure"), org_id=None),
        lambda: aggregates.read(org_id="_infrastructure"),
        lambda: aggregates.load("route", "r-1", org_id="_infrastructure"),
        lambda: append(aggregates, "n-1", aggregate_type="node", org_id="org-1"),
        lambda: aggregates.read(org_id="org-1", infrastructure=True),
    ):
        with pytest.raises(seriatim.InvalidArgument, match="org_id"):
            attempt()
    assert log.head() == 0


def test_infrastructure_and_orgs_do_not_mix(aggregates: Aggregates, log: seriatim.Log) -> None:
    """B8: an append with infrastructure and tenant aggregates is refused."""
    log.declare(StreamKind(name="node", infrastructure=True))
    mixed = [route_created(aggregate_type="node"), route_created(aggregate_type="route")]
    with pytest.raises(seriatim.InvalidEvent) as caught:
        append(aggregates, "x", *mixed, org_id=None)

    assert caught.value.details == {"index": 1, "field": "org_id"}


# -- idempotency


def test_idempotency_keys_are_not_unique(aggregates: Aggregates) -> None:
    """C7: events of a command share its key, and another append may use it again."""
    append(aggregates, "r-1", route_created(), route_created(), idempotency_key="cmd-1")
    append(aggregates, "r-1", idempotency_key="cmd-1")

    events = aggregates.load("route", "r-1", org_id="org-1").events
    assert [event.idempotency_key for event in events] == ["cmd-1"] * 3


def test_a_retry_is_recognised_by_event_ids(aggregates: Aggregates, log: seriatim.Log) -> None:
    """C7: events with known ids replay their append, or conflict if they differ."""
    first = append(aggregates, "r-1", route_created(record_id="own-1"))
    again = append(aggregates, "r-1", route_created(record_id="own-1"))

    assert again.replayed
    assert again.events == first.events
    with pytest.raises(seriatim.IdempotencyConflict):
        append(aggregates, "r-1", route_created(2, record_id="own-1"))
    assert log.head() == 1


def make_command(**changes: Any) -> Command:
    """Return a command that creates a route."""
    fields = {
        "actor": "u-1",
        "endpoint": "routes.create",
        "key": "k-1",
        "request": {"name": "a", "size": 1},
        "response": {"status": 201},
    }
    return Command(**{**fields, **changes})


def test_duplicate_command_gets_the_stored_response(
    aggregates: Aggregates, log: seriatim.Log
) -> None:
    """C5: a duplicate of a command gets the stored response and the first events."""
    first = append(aggregates, command=make_command(), expected_seq=None)
    duplicate = append(
        aggregates,
        command=make_command(request={"size": 1, "name": "a"}, response={"status": 500}),
        expected_seq=None,
    )

    assert (first.response, first.replayed) == ({"status": 201}, False)
    assert (duplicate.response, duplicate.replayed) == ({"status": 201}, True)
    assert duplicate.events == first.events
    assert first.events[0].idempotency_key == "k-1"
    assert log.head() == 1


def test_another_request_under_the_key_is_refused(
    aggregates: Aggregates, log: seriatim.Log
) -> None:
    """C5: another request under the key of a command is `idempotency_key_reuse`."""
    append(aggregates, command=make_command())
    with pytest.raises(seriatim.IdempotencyKeyReuse):
        append(aggregates, command=make_command(request={"name": "b"}))
    assert log.head() == 1


def test_a_command_is_scoped_by_org_actor_and_endpoint(aggregates: Aggregates) -> None:
    """C5: commands with another organisation, actor, endpoint or key are different."""
    results = [
        append(aggregates, command=make_command()),
        append(aggregates, command=make_command(), org_id="org-2"),
        append(aggregates, command=make_command(actor="u-2")),
        append(aggregates, command=make_command(endpoint="routes.update")),
        append(aggregates, command=make_command(key="k-2")),
    ]

    assert not any(result.replayed for result in results)


def test_concurrent_duplicate_commands_run_once(aggregates: Aggregates, log: seriatim.Log) -> None:
    """C5: of concurrent duplicates of a command one appends, the others replay."""
    results: list[AggregateAppendResult] = []

    def work() -> None:
        results.append(append(aggregates, command=make_command()))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(result.replayed for result in results) == [False] + [True] * 5
    assert log.head() == 1


# -- reads


@pytest.fixture
def history(aggregates: Aggregates) -> Aggregates:
    """Four events of org-1 at positions 1, 2, 4 and 5, and one of org-2 at 3."""
    at = "2026-03-0{}T00:00:00Z".format
    append(aggregates, "r-1", route_created(occurred_at=at(4)), app_id="a", env_id="prod")
    append(aggregates, "r-1", route_created(occurred_at=at(3)), app_id="a", env_id="test")
    append(aggregates, "r-1", route_created(occurred_at=at(2)), org_id="org-2", app_id="a")
    named = {"event_type": "RouteNamed", "payload": {}, "occurred_at": at(2)}
    append(aggregates, "r-2", named, app_id="b", env_id="prod")
    append(aggregates, "r-2", route_created(occurred_at=at(1)), app_id="b")
    return aggregates


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, [1, 2, 4, 5]),
        ({"after_event_id": 2}, [4, 5]),
        ({"after_event_id": 1, "until_event_id": 4}, [2, 4]),
        ({"event_type": "RouteNamed"}, [4]),
        ({"event_type": ["RouteNamed", "RouteCreated"]}, [1, 2, 4, 5]),
        ({"event_type": []}, []),
        ({"app_id": "a"}, [1, 2]),
        ({"env_id": "prod"}, [1, 4]),
        ({"app_id": "b", "env_id": "prod"}, [4]),
        ({"limit": 3}, [1, 2, 4]),
    ],
)
def test_reads_by_position_and_filters(
    history: Aggregates, filters: dict[str, Any], expected: list[int]
) -> None:
    """E1: a read after a position is filtered and ordered by event_id."""
    assert positions(history.read(org_id="org-1", **filters).events) == expected


def test_an_empty_page_reports_the_last_scanned_position(history: Aggregates) -> None:
    """E1: a page reports the last event_id that it scanned."""
    page = history.read(org_id="org-1", event_type="Unheard")

    assert (page.events, page.last_event_id) == ([], 5)
    assert history.read(org_id="org-1", limit=2).last_event_id == 2


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ({"since": "2026-03-02T00:00:00Z"}, [1, 2]),
        ({"until": "2026-03-02T00:00:00Z"}, [4, 5]),
        ({"since": "2026-03-01T00:00:00Z", "until": "2026-03-03T00:00:00Z"}, [2, 4]),
        ({"since": "2026-03-01T00:00:00Z", "event_type": "RouteNamed"}, [4]),
        ({"until": "2026-04-01T00:00:00Z", "limit": 2, "after_event_id": 1}, [2, 4]),
        ({"since": "2020-01-01T00:00:00Z", "clock": "recorded_at"}, [1, 2, 4, 5]),
        ({"until": "2020-01-01T00:00:00Z", "clock": "recorded_at"}, []),
    ],
)
def test_an_audit_by_time_is_ordered_by_event_id(
    history: Aggregates, window: dict[str, Any], expected: list[int]
) -> None:
    """E1: an audit by either time, since exclusive, until inclusive, is ordered by event_id."""
    assert positions(history.audit(org_id="org-1", **window).events) == expected


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"after_event_id": -1}, "after_event_id"),
        ({"after_event_id": 5, "until_event_id": 4}, "until_event_id"),
        ({"limit": 0}, "limit"),
        ({"limit": 10_001}, "limit"),
        ({"event_type": [""]}, "event_type"),
        ({"since": "monday"}, "since"),
        ({"since": "2026-03-02T00:00:00Z", "until": "2026-03-01T00:00:00Z"}, "until"),
        ({"clock": "sundial"}, "clock"),
        ({"org_id": ""}, "org_id"),
    ],
)
def test_invalid_arguments_of_reads(
    aggregates: Aggregates, options: dict[str, Any], argument: str
) -> None:
    """E3: an invalid argument of a read is refused with its name in this profile."""
    with pytest.raises(seriatim.InvalidArgument) as caught:
        aggregates.audit(**options)

    assert caught.value.details["argument"] == argument
    assert argument in caught.value.message


def test_unknown_parameters_of_reads(aggregates: Aggregates) -> None:
    """E3: an unknown parameter is a TypeError with its name."""
    unknown: dict[str, Any] = {"colour": "red"}
    for read in (aggregates.read, aggregates.audit):
        with pytest.raises(TypeError, match="colour"):
            read(**unknown)
    with pytest.raises(TypeError, match="colour"):
        aggregates.append([], **unknown)


def test_loading_an_aggregate(history: Aggregates) -> None:
    """E2: loading returns events by aggregate_seq and the last number, also after a number."""
    whole = history.load("route", "r-1", org_id="org-1")
    rest = history.load("route", "r-1", org_id="org-1", after_aggregate_seq=1)
    none = history.load("route", "r-1", org_id="org-1", after_aggregate_seq=2)
    absent = history.load("route", "r-9", org_id="org-1", after_aggregate_seq=2)

    assert (seqs(whole.events), whole.aggregate_seq) == ([1, 2], 2)
    assert (seqs(rest.events), rest.aggregate_seq) == ([2], 2)
    assert (seqs(none.events), none.aggregate_seq) == ([], 2)
    assert (absent.events, absent.aggregate_seq) == ([], None)


def test_aggregates_exclude_traces_and_facts(log: seriatim.Log) -> None:
    """A9: events of streams are aggregates, except traces; facts are not."""
    log.append([NewEvent("order.placed", {}, stream=("order", "o-1"))])
    log.facts.append([NewEvent("noted", 1)])
    log.traces.append_event(envelope())

    assert positions(log.aggregates.read().events) == [1]
