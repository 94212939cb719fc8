"""Explanations over HTTP: the rights of the caller, header commands, and malformed requests."""

from __future__ import annotations

from typing import Any

from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, ServiceResponse, make_caller, make_event


def explain(caller: Caller, *events: dict[str, Any], **more: Any) -> ServiceResponse:
    """Explain an append."""
    headers = more.pop("headers", None)
    return caller("POST", "/v1/explain", {"events": list(events), **more}, headers=headers)


def decisive(response: ServiceResponse) -> list[str]:
    """Return the steps that refused or replayed the append."""
    return [
        step["step"] for step in response.json["steps"] if step["result"] in ("refused", "replayed")
    ]


def test_explanations_contain_events_only_for_readers(service: RunningService) -> None:
    """K2, K4: a token without the right to read sees neither events nor differing fields."""
    reader = make_caller(service, tenant_id="t", rights=["append", "read"])
    writer = make_caller(service, tenant_id="t", rights=["append"])
    confined = make_caller(service, tenant_id="t", rights=["append", "read"], types=["b"])
    assert reader.append(make_event("a", event_id="e", payload={"word": "zebra"})).status == 201

    seen = explain(reader, make_event("a", event_id="e"))
    unseen = explain(writer, make_event("a", event_id="e"))
    other = explain(confined, make_event("b", event_id="e"))

    assert [event["event_id"] for event in seen.json["events"]] == ["e"]
    assert seen.json["problem"]["details"]["fields"] == ["payload"]
    for response in (unseen, other):
        assert (response.status, decisive(response)) == (200, ["idempotency"])
        assert "events" not in response.json
        assert response.json["problem"]["details"] == {"index": 0}
        assert b"zebra" not in response.body


def test_an_explanation_needs_the_rights_of_the_append(service: RunningService) -> None:
    """K4: an explanation needs the rights that the append needs."""
    read_only = make_caller(service, tenant_id="t", rights=["read"])
    confined = make_caller(service, tenant_id="t", rights=["append"], types=["b"])
    named = make_event(actor_type="user", actor_id="ann")

    assert explain(read_only, make_event("a")).code == "forbidden"
    assert explain(confined, make_event("a")).code == "forbidden"
    assert (
        explain(make_caller(service, tenant_id="t", rights=["append"]), named).code == "forbidden"
    )
    context: list[dict[str, Any]] = [{"query": {}, "version": None}]
    assert explain(confined, make_event("b"), conditions=context).code == "forbidden"


def test_the_header_names_the_command_of_an_append(service: RunningService) -> None:
    """C5: an explanation with the header of a stored append is its replay."""
    caller = make_caller(service, tenant_id="t", rights=["append", "read"])
    body = {"events": [make_event("a")]}
    header = {"idempotency-key": "explained-1"}
    before = explain(caller, make_event("a"), headers=header)
    stored = caller("POST", "/v1/events", body, headers=header)
    after = explain(caller, make_event("a"), headers=header)
    changed = explain(caller, make_event("b"), headers=header)

    assert (before.json["outcome"], stored.status) == ("accepted", 201)
    assert (after.json["outcome"], decisive(after)) == ("replayed", ["command"])
    assert after.json["first_position"] == stored.json["first_position"]
    assert changed.json["problem"]["code"] == "idempotency_key_reuse"


def test_an_invalid_event_is_explained_and_a_malformed_request_refused(
    service: RunningService,
) -> None:
    """L3: an explanation contains the problem of an event; a malformed request is refused."""
    caller = make_caller(service, tenant_id="t", rights=["append", "read"])
    unknown = explain(caller, {"event_type": "a", "colour": "red"})
    secret = explain(caller, make_event("a", payload={"password": "hunter2"}))

    assert (unknown.status, decisive(unknown)) == (200, ["envelope"])
    assert (secret.status, decisive(secret)) == (200, ["guard"])
    assert b"hunter2" not in secret.body
    assert caller("POST", "/v1/explain", b"{").code == "invalid_argument"
    assert caller("POST", "/v1/explain", {"event": []}).code == "invalid_argument"
