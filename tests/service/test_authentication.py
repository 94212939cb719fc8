"""Requests that a service must refuse: wrong tokens, and foreign host names without tokens."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from seriatim import Unauthorized
from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, make_event


def forged(token: str, secret: str) -> str:
    """Return a token with the same id and another secret."""
    prefix, token_id, _ = token.split("_", 2)
    return f"{prefix}_{token_id}_{secret}"


def secret_of(token: str) -> str:
    """Return the secret part of a token."""
    return token.split("_", 2)[2]


def test_a_known_id_with_another_secret_is_refused(service: RunningService) -> None:
    """K2: a token's id is refused without its own secret, used before or not."""
    used, fresh = service.token(), service.token()
    assert Caller(service.port, used)("GET", "/v1/log").status == 200
    own = secret_of(used)
    other_end = "A" if own[-1] != "A" else "Q"
    wrong = {
        "random": forged(used, secrets.token_urlsafe(32)),
        "of another token": forged(used, secret_of(fresh)),
        "one character off": forged(used, own[:-1] + other_end),
        "another case": forged(used, own.swapcase()),
        "never used": forged(fresh, own),
    }
    responses = {why: Caller(service.port, text)("GET", "/v1/log") for why, text in wrong.items()}
    append = Caller(service.port, wrong["random"]).append(make_event())

    assert {why: one.status for why, one in responses.items()} == dict.fromkeys(wrong, 401)
    assert (append.status, append.code) == (401, "unauthorized")
    assert Caller(service.port, fresh)("GET", "/v1/log").status == 200


def test_the_access_store_compares_the_secret(service: RunningService) -> None:
    """K2: the access store itself refuses a token with another secret."""
    token = service.token()
    access = service.service.access

    assert access.authenticate(token)[0].subject == "tester"
    with pytest.raises(Unauthorized):
        access.authenticate(forged(token, secrets.token_urlsafe(32)))


FOREIGN = [
    "evil.example",
    "evil.example:80",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "localhost@evil.example",
    "10.0.0.1",
    "[2001:db8::1]:80",
    "0.0.0.0",  # noqa: S104 - a name in a header
    "",
]
OWN = ["localhost", "localhost:8080", "127.0.0.1", "127.0.0.1:1", "127.9.9.9", "[::1]", "[::1]:80"]


def test_without_tokens_only_loopback_names_are_served(
    serving: Callable[..., RunningService],
) -> None:
    """K2: a service without tokens refuses requests whose host name is not a loopback name."""
    anyone = Caller(serving(open_on_loopback=True).port)
    read = {host: anyone("GET", "/v1/log", headers={"host": host}) for host in FOREIGN}
    written = {
        host: anyone("POST", "/v1/events", {"events": [make_event()]}, headers={"host": host})
        for host in FOREIGN
    }
    own = {host: anyone("GET", "/v1/log", headers={"host": host}) for host in OWN}

    assert {host: one.status for host, one in read.items()} == dict.fromkeys(FOREIGN, 403)
    assert {host: one.status for host, one in written.items()} == dict.fromkeys(FOREIGN, 403)
    assert {host: one.status for host, one in own.items()} == dict.fromkeys(OWN, 200)
    assert anyone("GET", "/v1/log").json["head"] == 0


def test_with_a_token_any_host_name_is_served(serving: Callable[..., RunningService]) -> None:
    """K2: a request with a token is served under any host name."""
    service = serving()
    caller = Caller(service.port, service.token())

    assert caller("GET", "/v1/log", headers={"host": "events.example"}).status == 200
