"""The steps of projections whose key is not a stream."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from html import unescape
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seriatim
from seriatim import NewEvent, PayloadIndex, Query
from seriatim.console import key_steps
from seriatim.console.app import ConsoleSettings
from seriatim.console.key_steps import make_query, selects
from seriatim.console.stepper import Stepper, to_event_record
from seriatim.core.event import EventRecord
from seriatim.core.fold import Fold
from seriatim.core.projection import Projection, projection
from seriatim.wire.records import to_wire_record
from tests.console.test_events import append, visit
from tests.fixtures.console import ConsoleService, Visitor, run_console

CHANGED_COUNT = re.compile(r">count</th>\s*<td>(?:<del>)?(\d*)[^\n]*\n\s*<td><ins>(\d+)")
SCANNED = {"stream_types": ("order",), "events": ("order.*",)}


def add(row: dict[str, Any] | None, event: EventRecord) -> dict[str, Any] | None:
    """Count the events of a key; a negative amount fails, and `order.dropped` removes the row."""
    if event.event_type == "order.dropped":
        return None
    if event.payload.get("amount") == -1:
        raise ValueError("negative")
    return {"count": (row or {"count": 0})["count"] + 1}


def get_odd_key(event: EventRecord) -> str | None:
    """Return a key of some events, and fail for others."""
    amount = event.payload["amount"]
    return None if amount == 2 else f"{amount % 2}"


def rename(payload: dict[str, Any]) -> dict[str, Any]:
    """Move the customer to where it is today."""
    return {"order": {"customer": "upcast"}, **payload}


by_customer = projection(
    "by_customer",
    key="payload.order.customer",
    events=["order.placed", "order.dropped"],
    on_failure="park",
    columns={"count": int},
)(add)
by_function = projection("by_function", key=get_odd_key, columns={"count": int})(add)
by_correlation = projection("by_correlation", key="correlation_id", columns={"count": int})(add)
by_upcast = projection(
    "by_upcast",
    key="payload.order.customer",
    events=["order.placed"],
    columns={"count": int},
    upcasters={("order.placed", 1): rename},
)(add)
by_pattern = msgspec.structs.replace(by_customer, name="by_pattern", **SCANNED)
ALL = (by_customer, by_function, by_correlation, by_upcast, by_pattern)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleService]:
    """A service with a console that knows projections; a payload index finds customers."""
    url = f"sqlite:///{tmp_path_factory.mktemp('keys') / 'log.db'}"
    with run_console(url, ConsoleSettings(projections=ALL)) as service:
        service.service.log.declare(
            PayloadIndex("order.placed", "order.customer"),
            PayloadIndex("order.dropped", "order.customer"),
        )
        yield service


def place(customer: Any, number: int = 0, **more: Any) -> NewEvent:
    """Return an event of a customer."""
    payload = {"order": {"customer": customer}, "amount": number}
    return NewEvent("order.placed", payload, ("order", str(number)), **more)


def steps(reader: Visitor, name: str, key: str, **more: Any) -> list[tuple[str, str]]:
    """Return the counts before and after each displayed event of a key."""
    page = reader.get("/console/projection/steps", name=name, key=key, **more)
    assert page.status == 200, page.text
    return CHANGED_COUNT.findall(page.text)


@pytest.mark.parametrize("name", ["by_customer", "by_pattern"])
def test_a_key_in_the_payload_has_steps(console: ConsoleService, name: str) -> None:
    """N1, I1: the events of a key in all streams are found with and without an index."""
    events = [place("ann"), place("bob", 1), place("ann", 2), place(7, 3), place("7", 4)]
    append(console, name, *events, NewEvent("order.placed", {"order": []}))
    append(console, name, NewEvent("order.dropped", {"order": {"customer": "ann"}}, ("order", "0")))
    reader = visit(console, tenant_id=name)

    assert steps(reader, name, "ann") == [("", "1"), ("1", "2")]
    assert steps(reader, name, "7") == [("", "1"), ("1", "2")]
    assert steps(reader, name, "nobody") == []
    page = reader.get("/console/projection/steps", name=name, key="ann").text
    assert "<del>2</del>" in page
    assert "The search stopped" not in page
    assert steps(reader, name, "ann", step="1") == [("1", "2")]


def test_other_kinds_of_keys_have_steps(console: ConsoleService) -> None:
    """N1, I1: keys from a column, from a function and from an upcast payload have steps."""
    more = [place("x", 1, correlation_id="c"), place("y", 2), place("z", 3, correlation_id="c")]
    append(console, "others", *more, NewEvent("noted", {}))
    reader = visit(console, tenant_id="others")

    assert steps(reader, "by_correlation", "c") == [("", "1"), ("1", "2")]
    assert steps(reader, "by_function", "1") == [("", "1"), ("1", "2")]
    assert steps(reader, "by_upcast", "upcast") == []  # the stored value wins over the upcaster's
    assert steps(reader, "by_upcast", "y") == [("", "1")]


def test_a_search_without_an_index_is_bounded(
    console: ConsoleService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1: without an index the page says where the search stopped; with one there is no limit."""
    append(console, "bounded", *[place("ann" if n % 4 == 0 else "bob", n) for n in range(40)])
    monkeypatch.setattr(key_steps, "READS_MAX", 2)
    monkeypatch.setattr(key_steps, "READ_EVENTS", 10)
    reader = visit(console, tenant_id="bounded")

    searched = reader.get("/console/projection/steps", name="by_pattern", key="ann").text
    assert CHANGED_COUNT.findall(searched) == [(str(n or ""), str(n + 1)) for n in range(5)]
    assert re.search(r"The search stopped at position [\d,]+: later events", searched)
    indexed = reader.get("/console/projection/steps", name="by_customer", key="ann").text
    assert len(CHANGED_COUNT.findall(indexed)) == 10
    assert "The search stopped" not in indexed


def test_steps_of_a_key_are_paged(console: ConsoleService, monkeypatch: pytest.MonkeyPatch) -> None:
    """N5: a page of steps is a link; at most a bounded number of events is folded."""
    append(console, "paged", *[place("ann", n) for n in range(25)])
    reader = visit(console, tenant_id="paged")
    counts: list[tuple[str, str]] = []
    address: str | None = "/console/projection/steps?name=by_customer&key=ann"
    while address:
        page = reader.get(address)
        counts += CHANGED_COUNT.findall(page.text)
        match = re.search(r'<a rel="next" href="([^"]*)"', page.text)
        address = None if match is None else unescape(match[1])
    assert counts == [(str(n or ""), str(n + 1)) for n in range(25)]

    monkeypatch.setattr(key_steps, "STEPS_MAX", 10)
    last = reader.get("/console/projection/steps?name=by_customer&key=ann").text
    assert "The first 10 events can be displayed" in last


def test_other_projections_and_tenants_have_no_steps(console: ConsoleService) -> None:
    """N1, N2, K2: unknown projections are not found, and no other tenant's events are folded."""
    append(console, "mine", place("ann"))
    append(console, "yours", place("ann"), place("ann", 1))
    reader = visit(console, tenant_id="mine")

    assert reader.get("/console/projection/steps", name="activity").status == 404
    assert "the value of payload.order.customer" in (
        reader.get("/console/projection/steps", name="by_customer").text
    )
    assert steps(reader, "by_customer", "ann") == [("", "1")]
    assert reader.get("/console/projection/steps", name="by_customer", tenant="yours").status == 403
    restricted = visit(console, tenant_id="mine", types=["order.placed"], rights=["read"])
    page = restricted.get("/console/projection/steps", name="by_customer", key="ann").text
    assert "restricted to event types" in page


VALUES = (
    st.sampled_from(["a", "7", "7.0", "true", "null", "1e16", '{"a":1}', "[1]"])
    | st.sampled_from([7, 7.0, True, None, 1e16, {"a": 1}, {"a": 1, "b": 2}, [1], [1, 2]])
    | st.integers(2**60, 2**62)
)
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["order.placed", "order.dropped", "other"]),
        st.fixed_dictionaries(
            {}, optional={"amount": st.integers(-1, 3), "customer": VALUES, "order": VALUES}
        ),
        st.sampled_from([None, "c", "7"]),
    ),
    max_size=12,
)


def to_payload(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a payload whose customer is where the projections look for it."""
    inner = {"order": {"customer": fields.pop("customer")}} if "customer" in fields else {}
    return {**fields, **inner}


@given(events=EVENTS)
@pytest.mark.parametrize("declared", ALL, ids=lambda declared: declared.name)
def test_the_last_state_of_each_key_is_that_of_the_fold(
    declared: Projection, events: list[tuple[str, dict[str, Any], str | None]]
) -> None:
    """N1, I1: each key is folded as the pipeline does, and its query finds all of its events."""
    with closing(seriatim.open("memory:")) as log:
        for kind, payload, correlation in events:
            log.append([NewEvent(kind, to_payload(dict(payload)), correlation_id=correlation)])
        records = list(log.read())
        expected: dict[str, Fold] = {}
        for record in records:
            key = find_key(declared, record)
            if key is not None:
                expected.setdefault(key, Fold(declared)).add(key, record)
        for key, fold in expected.items():
            stepper = Stepper(declared, "default", key, first=0, count=12)
            wire = [msgspec.json.decode(msgspec.json.encode(to_wire_record(r))) for r in records]
            own = [event for event in map(to_event_record, wire) if selects(declared, key, event)]
            stepper.run(own)
            assert stepper.fold.states == fold.states
            assert stepper.fold.failures == fold.failures
            query = make_query(declared, key)
            assert (query is not None) == (declared is by_customer)
            if query is not None:
                matches = log.query(Query.from_mapping(query)).records
                assert {event.position for event in own} <= {event.position for event in matches}


def find_key(declared: Projection, record: EventRecord) -> str | None:
    """Return the key under which the pipeline folds an event."""
    types, kinds = declared.events, declared.stream_types
    if types != ("*",) and record.event_type not in ("order.placed", "order.dropped"):
        return None
    if types == ("order.placed",) and record.event_type != "order.placed":
        return None
    if kinds is not None and record.stream_type not in kinds:
        return None
    try:
        return declared.extract_key(record)
    except (KeyError, TypeError):
        return None
