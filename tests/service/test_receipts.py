"""Receipts over HTTP: by key and by command, for callers that may read them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, make_caller, make_event


def reader(service: RunningService, tenant_id: str = "t", **more: object) -> Caller:
    """Return a service that appends and reads."""
    return make_caller(
        service, subject="shop", tenant_id=tenant_id, rights=["append", "read"], **more
    )


def test_receipts_are_found_by_key_and_by_command(service: RunningService) -> None:
    """C8, B10: a receipt has its events, response, time and actor, by key or by command."""
    caller = reader(service)
    command = {"actor": "shop", "endpoint": "POST /x", "key": "c", "response": {"ok": 1}}
    body = {"idempotency_key": "k", "command": command}
    stored = caller.append(make_event("a"), make_event("b"), **body).json
    by_key = caller("GET", "/v1/receipts", idempotency_key="k").json
    by_command = caller("GET", "/v1/receipts", endpoint="POST /x", key="c").json
    named = caller("GET", "/v1/receipts", actor="shop", endpoint="POST /x", key="c").json

    assert named == by_command
    assert by_command["response"] == {"ok": 1}
    for found in (by_key, by_command):
        assert found["first_position"] == stored["first_position"]
        assert [record["event_type"] for record in found["records"]] == ["a", "b"]
        assert (found["actor_id"], found["recorded_at"]) == ("shop", stored["recorded_at"])


def test_a_foreign_receipt_is_absent(service: RunningService) -> None:
    """K2: foreign receipts, and those with unreadable events, get the response for absent ones."""
    command = {"actor": "shop", "endpoint": "POST /x", "key": "c"}
    reader(service).append(make_event("a"), idempotency_key="k", command=command)
    forms: list[dict[str, Any]] = [{"idempotency_key": "k"}, {"endpoint": "POST /x", "key": "c"}]
    for params in forms:
        absent: dict[str, Any] = {name: f"{value}-none" for name, value in params.items()}
        for caller in (reader(service, "other"), reader(service, types=["b"])):
            response = caller("GET", "/v1/receipts", **params)
            assert response.code == "not_found"
            assert response.comparable == caller("GET", "/v1/receipts", **absent).comparable


@pytest.mark.parametrize(
    ("params", "argument"),
    [
        ({}, "idempotency_key"),
        ({"endpoint": "POST /x"}, "idempotency_key"),
        ({"key": "k"}, "idempotency_key"),
        ({"idempotency_key": "k", "key": "k"}, "key"),
        ({"idempotency_key": "k", "actor": "a"}, "actor"),
        ({"endpoint": "POST /x", "key": "k", "producer_id": "p"}, "producer_id"),
        ({"idempotency_key": ""}, "idempotency_key"),
    ],
)
def test_malformed_receipt_requests_are_refused(
    service: RunningService, params: dict[str, Any], argument: str
) -> None:
    """L3: a request needs exactly one complete form, by key or by command."""
    response = reader(service)("GET", "/v1/receipts", **params)

    assert response.code == "invalid_argument"
    assert response.json["details"]["argument"] == argument
