"""The commands dlq, registry, project and subscriptions with the URL of a service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import seriatim
from seriatim.cli.app import app
from seriatim.client import store as client_store
from seriatim.core.event import NewEvent
from seriatim.core.handler import Delivery, RetryPolicy, handler
from seriatim.delivery.claim_context import record_failure
from seriatim.delivery.entries import EntryFilter
from seriatim.factory import open_read_model, open_registry, read_model_url, registry_url
from seriatim.log.operator_journal import read_journal
from seriatim.store.readmodel import operations
from tests.fixtures.service import RunningService, run_service
from tests.integration.readmodel_support import seats
from tests.service.conftest import sqlite_in
from tests.service.tenant_data import OURS, THEIRS, create_dead_letter

MAILER = handler("mailer", effect="keyed", on_poison="park")(lambda _event, _context: None)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """A service with a dead letter of each of two tenants."""
    with run_service(sqlite_in(tmp_path)) as service:
        with closing(open_registry(registry_url(sqlite_in(tmp_path)))) as registry:
            registry.declare(MAILER)
            for tenant in (OURS, THEIRS):
                for name in ("one", "dead"):
                    event = NewEvent("x", {"n": 1}, event_id=f"{tenant}-{name}")
                    service.service.view(tenant).append([event])
                create_dead_letter(service, registry, MAILER, tenant)
        yield service


def run_command(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, *args: str, **token: object
) -> tuple[int, list[Any]]:
    """Run a command as a tenant's operator; return its exit code and its lines of JSON."""
    rights = {"rights": ["read", "operate"], "tenant_id": OURS} | token
    monkeypatch.setenv("SERIATIM_TOKEN", service.token(**rights))
    monkeypatch.setenv("SERIATIM_URL", f"http://127.0.0.1:{service.port}")
    result = CliRunner().invoke(app, [*args, "--json"])
    return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]


def test_dlq_commands_act_on_the_tokens_tenant(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5, K2: an operator lists, shows, retries and drops dead letters of the token's tenant."""
    code, dead_letters = run_command(service, monkeypatch, "dlq", "list")
    assert (code, [letter["event_id"] for letter in dead_letters]) == (0, [f"{OURS}-dead"])
    assert isinstance(dead_letters[0]["event"]["payload"], dict)
    assert run_command(service, monkeypatch, "dlq", "show", f"{OURS}-dead")[1] == dead_letters
    assert run_command(service, monkeypatch, "dlq", "show", f"{THEIRS}-dead")[0] != 0

    code, done = run_command(service, monkeypatch, "dlq", "retry", f"{OURS}-dead")
    assert (code, done) == (0, [{"retried": 1}])
    assert run_command(service, monkeypatch, "dlq", "list") == (0, [])
    code, done = run_command(
        service, monkeypatch, "dlq", "drop", "--all", "--yes", "--reason", "old", tenant_id=THEIRS
    )
    assert (code, done) == (0, [{"skipped": 1}])


@pytest.mark.parametrize("act", [("retry",), ("drop", "--reason", "old")])
def test_dlq_commands_act_on_dead_letters_only(
    service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: tuple[str, ...]
) -> None:
    """G5, L3: `dlq` commands find no claimed or failed event, and change none."""
    with closing(open_registry(registry_url(sqlite_in(tmp_path)))) as registry:
        identity = service.service.view(OURS).identity()
        open_events = [
            Delivery(event_id=name, tenant_id=OURS, position=9, event={}, log=identity)
            for name in ("claimed", "failed")
        ]
        claims = registry.claim_all(MAILER, open_events)
        record_failure(registry, MAILER, claims[1], ValueError("no seat"))
        asked = EntryFilter(tenant_id=OURS, status=("claimed", "failed"))
        before = [(entry.event_id, entry.status) for entry in registry.entries(asked)]
        codes = [
            run_command(service, monkeypatch, "dlq", act[0], name, *act[1:])[0]
            for name in ("claimed", "failed", "nobody", f"{THEIRS}-dead")
        ]

        assert codes == [3, 3, 3, 3]
        assert sorted(before) == [("claimed", "claimed"), ("failed", "failed")]
        assert [(entry.event_id, entry.status) for entry in registry.entries(asked)] == before


def test_registry_commands_act_on_the_tokens_tenant(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1, K2: counts cover the tenant; pausing needs all tenants."""
    code, [known] = run_command(service, monkeypatch, "registry", "status")
    assert code == 0
    assert [one["name"] for one in known["handlers"]] == ["mailer"]
    assert [(count["status"], count["count"]) for count in known["counts"]] == [("dead", 1)]
    assert run_command(service, monkeypatch, "registry", "pause", "mailer")[0] == 3
    for command in ("pause", "resume"):
        result = run_command(service, monkeypatch, "registry", command, "mailer", tenant_id="*")
        assert result == (0, [])
    assert run_command(service, monkeypatch, "registry", "waiting") == (0, [])
    assert (
        run_command(service, monkeypatch, "registry", "retry", "--all", "--reason", "fixed")[0] == 2
    )
    code, done = run_command(
        service, monkeypatch, "registry", "retry", "--all", "--yes", "--reason", "fixed"
    )
    assert (code, done) == (0, [{"retried": 1}])


def test_projections_and_subscriptions_are_listed(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7, E5: projections and subscriptions are listed for an operator of the token's tenant."""
    with seriatim.open(
        f"http://127.0.0.1:{service.port}",
        token=service.token(rights=["read", "operate"], tenant_id=OURS),
    ) as log:
        log.subscribe("mailer")
    assert run_command(service, monkeypatch, "project", "status") == (0, [[]])
    code, [one] = run_command(service, monkeypatch, "subscriptions")
    assert (code, one["name"], one["lag_events"] > 0) == (0, "mailer", True)
    assert run_command(service, monkeypatch, "subscriptions", tenant_id=THEIRS) == (0, [])
    assert run_command(service, monkeypatch, "subscriptions", rights=["read"])[0] == 3


def test_subscriptions_are_operated(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5, N4, K2: an operator shows, retries, skips and resets; others get 404 or 403."""

    def refuse(_: object) -> None:
        raise ValueError("no mail server")

    def park() -> None:
        log = service.service.view(OURS)
        log.subscribe("mailer", retry=RetryPolicy(attempts=1), idle_timeout=0.0).run(refuse)

    run = partial(run_command, service, monkeypatch, "subscriptions")
    park()
    code, [shown] = run("show", "mailer")
    assert (code, shown["status"], shown["last_error"]) == (
        0,
        "parked",
        "ValueError: no mail server",
    )
    first = shown["attempt"]["first_position"]
    assert run("show", "mailer", tenant_id=THEIRS)[0] == 3
    assert run("skip", "mailer", str(first), "--reason", "x", tenant_id=THEIRS)[0] == 3
    for act in (("retry",), ("skip", str(first), "--reason", "x")):
        assert run(act[0], "mailer", *act[1:], rights=["read"])[0] == 3
    assert run("retry", "mailer", "--reason", "try again")[0] == 0
    park()
    assert run("skip", "mailer", str(first + 1), "--reason", "wrong")[0] == 5
    assert run("skip", "mailer", str(first), "--reason", "malformed")[0] == 0
    code, [shown] = run("show", "mailer")
    [skipped] = shown["skipped_batches"]
    assert (shown["status"], skipped["reason"]) == ("ready", "malformed")
    assert run("reset", "mailer", "--position", "0", "--yes", "--reason", "again")[0] == 0
    assert run("show", "mailer")[1][0]["skipped_batches"] == []

    entries = read_journal(service.service.log, tenant_id=OURS)
    acts = [(entry.action, entry.interface, entry.reason) for entry in reversed(entries)]
    assert acts == [
        ("subscription_retried", "http", "try again"),
        ("subscription_batch_skipped", "http", "malformed"),
        ("subscription_reset", "http", "again"),
    ]
    assert {entry.actor_id for entry in entries} == {skipped["skipped_by"]}


def test_skipped_batches_are_read_in_pages(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5: the client lists all skipped batches of a subscription, page by page."""
    monkeypatch.setattr(client_store, "_CURSORS_PER_PAGE", 2)

    def refuse(_: object) -> None:
        raise ValueError("refused")

    log = service.service.view(OURS)
    for _ in range(3):
        log.append([NewEvent("x", {})])
    policy = RetryPolicy(attempts=1)
    log.subscribe("s", retry=policy, on_poison="skip", idle_timeout=0.0).run(refuse)
    token = service.token(rights=["read", "operate"], tenant_id=OURS)
    with seriatim.open(f"http://127.0.0.1:{service.port}", token=token) as remote:
        listed = remote.subscriptions.skipped("s")

    assert listed == log.subscriptions.skipped("s")
    assert len(listed) == 5


def test_the_status_contains_the_end_of_a_hold(
    service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: the status of a held projection contains the end of the hold, in every interface."""
    token = service.token(rights=["read", "operate"], tenant_id=OURS)
    identity = service.service.view(OURS).identity()
    at = read_model_url(sqlite_in(tmp_path), OURS)
    with (
        closing(open_read_model(at)) as model,
        seriatim.open(f"http://127.0.0.1:{service.port}", token=token) as log,
    ):
        for shadow in (False, True):
            model.create_projection(seats, OURS, identity, shadow=shadow)
        lease = model.claim("seats", "verify", 60, shadow=True)
        assert lease is not None
        assert [status.held_until for status in log.projections.status()] == [None]
        with model.hold("seats", lease):
            until = operations.get_progress(model, "seats").held_until
            [held] = log.projections.status()
            _, [[shown]] = run_command(service, monkeypatch, "project", "status")
    assert until is not None
    assert (held.status, held.held_until) == ("ready", until)
    assert shown["status"] == f"held until {until}"
    assert "held_until" not in shown
