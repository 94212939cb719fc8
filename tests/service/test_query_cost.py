"""How many events a query reads, as the response to its explanation reports."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, make_caller, make_event

EVENTS = 300


@pytest.fixture(scope="module")
def who(service: RunningService) -> Caller:
    """A caller of a tenant with events: each tenth is of a rare type, each has one of two tags."""
    noise = make_caller(service, tenant_id="noise")
    noise.append(*(make_event("common", {"n": n}, tags=["even"]) for n in range(EVENTS)))
    caller = make_caller(service, tenant_id="costs")
    for first in range(0, EVENTS, 100):
        made = [
            make_event(
                "common" if n % 10 else "rare",
                {"n": n},
                tags=["odd" if n % 2 else "even"],
                correlation_id=f"c-{n % 30}",
            )
            for n in range(first, first + 100)
        ]
        caller.append(*made)
    return caller


def explain(who: Caller, one: dict[str, Any], **more: object) -> tuple[int, int]:
    """Return the number of matches of a filter, and of events read."""
    body = {"query": {"filters": [one]}, "explain": True, **more}
    answer = who("POST", "/v1/query", body).json
    return len(answer["records"]), answer["events_read"]


def test_an_index_bounds_what_is_read(who: Caller) -> None:
    """N1, F7: the number follows from the index; conditions that it lacks read more events."""
    found = {
        "type": explain(who, {"types": ["rare"]}),
        "tag": explain(who, {"tags": ["even"]}),
        "correlation": explain(who, {"correlation_id": "c-3"}),
        "predicate": explain(who, {"types": ["rare"], "payload": [{"n": 10}]}),
        "nothing": explain(who, {"types": ["absent"]}),
    }

    assert found["type"] == (30, 30)
    assert found["tag"][0] == 150 <= found["tag"][1] <= 300
    assert found["correlation"] == (10, 10)
    assert found["predicate"] == (1, 30)
    assert found["nothing"] == (0, 0)


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_page_reads_no_further_than_it_reaches(who: Caller, newest_first: bool) -> None:
    """N1: a page that is full ends the scan, in both directions."""
    one = {"types": ["common"], "payload": [{"n": n} for n in range(11, EVENTS, 100)]}
    matches, read = explain(who, one, limit=1, newest_first=newest_first)

    assert matches == 1
    assert read < EVENTS // 2


def test_a_scope_of_types_gets_no_number(service: RunningService, who: Caller) -> None:
    """K2, K4: the number would include events of types that the token may not read."""
    scoped = make_caller(service, tenant_id="costs", rights=["read"], types=["rare"])
    body = {"query": {"filters": [{"tags": ["even"]}]}, "explain": True}
    answer = scoped("POST", "/v1/query", body).json

    assert len(answer["records"]) == 30
    assert "events_read" not in answer
    assert "events_read" in who("POST", "/v1/query", body).json
