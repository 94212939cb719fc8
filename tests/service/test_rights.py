"""Rights of tokens: appends, actors, event types, tenants and expiry."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from seriatim.access.quotas import Quota
from seriatim.access.rights import Caller as Rights
from seriatim.core.errors import Forbidden, InvalidArgument, LimitExceeded, Unauthorized
from seriatim.core.event import INFRASTRUCTURE_TENANT
from seriatim.factory import access_url
from tests.faults.support import wait_until
from tests.fixtures.service import RunningService
from tests.service.conftest import sqlite_in
from tests.service.http_calls import Caller, make_caller, make_event, open_tail


def scoped(
    service: RunningService, *types: str, rights: tuple[str, ...] = ("append", "read")
) -> Caller:
    """Return a caller that is confined to event types."""
    return make_caller(service, tenant_id="scoped", rights=rights, types=types)


# -- appends and actors


def test_a_tenants_token_may_only_read(service: RunningService) -> None:
    """K4: a tenant's own token cannot append, and cannot be created with more than `read`."""
    for right in ("append", "operate", "act_as"):
        with pytest.raises(Exception, match="a tenant's token may only read"):
            service.token(subject=None, tenant_id="t", rights=[right])
    response = make_caller(service, subject=None, tenant_id="t", rights=["read"]).append(
        make_event()
    )

    assert (response.status, response.code) == (403, "forbidden")


@pytest.mark.parametrize("path", ["/v1/events", "/v1/appends", "/v1/append-if"])
def test_the_actor_is_the_tokens_subject(service: RunningService, path: str) -> None:
    """K4: events without an actor get the token's subject; another actor needs `act_as`."""
    mail = make_caller(service, subject="mail", tenant_id="t", rights=["append", "read"])
    other = make_caller(
        service, subject="sales", tenant_id="t", rights=["append", "act_as", "read"]
    )
    named = make_event(actor_type="user", actor_id="ann")

    def sent(caller: Caller, given: dict[str, Any]) -> Any:
        body: dict[str, Any] = {"events": [given]}
        if path == "/v1/append-if":
            body |= {"query": {"filters": [{"types": ["never"]}]}}
        response = caller("POST", path, {"appends": [body]} if path == "/v1/appends" else body)
        if path != "/v1/appends":
            return response.json
        [outcome] = response.json["outcomes"]
        return outcome.get("problem") or outcome["receipt"]

    own = sent(mail, make_event())
    spelled = sent(mail, make_event(actor_type="service_principal", actor_id="mail"))
    refused = sent(mail, named)
    allowed = sent(other, named)

    def actor(receipt: Any) -> tuple[str, str]:
        event_id = receipt["events"][0]["event_id"]
        record = mail("GET", "/v1/event", event_id=event_id).json["record"]
        return record["actor_type"], record["actor_id"]

    assert actor(own) == actor(spelled) == ("service_principal", "mail")
    assert (refused["code"], refused["details"]) == ("forbidden", {"right": "act_as"})
    assert actor(allowed) == ("user", "ann")


def test_the_actor_of_a_command_is_the_tokens_subject(service: RunningService) -> None:
    """C5: a command with another actor than the token's subject is refused without `act_as`."""
    mail = make_caller(service, subject="mail", tenant_id="t", rights=["append"])
    command = {"actor": "ann", "endpoint": "/x", "key": "k"}

    assert mail.append(make_event(), command=command).code == "forbidden"
    assert mail.append(make_event(), command={**command, "actor": "mail"}).status == 201


# -- event types


def test_type_patterns_confine_appends(service: RunningService) -> None:
    """K4: a token appends only types of its patterns; a batch is accepted whole or refused."""
    caller = scoped(service, "order.*", "noted", rights=("append",))

    assert caller.append(make_event("order.paid"), make_event("noted")).status == 201
    for wrong in ("orders", "order", "ORDER.paid", "x"):
        assert caller.append(make_event("order.paid"), make_event(wrong)).code == "forbidden"
    with pytest.raises(Exception, match="exact event types"):
        scoped(service, "order.*")


def test_a_type_scope_confines_every_read(service: RunningService) -> None:
    """K4: page, query, tail, event by id and conditions contain only the types of the scope."""
    all_types = make_caller(service, tenant_id="scoped")
    hidden = all_types.append(make_event("hidden", event_id=f"h{time.time_ns()}"))
    shown = all_types.append(make_event("shown", event_id=f"s{time.time_ns()}"))
    after = hidden.json["first_position"] - 1
    caller = scoped(service, "shown")
    every = {"query": {}, "after": after, "until": shown.json["last_position"], "limit": 10}

    def types(response: Any) -> list[str]:
        return [record["event_type"] for record in response.json["records"]]

    assert types(caller("GET", "/v1/events", after=after)) == ["shown"]
    assert types(caller("GET", "/v1/events", after=after, types=["hidden"])) == []
    assert types(caller("GET", "/v1/events", after=after, types=["hidden", "shown"])) == ["shown"]
    assert types(caller("GET", "/v1/events", after=after, types=["*"])) == ["shown"]
    assert types(caller("GET", "/v1/events", after=after, types=["hidden.*"])) == []
    everything = {"filters": [{"types": ["*"]}], "min_position": after}
    assert types(caller("POST", "/v1/query", {"query": everything})) == ["shown"]
    found = caller("POST", "/v1/query", {"query": {"min_position": after}})
    assert types(found) == ["shown"]
    assert found.json["context_version"] == shown.json["last_position"]
    only_hidden = {"filters": [{"types": ["hidden"]}]}
    assert caller("POST", "/v1/query", {"query": only_hidden}).json["context_version"] is None
    assert types(caller("POST", "/v1/query/records", every)) == ["shown"]
    assert (
        caller("POST", "/v1/query/records", {**every, "query": only_hidden}).json["records"] == []
    )
    version = {"query": only_hidden, "until": shown.json["last_position"]}
    assert caller("POST", "/v1/query/version", version).json["context_version"] is None
    foreign = caller("GET", "/v1/event", event_id=hidden.json["events"][0]["event_id"])
    absent = caller("GET", "/v1/event", event_id="h" + "0" * 19)
    assert (foreign.status, absent.status) == (404, 404)
    with open_tail(caller, after=after) as tail:
        lines = tail.lines()
        assert next(lines)["records"][0]["event_type"] == "shown"


def test_conditions_see_only_readable_events(service: RunningService) -> None:
    """K4: a condition evaluates only readable events, and needs the right to read."""
    all_types = make_caller(service, tenant_id="scoped")
    all_types.append(make_event("hidden", {"room": "blue"}))
    query = {"filters": [{"types": ["hidden"]}]}
    body = {"events": [make_event("shown")], "query": query, "expected_version": None}
    blind = scoped(service, "shown", rights=("append",))

    assert scoped(service, "shown")("POST", "/v1/append-if", body).status == 201
    assert all_types("POST", "/v1/append-if", body).code == "conditional_append_conflict"
    assert blind("POST", "/v1/append-if", body).json["details"] == {"right": "read"}


def test_a_known_id_does_not_reveal_a_hidden_event(service: RunningService) -> None:
    """K4: `on_id_mismatch: warn` needs the right to read the stored event."""
    name = f"id{time.time_ns()}"
    all_types = make_caller(service, tenant_id="scoped")
    all_types.append(make_event("hidden", {"a": "unseen"}, event_id=name))
    wanted = {"events": [make_event("shown", event_id=name)], "on_id_mismatch": "warn"}

    for caller in (scoped(service, "shown"), scoped(service, "shown", rights=("append",))):
        one = caller("POST", "/v1/events", wanted)
        [several] = caller("POST", "/v1/appends", {"appends": [wanted]}).json["outcomes"]
        assert one.code == several["problem"]["code"] == "forbidden"
        assert b"unseen" not in one.body
    assert all_types("POST", "/v1/events", wanted).status == 201


# -- tenants


def test_a_repeated_command_does_not_reveal_hidden_events(service: RunningService) -> None:
    """K4: a repeated command does not return records that its token may not read."""
    whole = make_caller(service, subject="svc", tenant_id="scoped", rights=["append", "read"])
    narrow = make_caller(
        service, subject="svc", tenant_id="scoped", rights=["append"], types=["ok"]
    )
    command = {"actor": "svc", "endpoint": "x", "key": "hidden-k"}
    hidden = make_event("hidden", {"salary": 5})
    assert whole.append(hidden, command=command).status == 201
    response = narrow.append(make_event("ok"), command=command)

    assert (response.status, response.code) == (403, "forbidden")
    assert b"salary" not in response.body
    assert b"salary" in whole.append(hidden, command=command).body
    own = {**command, "key": "own-k"}
    first, again = (narrow.append(make_event("ok", {"n": 1}), command=own) for _ in range(2))
    assert (first.status, again.status) == (201, 201)
    assert again.json["first_position"] == first.json["first_position"]


def test_a_conflict_reveals_contents_only_to_readers(service: RunningService) -> None:
    """K4, C2: the conflict names no fields if the caller may not read the stored event."""
    whole = make_caller(service, tenant_id="scoped", rights=["append", "read"])
    narrow = make_caller(service, tenant_id="scoped", rights=["append"], types=["ok"])
    assert whole.append(make_event("hidden", {"salary": 5}, event_id="h-9")).status == 201
    guesses = [narrow.append(make_event("ok", {"salary": n}, event_id="h-9")) for n in (4, 5)]

    assert [response.code for response in guesses] == ["idempotency_conflict"] * 2
    assert guesses[0].comparable == guesses[1].comparable
    details = whole.append(make_event("hidden", {"salary": 4}, event_id="h-9")).json["details"]
    assert details["fields"] == ["payload"]


def test_a_service_may_not_use_the_actor_type_of_a_user(service: RunningService) -> None:
    """K4: without `act_as` a service may use only the actor types of services."""
    caller = make_caller(service, subject="svc", tenant_id="t", rights=["append"])
    for kind, status in (("service_principal", 201), ("system", 201), ("user", 403)):
        assert caller.append(make_event(actor_type=kind, actor_id="svc")).status == status


def test_the_infrastructure_tenant_is_for_operators(service: RunningService) -> None:
    """K2: only an operator of all tenants may name the reserved tenant."""
    ordinary = Caller(service.port, service.token(rights=["append", "read"]), INFRASTRUCTURE_TENANT)
    operator = Caller(service.port, service.token(), INFRASTRUCTURE_TENANT)

    assert ordinary("GET", "/v1/events").code == "forbidden"
    assert ordinary.append(make_event()).code == "forbidden"
    assert operator("GET", "/v1/events").status == 200


def test_a_token_for_infrastructure_needs_the_right_operate(
    service: RunningService,
) -> None:
    """K2: a token of the infrastructure tenant without `operate` cannot be created or used."""
    for how in ({"subject": None, "rights": ["read"]}, {"rights": ["append", "read", "act_as"]}):
        with pytest.raises(InvalidArgument, match="right operate"):
            service.token(tenant_id=INFRASTRUCTURE_TENANT, **how)
    kept = Rights(subject="x", tenant_id=INFRASTRUCTURE_TENANT, rights=frozenset({"read"}))
    with pytest.raises(Forbidden):
        kept.resolve_tenant(None)
    operator = make_caller(service, tenant_id=INFRASTRUCTURE_TENANT)
    assert operator("GET", "/v1/log").json["tenant_id"] == INFRASTRUCTURE_TENANT


def test_the_star_is_no_tenant_name(service: RunningService) -> None:
    """K2: `*` is refused as the tenant of a request, a tenant's token or a quota."""
    response = Caller(service.port, service.token(), "*")("GET", "/v1/log")

    assert (response.status, response.code) == (400, "invalid_argument")
    assert "all of them" in response.json["detail"]
    with pytest.raises(InvalidArgument, match="one tenant"):
        service.token(subject=None, tenant_id="*", rights=["read"])
    with pytest.raises(InvalidArgument, match="all of them"):
        service.service.access.set_quota(Quota(tenant_id="*", events_per_s=1))


def test_types_of_a_token_are_bounded_like_those_of_a_query(service: RunningService) -> None:
    """K3: a token with more types than a query may name is refused with the bound."""
    types = [f"type-{n}" for n in range(65)]
    with pytest.raises(LimitExceeded, match="64 types") as caught:
        scoped(service, *types)

    assert caught.value.details == {"limit": "predicates", "bound": 64, "actual": 65}
    assert scoped(service, *types[:64])("POST", "/v1/query", {"query": {}}).status == 200


def test_a_token_for_all_tenants_names_a_tenant(service: RunningService) -> None:
    """K2: a token for all tenants works on the tenant of the request, else the default one."""
    token = service.token(rights=["append", "read"])
    for tenant in ("ünï çødé", "a" * 512, None):
        named = None if tenant is None else tenant.encode().decode("latin-1")
        caller = Caller(service.port, token, named)
        record = caller.append(make_event("x")).json["events"][0]["event_id"]
        got = caller("GET", "/v1/event", event_id=record).json["record"]["tenant_id"]
        assert got == (tenant or "default")
    for wrong in ("", "a" * 513, "a\tb"):
        assert Caller(service.port, token, wrong)("GET", "/v1/log").status == 400


# -- secrets and expiry


def dump_access_store(url: str) -> str:
    """Return the whole access store as text."""
    at = access_url(url)
    if at.startswith("sqlite:"):
        with sqlite3.connect(urlsplit(at).path) as db:
            return "\n".join(db.iterdump())
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "select table_schema, table_name from information_schema.tables"
            " where table_name like 'seriatim_%'"
        ).fetchall()
        return "\n".join(
            str(connection.execute(f'select * from "{schema}"."{name}"').fetchall())
            for schema, name in found
        )


def test_tokens_are_stored_hashed_and_never_revealed(
    service: RunningService, shared_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """K2: neither the database nor a log line nor a problem contains the secret of a token."""
    caplog.set_level(logging.DEBUG)
    token = service.token()
    secret = token.split("_", 2)[2]
    caller = Caller(service.port, token)
    responses = [
        caller("GET", "/v1/log"),
        caller("GET", "/v1/event", event_id="x"),
        caller.append({"authorization": token}),
        Caller(service.port, token + "x")("GET", "/v1/log"),
    ]

    assert responses[0].status == 200
    assert token.split("_")[1] in dump_access_store(shared_url)
    assert secret not in dump_access_store(shared_url)
    assert secret not in caplog.text
    assert not any(secret.encode() in response.body for response in responses)


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_revoked_or_expired_token_ends_within_two_seconds(
    service: RunningService, how: str
) -> None:
    """K4: requests and an open tail end within seconds of the end of their token."""
    access = service.service.access
    lasts = 1.5 if how == "expired" else None
    text, made = access.create(subject="x", tenant_id="t", rights=["read"], expires_in_s=lasts)
    caller = Caller(service.port, text)
    busy = make_caller(service, tenant_id="t", rights=["append"])
    with open_tail(caller) as tail:
        lines = tail.lines()
        assert "position" in next(lines)
        assert caller("GET", "/v1/log").status == 200
        ended = time.monotonic() + (lasts or 0.0)
        if how == "revoked":
            access.revoke(made.token_id)
        wait_until(lambda: caller("GET", "/v1/log").status == 401, "refused", within_s=4.0)
        refused = time.monotonic() - ended
        last: dict[str, Any] = {}
        for line in lines:
            last = line
            busy.append(make_event())  # a busy tail checks its token too

    assert last["problem"]["code"] == "unauthorized"
    assert refused < 2.5
    assert time.monotonic() - ended < 3.5


@pytest.mark.parametrize("good", [True, False])
def test_concurrent_requests_share_one_token_lookup(quick: RunningService, good: bool) -> None:
    """K4: an uncached token is looked up once for all concurrent requests."""
    service = quick.service
    text = quick.token() if good else make_unknown_token()
    asked: list[str] = []
    there = threading.Barrier(2)
    admit = service.access.authenticate

    def slowly(token: str) -> Any:
        asked.append(token)
        there.wait(10)
        return admit(token)

    async def many() -> list[Any]:
        head = {b"authorization": b"Bearer " + text.encode()}
        coming = [asyncio.ensure_future(service.authenticate(head)) for _ in range(16)]
        await asyncio.sleep(0)  # until all requests wait for the one lookup
        coming[0].cancel()  # the first caller is cancelled; the others get the result
        await asyncio.to_thread(there.wait, 10)
        return await asyncio.gather(*coming, return_exceptions=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.access, "authenticate", slowly)
        first, *others = quick.run(many())

    assert asked == [text]
    assert isinstance(first, asyncio.CancelledError)
    assert {type(other) for other in others} == ({Rights} if good else {Unauthorized})


def make_unknown_token() -> str:
    """Make a well-formed token that does not exist."""
    return f"srt_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}"


def test_lookups_of_refused_tokens_are_limited(
    serving: Callable[..., RunningService], monkeypatch: pytest.MonkeyPatch
) -> None:
    """K4: a malformed token is not looked up, and a wrong one at most once a second."""
    service = serving()
    access = service.service.access
    asked: list[str] = []
    admit = access.authenticate

    def counted(text: str) -> Any:
        asked.append(text)
        return admit(text)

    monkeypatch.setattr(access, "authenticate", counted)
    good, wrong = service.token(), make_unknown_token()
    for text in (good[:-1], good + "x", good.upper(), f"srt_{'g' * 16}_{'a' * 43}", "srt_x_y"):
        assert Caller(service.port, text)("GET", "/v1/log").status == 401
    assert asked == []
    responses = [Caller(service.port, wrong)("GET", "/v1/log") for _ in range(20)]

    assert {response.status for response in responses} == {401}
    assert asked == [wrong]


def test_a_token_created_after_its_refusal_is_accepted(
    serving: Callable[..., RunningService], tmp_path: Path
) -> None:
    """K4: the refusal of a token is cached for less than two seconds."""
    url = sqlite_in(tmp_path)
    service, file = serving(url), urlsplit(access_url(url)).path
    text, made = service.service.access.create(subject="x", tenant_id="t", rights=["read"])
    caller = Caller(service.port, text)
    rename = "update seriatim_tokens set token_id = ? where token_id = ?"
    with sqlite3.connect(file) as db:  # as if the token had not been created yet
        db.execute(rename, ["later", made.token_id])
    assert caller("GET", "/v1/log").status == 401
    with sqlite3.connect(file) as db:
        db.execute(rename, [made.token_id, "later"])
    wait_until(lambda: caller("GET", "/v1/log").status == 200, "accepted", within_s=2.0)


def test_an_anonymous_tail_ends_when_tokens_are_required(
    serving: Callable[..., RunningService],
) -> None:
    """K4: tails without a token end once a token is created."""
    service = serving(open_on_loopback=True)
    with open_tail(Caller(service.port)) as tail:
        lines = tail.lines()
        next(lines)
        service.token()
        [last] = list(lines)

    assert last["problem"]["code"] == "unauthorized"


def test_services_of_one_log_share_tokens(
    service: RunningService, shared_url: str, tmp_path: Path
) -> None:
    """K4: a token created or revoked through one process takes effect in another."""
    from tests.fixtures.service import run_service

    text, made = service.service.access.create(subject="x", tenant_id="t", rights=["read"])
    with run_service(shared_url) as other:
        caller = Caller(other.port, text)
        assert caller("GET", "/v1/log").status == 200
        service.service.access.revoke(made.token_id)
        wait_until(lambda: caller("GET", "/v1/log").status == 401, "refused", within_s=3.0)
