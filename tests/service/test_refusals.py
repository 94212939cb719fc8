"""The list of refused appends: bounded, within a tenant and its rights, without secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest

import seriatim
from seriatim import ExpectedSeq, NewEvent
from seriatim.api.refusals import REFUSAL_BYTES, REFUSALS_PER_TENANT
from seriatim.core.errors import SeriatimError
from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, make_caller, make_event

TOKEN = "ghp_" + "a1B2" * 9
SCOPED = ["append", "read", "act_as"]
STREAM = {"stream_type": "s", "stream_id": "1"}


@pytest.fixture
def who(service: RunningService, request: pytest.FixtureRequest) -> Caller:
    """A caller of a tenant of this test only."""
    return make_caller(service, tenant_id=request.node.name[:400])


def refused(caller: Caller) -> list[dict[str, Any]]:
    """Return the refused appends that a caller may read."""
    found: list[dict[str, Any]] = caller("GET", "/v1/refusals").json["refusals"]
    return found


def conflicting(number: int = 0, **fields: object) -> dict[str, Any]:
    """Return an append that is refused: its stream does not have this number."""
    made = make_event("a", {"n": number, **fields}, **STREAM)
    return {"events": [made], "conditions": [{"stream": ["s", "1"], "seq": 9}]}


def test_a_refusal_is_listed_and_explained(who: Caller) -> None:
    """N1: the request is that which `explain` takes, and it has the same outcome."""
    answer = who("POST", "/v1/events", conflicting())
    facts = {"events": [make_event("b")], "query": {"filters": []}, "expected_version": 7}
    who("POST", "/v1/append-if", facts)

    second, first = refused(who)
    assert (first["code"], first["event_types"]) == (answer.code, ["a"])
    assert first["at"] <= second["at"]
    assert json.loads(first["request"]) == conflicting()
    for one in (first, second):
        explained = who("POST", "/v1/explain", json.loads(one["request"])).json
        assert explained["outcome"] == "refused"
        assert explained["problem"]["code"] == one["code"]


def test_refusals_of_a_client_are_listed(service: RunningService, who: Caller) -> None:
    """N1: an append that a client sends with others is listed alone."""
    with seriatim.open(service.url, token=who.token) as log:
        log.append([NewEvent("good", {})])
        with pytest.raises(SeriatimError):
            log.append([NewEvent("late", {"n": 2**70})], ExpectedSeq(("s", "1"), 4))

    [one] = refused(who)
    assert one["event_types"] == ["late"]
    assert str(2**70) in one["request"]


@pytest.mark.parametrize("early", [True, False])
def test_secrets_are_never_kept(who: Caller, early: bool) -> None:
    """K1: an append that the guard rejects is not kept, also if another check refused it first."""
    body = conflicting(secret=TOKEN)
    if early:
        body["events"][0] |= {"stream_type": "trace", "event_type": "NoSuchType"}
        body["conditions"] = []
    answer = who("POST", "/v1/events", body)
    in_condition = conflicting()
    in_condition["conditions"] = [
        {"query": {"filters": [{"payload": [{"x": TOKEN}]}]}, "version": 7}
    ]
    who("POST", "/v1/events", in_condition)

    assert answer.status >= 400
    assert (answer.code == "pii_policy_violation") is not early
    found = refused(who)
    assert [one["request"] for one in found] == [None, None]
    assert TOKEN not in json.dumps(found)


def test_a_profile_with_its_own_guard_is_scanned_by_it(who: Caller) -> None:
    """K1, T2: a trace that the guard of traces rejects is not kept."""
    event = make_event("NoSuchType", {"note": "api_key=1"}, stream_type="trace", stream_id="t-1")
    who.append(event)

    assert [one["request"] for one in refused(who)] == [None]


def test_the_list_is_bounded(who: Caller) -> None:
    """K3: the last refusals of a tenant, without large requests."""
    for number in range(REFUSALS_PER_TENANT + 3):
        who("POST", "/v1/events", conflicting(number))
    assert [json.loads(one["request"])["events"][0]["payload"]["n"] for one in refused(who)] == [
        *range(REFUSALS_PER_TENANT + 2, 2, -1)
    ]
    who("POST", "/v1/events", conflicting(text="x" * REFUSAL_BYTES))
    who("POST", "/v1/events", b"{")
    assert [one["request"] for one in refused(who)[:2]] == [None, None]
    assert len(refused(who)) == REFUSALS_PER_TENANT


def test_rights_bound_what_is_listed(service: RunningService, who: Caller) -> None:
    """K2, K4: other tenants see nothing; without `read`, one sees one's own; types confine."""
    tenant = "rights-of-refusals"
    makers = {
        "all": make_caller(service, tenant_id=tenant),
        "writer": make_caller(service, tenant_id=tenant, subject="writer", rights=["append"]),
        "scoped": make_caller(service, tenant_id=tenant, rights=SCOPED, types=["b"]),
    }
    makers["all"]("POST", "/v1/events", conflicting())
    makers["writer"]("POST", "/v1/events", conflicting())
    own = {"events": [make_event("b")], "conditions": [{"stream": ["s", "1"], "seq": 3}]}
    makers["scoped"]("POST", "/v1/events", own)

    assert [one["event_types"] for one in refused(makers["all"])] == [["b"], ["a"], ["a"]]
    assert [one["subject"] for one in refused(makers["writer"])] == ["writer"]
    assert [one["event_types"] for one in refused(makers["scoped"])] == [["b"]]
    assert refused(who) == []
    reader = make_caller(service, tenant_id=tenant, rights=["read"])
    assert reader("GET", "/v1/refusals").status == 403


def test_accepted_and_forbidden_appends_are_not_listed(
    service: RunningService, who: Caller
) -> None:
    """N1: the list has refusals by the log, not those by rights."""
    who.append(make_event())
    tenant = "forbidden-of-refusals"
    scoped = make_caller(service, tenant_id=tenant, rights=SCOPED, types=["b"])
    assert scoped("POST", "/v1/events", conflicting()).status == 403
    who("POST", "/v1/explain", conflicting())

    assert refused(who) == refused(make_caller(service, tenant_id=tenant)) == []
