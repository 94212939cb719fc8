"""Tokens and quotas over HTTP: only for operators of all tenants, and recorded."""

from __future__ import annotations

from contextlib import closing

import pytest

from seriatim.factory import access_url, open_access
from tests.faults.support import wait_until
from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, ServiceResponse, make_caller, make_event

NEW = {"tenant_id": "acme", "subject": "billing", "rights": ["append"], "reason": "new service"}


def create(caller: Caller, **more: object) -> ServiceResponse:
    """Create a token."""
    return caller("POST", "/v1/tokens", {**NEW, **more})


def test_a_token_is_created_used_and_revoked(service: RunningService) -> None:
    """K4, N4: a token works until it is revoked, and both actions are recorded without it."""
    ops = make_caller(service, subject="ops")
    made = create(ops, note="for the invoices", expires_in_s=3600, types=["noted"])
    text, token = made.json["token"], made.json["description"]
    billing = Caller(service.port, text)

    assert (made.status, token["subject"], token["tenant_id"]) == (201, "billing", "acme")
    assert billing.append(make_event()).status == 201
    assert billing.append(make_event("other")).status == 403
    body = {"token_id": token["token_id"], "reason": "leaked"}
    assert ops("POST", "/v1/tokens/revoke", body).json == {"count": 1}
    wait_until(lambda: billing.append(make_event()).status == 401, "revoked", within_s=5)
    again = ops("POST", "/v1/tokens/revoke", body)
    assert (again.status, again.code) == (404, "not_found")
    revoked, created = ops("GET", "/v1/operations", tenant_id="acme", limit=2).json["operations"]
    assert [(one["action"], one["actor_id"], one["reason"]) for one in (created, revoked)] == [
        ("token_created", "ops", "new service"),
        ("token_revoked", "ops", "leaked"),
    ]
    assert created["target"]["token_id"] == token["token_id"]
    assert text.rpartition("_")[2] not in str((created, revoked))


def test_tokens_are_listed_in_pages(service: RunningService) -> None:
    """K4, K3: tokens are listed by creation, by tenant and in pages, without their secrets."""
    ops = make_caller(service)
    ids = [
        create(ops, tenant_id="paged", subject=f"s{number}").json["description"]["token_id"]
        for number in range(3)
    ]
    first = ops("GET", "/v1/tokens", tenant_id="paged", limit=2)
    after = first.json["tokens"][-1]["token_id"]
    rest = ops("GET", "/v1/tokens", tenant_id="paged", limit=2, after=after)

    found = [token["token_id"] for page in (first, rest) for token in page.json["tokens"]]
    assert found == ids
    assert b"secret" not in first.body
    assert {token["last_used_at"] for token in first.json["tokens"]} == {None}
    assert len(ops("GET", "/v1/tokens", limit=1000).json["tokens"]) > 3
    for wrong in ({"limit": 0}, {"limit": 1001}, {"after": " "}, {"tenant_id": " "}):
        assert ops("GET", "/v1/tokens", **wrong).status == 400


def test_a_token_grants_only_rights_that_its_creator_has(service: RunningService) -> None:
    """K4: an operator without the right to append cannot create it for others, nor for itself."""
    ops = make_caller(service, rights=["operate", "read"])
    refused = create(ops)

    assert (refused.status, refused.json["details"]) == (403, {"right": "append"})
    assert create(ops, rights=["read", "operate"]).status == 201


@pytest.mark.parametrize(
    "wrong",
    [
        {"rights": []},
        {"rights": ["everything"]},
        {"tenant_id": ""},
        {"subject": "anonymous"},
        {"subject": None, "tenant_id": "*", "rights": ["read"]},
        {"expires_in_s": -1},
        {"note": "x" * 501},
        {"note": "a\0b"},
        {"types": ["t"] * 65},
        {"reason": "AKIAIOSFODNN7EXAMPLE"},
    ],
    ids=str,
)
def test_malformed_tokens_are_refused(service: RunningService, wrong: dict[str, object]) -> None:
    """L3: a malformed field is `invalid_argument`, and no token is created."""
    ops = make_caller(service)
    before = len(service.service.access.tokens())
    refused = create(ops, **wrong)

    assert (refused.status, refused.code) == (400, "invalid_argument")
    assert len(service.service.access.tokens()) == before


def test_the_secret_of_a_token_is_never_stored(service: RunningService, shared_url: str) -> None:
    """K2: a request with an idempotency key leaves no response with the secret in the database."""
    ops = make_caller(service)
    key = {"idempotency-key": "token-1"}
    first, second = (ops("POST", "/v1/tokens", NEW, headers=key) for _ in range(2))

    assert (first.status, second.status) == (201, 201)
    assert first.json["token"] != second.json["token"]
    with closing(open_access(access_url(shared_url))) as access:
        rows = access._read("count_responses", tenant_id="default", at_most=10)
    assert rows == [(0,)]


def test_a_quota_is_set_applied_listed_and_removed(service: RunningService) -> None:
    """K4, N4: a quota is set, applied, listed with its use, and removed, and each is recorded."""
    ops = make_caller(service)
    append = make_caller(service, tenant_id="limited")
    body = {"tenant_id": "limited", "events_per_s": 1, "bytes_per_s": 0, "reason": "flood"}
    assert ops("POST", "/v1/quotas", body).json == {"count": 1}
    wait_until(lambda: append.append(make_event()).status == 429, "limited", within_s=10)

    response = ops("GET", "/v1/quotas").json
    [quota] = [quota for quota in response["quotas"] if quota["tenant_id"] == "limited"]
    assert response["default"] == {"tenant_id": "*", "events_per_s": 0.0, "bytes_per_s": 0.0}
    assert (quota["events_per_s"], quota["bytes_left"]) == (1.0, None)
    assert quota["events_left"] <= 1
    assert ops("GET", "/v1/quotas", after="limited").json["quotas"] == []
    removal = {"tenant_id": "limited", "reason": "over"}
    assert ops("POST", "/v1/quotas/remove", removal).json == {"count": 1}
    assert ops("POST", "/v1/quotas/remove", removal).status == 404
    entries = ops("GET", "/v1/operations", tenant_id="limited").json["operations"]
    assert [(entry["action"], entry["reason"]) for entry in entries] == [
        ("quota_removed", "over"),
        ("quota_set", "flood"),
    ]


def test_an_unused_quota_is_listed_with_its_full_burst(service: RunningService) -> None:
    """K4: a quota that was never used is listed with two seconds of its rates left."""
    ops = make_caller(service)
    ops("POST", "/v1/quotas", {"tenant_id": "unused", "events_per_s": 5, "bytes_per_s": 7})
    [quota] = [
        quota for quota in ops("GET", "/v1/quotas").json["quotas"] if quota["tenant_id"] == "unused"
    ]

    assert (quota["events_left"], quota["bytes_left"]) == (10.0, 14.0)


@pytest.mark.parametrize(
    "wrong",
    [{"tenant_id": "*"}, {"tenant_id": ""}, {"events_per_s": -1}, {"bytes_per_s": 1e16}],
    ids=str,
)
def test_malformed_quotas_are_refused(service: RunningService, wrong: dict[str, object]) -> None:
    """L3: a malformed quota is `invalid_argument`."""
    refused = make_caller(service)("POST", "/v1/quotas", {"tenant_id": "acme", **wrong})

    assert (refused.status, refused.code) == (400, "invalid_argument")
