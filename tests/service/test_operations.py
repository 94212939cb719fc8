"""The operators' journal, and projections operated over HTTP, in Python and by commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

import seriatim
from seriatim.cli.app import app
from seriatim.core.errors import BackendFailure, Conflict, Forbidden, NotFound
from seriatim.core.event import INFRASTRUCTURE_TENANT, NewEvent
from seriatim.core.operation import Operation, OperatorAction
from seriatim.factory import (
    access_url,
    open_access,
    open_read_model,
    open_registry,
    read_model_url,
    registry_url,
)
from seriatim.log.base import BaseLog
from seriatim.log.operator_journal import local_operator, read_journal, record_action
from tests.fixtures.service import RunningService, run_service
from tests.integration.readmodel_support import make_failure, make_step, seats
from tests.service.conftest import sqlite_in
from tests.service.http_calls import Caller, make_caller, make_event
from tests.service.tenant_data import MAILER, OURS, THEIRS, create_dead_letter

KEY = "AKIAIOSFODNN7EXAMPLE"  # of the documentation of its vendor, not a secret


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a log."""
    return sqlite_in(tmp_path)


@pytest.fixture
def service(url: str) -> Iterator[RunningService]:
    """A service with failures of a projection and a dead letter of each of two tenants."""
    with run_service(url) as service:
        for tenant in (OURS, THEIRS):
            for name in ("one", "dead"):
                service.service.view(tenant).append(
                    [NewEvent("x", {}, event_id=f"{tenant}-{name}")]
                )
        for tenant in (OURS, THEIRS):
            project(service, url, tenant, failed=tenant)
        with closing(open_registry(registry_url(url))) as registry:
            for tenant in (OURS, THEIRS):
                create_dead_letter(service, registry, MAILER, tenant)
        yield service


def project(
    service: RunningService, url: str, tenant: str, *, failed: str, owner: str = ""
) -> None:
    """Create a projection with two failures, at positions 1 and 2."""
    log = service.service.view(tenant)
    with closing(open_read_model(read_model_url(url, tenant))) as model:
        model.create_projection(seats, owner or tenant, log.identity())
        token = model.claim("seats", "runner", 3600)
        failures = [
            (msgspec.structs.replace(make_failure(at), tenant_id=failed, key=f"k{at}"), "parked")
            for at in (1, 2)
        ]
        step = make_step(0, 2, failures=failures)
        step.last_event_id = log.store.event_id_at(2) or ""
        model.commit(seats, step, token=token or 0)


def read_actions(caller: Caller, **params: Any) -> list[tuple[str, str, int]]:
    """Return action, tenant and count of each journal entry that a caller reads."""
    found = caller("GET", "/v1/operations", **params)
    assert found.status == 200, found
    return [
        (operation["action"], operation["tenant_id"], operation["count"])
        for operation in found.json["operations"]
    ]


def test_every_action_over_http_is_an_event(service: RunningService) -> None:
    """N4: actor, action, target, reason and time of each action are stored, newest first."""
    ours = make_caller(service, tenant_id=OURS, subject="anna")
    whole = Caller(service.port, service.token(subject="ops"), OURS)
    named = {"name": "seats", "reason": "deploying"}
    for path, body in (
        ("projections/pause", named),
        ("projections/resume", named),
        ("projections/retry", {"name": "seats", "position": 1}),
        ("projections/retry", {"name": "seats", "expected_count": 2, "reason": "fixed"}),
        ("projections/skip", {"name": "seats", "position": 2, "reason": "bad data"}),
        ("dead-letters/retry", {"event_id": f"{OURS}-dead", "reason": "again"}),
        ("dead-letters/skip", {"event_id": f"{OURS}-dead", "reason": "given up"}),
    ):
        response = ours("POST", f"/v1/{path}", body)
        assert (response.status, response.json.get("recorded")) == (200, None), response
    for act in ("pause", "resume"):
        body = {"handler": MAILER.name, "reason": "deploying"}
        assert whole("POST", f"/v1/handlers/{act}", body).json == {"count": 1}

    assert read_actions(whole) == [
        ("handler_resumed", "*", 1),
        ("handler_paused", "*", 1),
        ("events_skipped", OURS, 1),
        ("events_retried", OURS, 1),
        ("projection_failure_skipped", OURS, 1),
        ("projection_failures_retried", OURS, 2),
        ("projection_failures_retried", OURS, 1),
        ("projection_resumed", OURS, 1),
        ("projection_paused", OURS, 1),
    ]
    skipped = whole("GET", "/v1/operations", tenant_id=OURS, limit=1).json["operations"][0]
    position, at = skipped.pop("position"), skipped.pop("recorded_at")
    assert skipped == {
        "action": "events_skipped",
        "actor_type": "service",
        "actor_id": "anna",
        "interface": "http",
        "tenant_id": OURS,
        "target": {
            "event_id": f"{OURS}-dead",
            "status": ["claimed", "failed", "blocked", "dead", "unknown"],
        },
        "count": 1,
        "reason": "given up",
    }
    stored = service.service.view(INFRASTRUCTURE_TENANT).last_event(("operator_journal", OURS))
    assert stored is not None
    assert (stored.position, stored.recorded_at) == (position, at)
    assert stored.event_type == "operator.events_skipped"


def test_tenants_see_their_own_actions(service: RunningService) -> None:
    """K2, N4: a tenant's operator reads its tenant's actions, an operator of all reads all."""
    ours, theirs = (make_caller(service, tenant_id=tenant) for tenant in (OURS, THEIRS))
    whole = make_caller(service)
    for caller in (ours, theirs, ours):
        caller("POST", "/v1/projections/pause", {"name": "seats"})
    whole("POST", "/v1/handlers/pause", {"handler": MAILER.name})
    own = [("projection_paused", OURS, 1)] * 2

    assert read_actions(ours) == read_actions(ours, tenant_id=OURS) == own
    assert read_actions(theirs) == [("projection_paused", THEIRS, 1)]
    assert len(read_actions(whole)) == 4
    assert read_actions(whole, tenant_id=OURS) == own
    assert read_actions(whole, tenant_id="*") == [("handler_paused", "*", 1)]
    assert ours("GET", "/v1/operations", tenant_id=THEIRS).status == 403
    assert ours("GET", "/v1/operations", tenant_id="*").status == 403
    reader = make_caller(service, tenant_id=OURS, rights=["read"])
    assert reader("GET", "/v1/operations").status == 403


def test_the_journal_is_read_in_pages(service: RunningService) -> None:
    """N4, K3: pages of the journal continue without gaps, and their size is bounded."""
    whole = Caller(service.port, service.token(), OURS)
    for _ in range(3):
        whole("POST", "/v1/projections/pause", {"name": "seats"})
    all_ = whole("GET", "/v1/operations").json["operations"]
    first = whole("GET", "/v1/operations", limit=2).json["operations"]
    rest = whole("GET", "/v1/operations", limit=2, before=first[-1]["position"]).json["operations"]

    assert first + rest == all_
    assert len(rest) == 1
    for wrong in ({"limit": 0}, {"limit": 1001}, {"before": 0}, {"before": -1}, {"tenant_id": " "}):
        refused = whole("GET", "/v1/operations", **wrong)
        assert (refused.status, refused.code) == (400, "invalid_argument"), wrong


def test_malformed_entries_do_not_break_the_listing(service: RunningService) -> None:
    """N4, L2: an event of another writer with a journal's type does not break the listing."""
    whole = Caller(service.port, service.token(), INFRASTRUCTURE_TENANT)
    whole.append(make_event("operator.token_created", {"target": 1, "count": "many"}))

    assert read_actions(whole) == [("token_created", "*", 0)]


def test_reasons_are_checked_before_the_action(service: RunningService) -> None:
    """N4, K1: an action whose reason is a secret, too long or unprintable is not executed."""
    ours = make_caller(service, tenant_id=OURS)
    for reason in (f"key {KEY}", "x" * 501, "a\0b"):
        refused = ours("POST", "/v1/projections/pause", {"name": "seats", "reason": reason})
        assert (refused.status, refused.code) == (400, "invalid_argument")
        assert KEY.encode() not in refused.body
    [standing] = ours("GET", "/v1/projections").json["projections"]

    assert standing["status"] == "ready"
    assert read_actions(ours) == []


def test_secrets_in_a_target_are_replaced(service: RunningService) -> None:
    """N4, K1: a filter that contains a secret is recorded without it."""
    action = OperatorAction(
        action="events_retried",
        operator=local_operator(),
        tenant_id=OURS,
        target={"event_id": KEY, "status": ["dead", KEY]},
    )

    assert record_action(service.service.log, action)
    [entry] = read_journal(service.service.log)
    assert KEY not in str(entry)
    assert entry.target["status"][0] == "dead"


def test_an_unrecorded_action_is_reported(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """N4, L2: an action that cannot be recorded succeeds and reports `recorded: false`."""
    append = BaseLog.append

    def fail(log: BaseLog, *args: Any, **more: Any) -> Any:
        if log.tenant_id == INFRASTRUCTURE_TENANT:
            raise BackendFailure("no space left")
        return append(log, *args, **more)

    ours = make_caller(service, tenant_id=OURS)
    monkeypatch.setattr(BaseLog, "append", fail)
    paused = ours("POST", "/v1/projections/pause", {"name": "seats"})
    retried = ours("POST", "/v1/dead-letters/retry", {"event_id": f"{OURS}-dead"})

    for response in (paused, retried):
        assert (response.status, response.json) == (200, {"count": 1, "recorded": False})
    assert ours("GET", "/v1/projections").json["projections"][0]["status"] == "paused"
    assert "projection_paused succeeded, but was not recorded" in caplog.text


def test_an_action_without_effect_is_not_recorded(service: RunningService) -> None:
    """N4: an action that matches nothing, or is refused, leaves no journal entry."""
    ours = make_caller(service, tenant_id=OURS)
    many = {"all": True, "event_type": "nothing", "expected_count": 0, "reason": "seen"}

    assert ours("POST", "/v1/dead-letters/retry", many).json == {"count": 0}
    assert ours("POST", "/v1/projections/pause", {"name": "nobody"}).status == 404
    assert ours("POST", "/v1/projections/skip", {"name": "seats", "position": 9}).status == 404
    assert read_actions(ours) == []


def test_a_duplicate_is_recorded_once(service: RunningService) -> None:
    """N4, C5: a request repeated with its idempotency key is executed and recorded once."""
    ours = make_caller(service, tenant_id=OURS)
    key = {"idempotency-key": "pause-1"}
    first, second = (
        ours("POST", "/v1/projections/pause", {"name": "seats"}, headers=key) for _ in range(2)
    )

    assert (first.status, second.status, first.body) == (200, 200, second.body)
    assert len(read_actions(ours)) == 1


def test_a_retry_of_all_failures_needs_their_count_and_a_reason(service: RunningService) -> None:
    """N4: a retry of all failures needs their right number and a reason."""
    ours = make_caller(service, tenant_id=OURS)
    path = "/v1/projections/retry"
    uncounted = ours("POST", path, {"name": "seats", "reason": "fixed"})
    unexplained = ours("POST", path, {"name": "seats", "expected_count": 2})
    wrong = ours("POST", path, {"name": "seats", "expected_count": 3, "reason": "fixed"})
    negative = ours("POST", path, {"name": "seats", "position": -1})

    assert uncounted.json["details"] == {"argument": "expected_count"}
    assert unexplained.json["details"] == {"argument": "reason"}
    assert (wrong.status, wrong.json["details"]) == (409, {"expected_count": 3, "actual_count": 2})
    assert (negative.status, negative.code) == (400, "invalid_argument")


def test_operators_of_shared_projections_are_confined(service: RunningService, url: str) -> None:
    """K2: in a projection of all tenants a tenant's operator resolves its own failures only."""
    service.service.view("default").append([NewEvent("x")])
    project(service, url, "default", failed=THEIRS, owner="*")
    own, whole = make_caller(service, tenant_id="default"), make_caller(service)
    skip = {"name": "seats", "position": 1}
    every = {"name": "seats", "reason": "fixed"}

    for act in ("pause", "resume"):
        assert own("POST", f"/v1/projections/{act}", {"name": "seats"}).status == 403
        assert whole("POST", f"/v1/projections/{act}", {"name": "seats"}).json == {"count": 1}
    assert own("POST", "/v1/projections/skip", skip).status == 404
    assert own("POST", "/v1/projections/retry", skip).status == 404
    none = own("POST", "/v1/projections/retry", {**every, "expected_count": 0})
    assert (none.status, none.json) == (200, {"count": 0})
    both = whole("POST", "/v1/projections/retry", {**every, "expected_count": 2})
    assert both.json == {"count": 2}
    assert whole("POST", "/v1/projections/skip", skip).json == {"count": 1}


def test_projections_are_operated_in_python(service: RunningService, url: str) -> None:
    """N4, I7: `log.projections` acts and records alike on a database and through a service."""
    token = service.token(tenant_id=OURS, subject="anna")
    with (
        seriatim.open(url, tenant_id=OURS) as local,
        seriatim.open(service.url, token=token) as remote,
    ):
        for log in (local, remote):
            projections = log.projections
            assert projections.pause("seats", reason="deploying")
            assert [status.status for status in projections.status()] == ["paused"]
            assert projections.resume("seats")
            assert projections.retry("seats", 1) == (1, True)
            assert projections.retry("seats", expected_count=2, reason="fixed") == (2, True)
            with pytest.raises(Conflict):
                projections.retry("seats", expected_count=3, reason="fixed")
            with pytest.raises(NotFound):
                projections.pause("nobody")
        assert remote.projections.skip("seats", 1)
        assert local.projections.skip("seats", 2, reason="bad data")
        entries = read_journal(local, tenant_id=OURS)
    assert [entry.interface for entry in entries] == ["python", *["http"] * 5, *["python"] * 4]
    assert [entry.actor_id for entry in entries[:2]] == [local_operator().actor_id, "anna"]


async def test_projections_are_operated_in_asyncio(service: RunningService, url: str) -> None:
    """N4, I7: `log.aio.projections` acts and records like the synchronous form."""
    with seriatim.open(url, tenant_id=OURS) as log:
        projections = log.aio.projections
        assert await projections.pause("seats", reason="deploying")
        assert await projections.resume("seats")
        assert await projections.retry("seats", expected_count=2, reason="fixed") == (2, True)
        assert await projections.skip("seats", 1)
        assert len(read_journal(log)) == 4


def run_command(monkeypatch: pytest.MonkeyPatch, url: str, *args: str) -> tuple[int, list[Any]]:
    """Run a command; return its exit code and its lines of JSON."""
    monkeypatch.setenv("SERIATIM_URL", url)
    result = CliRunner().invoke(app, [*args, "--json"])
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize("remote", [False, True], ids=["database", "service"])
def test_commands_on_projections(
    service: RunningService, url: str, monkeypatch: pytest.MonkeyPatch, *, remote: bool
) -> None:
    """N4, I7: `project` commands act on a database and through a service, and are recorded."""
    monkeypatch.setenv("SERIATIM_TOKEN", service.token(tenant_id=OURS, subject="anna"))
    at = service.url if remote else url

    def run(*args: str) -> tuple[int, list[Any]]:
        return run_command(monkeypatch, at, *args, "--tenant", OURS)

    assert run("project", "pause", "seats", "--reason", "deploying")[0] == 0
    assert run("project", "status")[1][0][0]["status"] == "paused"
    assert run("project", "resume", "seats")[0] == 0
    assert run("project", "retry", "seats", "1")[0] == 0
    assert run("project", "retry", "seats", "--yes")[0] == 2
    assert run("project", "retry", "seats", "--reason", "fixed")[0] == 2
    code, [done] = run("project", "retry", "seats", "--yes", "--reason", "fixed")
    assert (code, done["done"][:1], "recorded" in done) == (0, "2", False)
    assert run("project", "skip", "seats", "2", "--reason", "bad data")[0] == 0
    code, entries = run("operations")
    found = [msgspec.convert(entry, Operation) for entry in entries]
    assert [(one.action, one.count, one.reason) for one in found] == [
        ("projection_failure_skipped", 1, "bad data"),
        ("projection_failures_retried", 2, "fixed"),
        ("projection_failures_retried", 1, ""),
        ("projection_resumed", 1, ""),
        ("projection_paused", 1, "deploying"),
    ]
    caller = ("anna", "http") if remote else (local_operator().actor_id, "cli")
    assert {(one.actor_id, one.interface) for one in found} == {caller}
    if remote:
        assert run("project", "pause", "seats", "--target", url)[0] == 2


def test_commands_on_the_registry_tokens_and_quotas(
    service: RunningService, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N4: each command of an operator is recorded with its target, and no secret."""

    def run(*args: str) -> list[Any]:
        code, lines = run_command(monkeypatch, url, *args)
        assert code == 0, args
        return lines

    run("dlq", "retry", f"{OURS}-dead", "--tenant", OURS)
    run("registry", "skip", "--all", "--yes", "--reason", "given up")
    run("registry", "pause", MAILER.name, "--reason", "deploying")
    run("registry", "resume", MAILER.name, "--reason", "deployed")
    prune = ("registry", "prune", MAILER.name, "--days", "0", "--streamless")
    for refused in (prune, (*prune, "--yes"), (*prune, "--reason", "old")):
        assert run_command(monkeypatch, url, *refused)[0] == 2
    run(*prune, "--yes", "--reason", "old")
    run("registry", "reset", MAILER.name, "--reason", "restored", "--dry-run")
    run("registry", "reset", MAILER.name, "--reason", "restored")
    [token] = run("token", "create", "--service", "billing", "--tenant", OURS, "--reason", "new")
    run("token", "revoke", token["token_id"], "--reason", "leaked")
    run("quota", "set", "--tenant", OURS, "--events-per-second", "5", "--reason", "flood")
    run("quota", "remove", "--tenant", OURS)
    entries = [msgspec.convert(one, Operation) for one in run("operations")]

    assert [(entry.action, entry.tenant_id, entry.count) for entry in reversed(entries)] == [
        ("events_retried", OURS, 1),
        ("events_skipped", "*", 2),
        ("handler_paused", "*", 1),
        ("handler_resumed", "*", 1),
        ("handler_pruned", "*", 2),
        ("handler_reset", "*", 2),
        ("token_created", OURS, 1),
        ("token_revoked", OURS, 1),
        ("quota_set", OURS, 1),
        ("quota_removed", OURS, 1),
    ]
    secret = token["token"].rpartition("_")[2]
    assert secret not in str(entries)
    assert entries[2].target["token_id"] == entries[3].target["token_id"] == token["token_id"]
    assert entries[1].target == {"events_per_s": 5.0, "bytes_per_s": 0.0}


def test_a_token_created_before_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N4: without a log a token is created, and the result says that it was not recorded."""
    url = sqlite_in(tmp_path)
    code, [token] = run_command(monkeypatch, url, "token", "create", "--service", "billing")
    plain = CliRunner().invoke(app, ["token", "create", "--service", "billing"])

    assert (code, token["recorded"]) == (0, False)
    assert "not recorded in the operators' journal" in plain.stderr
    with closing(open_access(access_url(url))) as access:
        assert len(access.tokens()) == 2


def test_an_operator_of_one_tenant_is_confined(service: RunningService) -> None:
    """K2: an operator confined to one tenant cannot pause a shared projection."""
    projections = service.service.view(OURS).projections
    confined = msgspec.structs.replace(local_operator(), confined=True)

    assert projections.pause("seats", operator=confined)
    with pytest.raises(Forbidden):
        _shared(service).pause("seats", operator=confined)


def _shared(service: RunningService) -> Any:
    log = service.service.view(OURS)
    url = log.read_models.default_url("*")
    with closing(open_read_model(url)) as model:
        model.create_projection(seats, "*", log.identity())
    return log.projections_at(url)
