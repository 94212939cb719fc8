"""Prune and reset handlers over HTTP, by remote commands, and by the commands on the database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from seriatim.cli.app import app
from seriatim.core.event import NewEvent
from seriatim.core.times import format_us
from seriatim.delivery.registry import Registry
from seriatim.delivery.reset import LogCursor
from seriatim.factory import open_registry, registry_url
from tests.fixtures.service import RunningService, run_service
from tests.service.conftest import sqlite_in
from tests.service.http_calls import Caller, make_caller
from tests.service.tenant_data import MAILER, OURS, THEIRS, create_dead_letter

FAR = format_us(4_000_000_000_000_000)  # in 2096
OLD = "2020-01-01T00:00:00Z"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of the log."""
    if request.param == "sqlite":
        return sqlite_in(tmp_path)
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def service(url: str) -> Iterator[RunningService]:
    """A service with a finished event and a dead letter of each of two tenants."""
    with run_service(url) as one:
        for tenant in (OURS, THEIRS):
            for name in ("one", "dead"):
                stream = ("order", f"{tenant}-{name}")
                event = NewEvent("x", {}, stream, event_id=f"{tenant}-{name}")
                one.service.view(tenant).append([event])
        with closing(open_registry(registry_url(url))) as registry:
            for tenant in (OURS, THEIRS):
                create_dead_letter(one, registry, MAILER, tenant)
        yield one


@pytest.fixture
def registry(service: RunningService, url: str) -> Iterator[Registry]:
    """The registry next to the log."""
    with closing(open_registry(registry_url(url))) as one:
        yield one


def count_done(registry: Registry) -> int:
    """Return the number of events that are done."""
    return sum(one.count for one in registry.counts(finished=True) if one.status == "done")


def newest(who: Caller) -> dict[str, Any]:
    """Return the last entry of the journal."""
    entry: dict[str, Any] = who("GET", "/v1/operations").json["operations"][0]
    return entry


def test_a_prune_states_its_count(service: RunningService, registry: Registry) -> None:
    """N4, G3: finished entries are counted, confirmed by their number, deleted and recorded."""
    ops = make_caller(service, subject="ops")
    body = {"handler": "mailer", "finished_before": FAR, "reason": "disk space"}

    for before, count in ((FAR, 2), (OLD, 0)):
        counted = ops("GET", "/v1/handlers/prunable", handler="mailer", finished_before=before)
        assert counted.json == {"count": count}
    refused = ops("POST", "/v1/handlers/prune", body | {"expected_count": 3})
    assert (refused.status, refused.json["details"]["actual_count"]) == (409, 2)
    assert count_done(registry) == 2
    done = ops("POST", "/v1/handlers/prune", body | {"expected_count": 2})
    assert (done.status, done.json) == (200, {"count": 2})
    assert count_done(registry) == 0
    entry = newest(ops)
    assert (entry["action"], entry["count"], entry["reason"], entry["actor_id"]) == (
        "handler_pruned",
        2,
        "disk space",
        "ops",
    )
    assert (entry["tenant_id"], entry["target"]["handler"]) == ("*", "mailer")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"reason": " "}, 400),
        ({"finished_before": "yesterday"}, 400),
        ({"handler": "nobody"}, 404),
        ({"expected_count": -1}, 400),
    ],
)
def test_a_refused_prune_changes_nothing(
    service: RunningService, registry: Registry, change: dict[str, Any], status: int
) -> None:
    """N4, L3: a reason and a time are required, and the handler must exist."""
    body = {"handler": "mailer", "finished_before": FAR, "expected_count": 2, "reason": "x"}
    answer = make_caller(service)("POST", "/v1/handlers/prune", body | change)

    assert answer.status == status, answer
    assert count_done(registry) == 2


def test_a_reset_is_planned_and_confirmed(
    service: RunningService, registry: Registry, url: str
) -> None:
    """N4, G9: a dry run counts the entries that a reset deletes; the reset needs that count."""
    ops = make_caller(service, subject="ops")
    body = {"handler": "mailer", "position": 2, "reason": "restored to Tuesday"}
    epoch = service.service.log.store.raise_epoch().epoch

    assert ops("POST", "/v1/handlers/reset", body).code == "invalid_argument"
    planned = ops("POST", "/v1/handlers/reset", body | {"dry_run": True}).json
    assert [one["tenant_id"] for one in planned["reports"]] == [OURS, THEIRS]
    assert planned["count"] == 2
    assert planned["reports"][1]["forgotten"] == {"dead": 1, "done": 1}
    refused = ops("POST", "/v1/handlers/reset", body | {"expected_count": 1})
    assert (refused.status, refused.code) == (409, "conflict")
    assert count_done(registry) == 2

    done = ops("POST", "/v1/handlers/reset", body | {"expected_count": 2})
    assert (done.status, done.json["count"]) == (200, 2)
    assert count_done(registry) == 1
    assert {(one.tenant_id, one.epoch) for one in registry.logs()} == {
        (OURS, epoch),
        (THEIRS, epoch),
    }
    entry = newest(ops)
    assert (entry["action"], entry["tenant_id"], entry["reason"]) == (
        "handler_reset",
        "*",
        "restored to Tuesday",
    )


def test_a_reset_of_one_tenant(service: RunningService, registry: Registry) -> None:
    """N4, G9: other tenants of the handler keep their entries and their epoch."""
    ops = make_caller(service)
    epoch = service.service.log.store.raise_epoch().epoch
    body = {"handler": "mailer", "tenant_id": THEIRS, "reason": "restored", "expected_count": 0}

    assert ops("POST", "/v1/handlers/reset", body).json["count"] == 0
    assert {(one.tenant_id, one.epoch) for one in registry.logs()} == {
        (OURS, epoch - 1),
        (THEIRS, epoch),
    }
    assert newest(ops)["tenant_id"] == THEIRS
    reasonless = body | {"reason": " "}
    assert ops("POST", "/v1/handlers/reset", reasonless).code == "invalid_argument"


@pytest.mark.parametrize("rights", [{"tenant_id": OURS}, {"rights": ["read"]}])
def test_only_operators_of_all_tenants_may(
    service: RunningService, registry: Registry, rights: dict[str, Any]
) -> None:
    """K2, N2: a handler is shared by all tenants."""
    who = make_caller(service, **rights)
    body = {"handler": "mailer", "finished_before": FAR, "expected_count": 2, "reason": "x"}

    assert who("POST", "/v1/handlers/prune", body).status == 403
    assert who("GET", "/v1/handlers/prunable", handler="mailer", finished_before=FAR).status == 403
    assert who("POST", "/v1/handlers/reset", {"handler": "mailer", "dry_run": True}).status == 403
    assert count_done(registry) == 2


def test_the_cursors_of_workers(
    service: RunningService, registry: Registry, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1, G9: position and lag of each worker; those of topics and of others are confined."""
    log = service.service.view(OURS)
    identity = log.identity()
    event_id = log.event(f"{OURS}-one").event_id
    cursor = LogCursor(identity.log_id, identity.epoch, 1, event_id)
    stored = msgspec.json.encode(cursor).decode()
    for source in (
        f"log:{identity.log_id}:{OURS}",
        f"log:{identity.log_id}:*",
        f"log:{identity.log_id}:{THEIRS}",
        f"log:another:{OURS}",
    ):
        registry.move_cursor(MAILER, source, stored.replace(identity.log_id, source.split(":")[1]))
    for tenant in (THEIRS, f"a:{OURS}"):
        registry.move_cursor(MAILER, f"kafka:cluster:orders:{tenant}", '{"0": 7}')

    found = make_caller(service, tenant_id=OURS)("GET", "/v1/registry").json["cursors"]
    assert [(one["tenant_id"], one["position"], one["lag_events"]) for one in found] == [
        ("*", 1, 3),
        (OURS, 1, 3),
    ]
    assert all(0 < one["lag_seconds"] < 3600 for one in found)
    theirs = make_caller(service)("GET", "/v1/registry").json["cursors"]
    topics = [(one["tenant_id"], one["lag_events"]) for one in theirs if one["position"] is None]
    assert topics == [(f"a:{OURS}", None), (THEIRS, None)]
    assert len(registry.cursors()) == 6


@pytest.mark.parametrize("remote", [True, False], ids=["service", "database"])
def test_the_commands(
    service: RunningService,
    registry: Registry,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    remote: bool,
) -> None:
    """N4: the commands need a confirmation, and do the same through a service."""
    monkeypatch.setenv("SERIATIM_TOKEN", service.token(subject="anna"))
    monkeypatch.setenv("SERIATIM_URL", f"http://127.0.0.1:{service.port}" if remote else url)

    def run(*args: str) -> tuple[int, list[Any]]:
        result = CliRunner().invoke(app, ["registry", *args, "--json"])
        return result.exit_code, [json.loads(line) for line in result.stdout.splitlines()]

    prune = ("prune", "mailer", "--days", "0", "--reason", "disk space")
    assert run(*prune)[0] == 2
    assert count_done(registry) == 2
    assert run(*prune, "--yes") == (0, [{"forgotten": 2}])
    epoch = service.service.log.store.raise_epoch().epoch
    reset = ("reset", "mailer", "--reason", "restored", "--position", "0")
    code, planned = run(*reset, "--dry-run")
    assert (code, [one["forgotten"] for one in planned]) == (0, [{"dead": 1}, {"dead": 1}])
    assert run(*reset)[0] == 2
    assert {one.epoch for one in registry.logs()} == {epoch - 1}
    assert run(*reset, "--yes") == (0, planned)
    assert {one.epoch for one in registry.logs()} == {epoch}
    entries = make_caller(service)("GET", "/v1/operations").json["operations"]
    assert [one["action"] for one in entries] == ["handler_reset", "handler_pruned"]
    assert {one["interface"] for one in entries} == {"http" if remote else "cli"}
