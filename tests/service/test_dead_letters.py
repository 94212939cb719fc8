"""Dead letters over HTTP: an operator of one tenant cannot see or change another's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from seriatim.core.event import NewEvent
from seriatim.core.handler import Delivery, handler
from seriatim.delivery.entries import DeclaredHandler
from seriatim.factory import open_registry, registry_url
from tests.fixtures.service import RunningService, run_service
from tests.service.conftest import sqlite_in
from tests.service.http_calls import Caller, make_caller
from tests.service.tenant_data import OURS, SECRET, THEIRS, create_dead_letter

MAILER = handler("mailer", effect="keyed", on_poison="stop")(lambda _event, _context: None)
ACTS = {"retry": {}, "skip": {"reason": "seen"}}
MANY = {"all": True, "expected_count": 0, "reason": "seen"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """A service with two tenants' events."""
    with run_service(sqlite_in(tmp_path)) as service:
        for tenant in (OURS, THEIRS):
            for name in ("one", "dead"):
                event = NewEvent("x", {}, event_id=f"{tenant}-{name}")
                service.service.view(tenant).append([event])
        yield service


def stop(service: RunningService, tmp_path: Path, *tenants: str) -> None:
    """Let a handler fail on an event of each tenant; the failure of the last one stops it."""
    with closing(open_registry(registry_url(sqlite_in(tmp_path)))) as registry:
        for tenant in tenants:
            registry.declare(MAILER)
            registry.set_status(MAILER.name, "ready")
            create_dead_letter(service, registry, MAILER, tenant)


def known(tmp_path: Path) -> DeclaredHandler:
    """Return the stored declaration of the handler."""
    with closing(open_registry(registry_url(sqlite_in(tmp_path)))) as registry:
        [one] = registry.handlers()
        return one


def shown(caller: Caller) -> tuple[str, str]:
    """Return status and reason of the handler as a caller reads them."""
    response = caller("GET", "/v1/registry")
    [one] = response.json["handlers"]
    return one["status"], one["reason"]


@pytest.mark.parametrize("act", ACTS)
def test_a_stopped_handler_resumes_when_its_event_is_resolved(
    service: RunningService, tmp_path: Path, act: str
) -> None:
    """K2: a stopped handler is ready again only when the event that stopped it is resolved."""
    stop(service, tmp_path, OURS, THEIRS)
    ours, theirs = (make_caller(service, tenant_id=tenant) for tenant in (OURS, THEIRS))
    body = {"all": True, "expected_count": 1, "reason": "seen"}

    assert ours("POST", f"/v1/dead-letters/{act}", body).json == {"count": 1}
    assert known(tmp_path).status == "stopped"
    assert theirs("POST", f"/v1/dead-letters/{act}", body).json == {"count": 1}
    assert known(tmp_path).status == "ready"


@pytest.mark.parametrize("act", ACTS)
def test_an_operator_of_all_tenants_resumes_any_handler(
    service: RunningService, tmp_path: Path, act: str
) -> None:
    """G5: when an operator of all tenants resolves one event, the stopped handler is ready."""
    stop(service, tmp_path, OURS, THEIRS)
    whole = Caller(service.port, service.token(), OURS)

    whole("POST", f"/v1/dead-letters/{act}", {"event_id": f"{OURS}-dead", **ACTS[act]})
    assert known(tmp_path).status == "ready"


def test_a_stop_is_reported_only_to_its_tenant(service: RunningService, tmp_path: Path) -> None:
    """K2: to other tenants the handler appears paused, without a reason."""
    stop(service, tmp_path, OURS, THEIRS)
    ours, theirs = (make_caller(service, tenant_id=tenant) for tenant in (OURS, THEIRS))
    whole = make_caller(service)
    status, reason = shown(whole)

    assert shown(theirs) == ("stopped", "")
    assert shown(ours) == ("paused", "")
    assert status == "stopped"
    assert SECRET in reason
    with closing(open_registry(registry_url(sqlite_in(tmp_path)))) as registry:
        registry.set_status(MAILER.name, "paused", "for a while")
    assert shown(ours) == shown(theirs) == ("paused", "")


@pytest.mark.parametrize("path", ["/v1/registry", "/v1/dead-letters", "/v1/registry/entries"])
def test_no_response_reveals_the_address_of_a_registry(
    service: RunningService, tmp_path: Path, path: str
) -> None:
    """K2: a missing registry is reported without an address or a path."""
    response = make_caller(service, tenant_id=OURS)("GET", path)

    assert (response.status, response.code) == (404, "not_found")
    assert response.json["detail"] == "there is no registry next to this log"
    assert str(tmp_path).encode() not in response.body


@pytest.mark.parametrize("act", ACTS)
def test_an_action_on_an_absent_event_is_not_found(
    service: RunningService, tmp_path: Path, act: str
) -> None:
    """L3: an action on an absent or foreign event is 404; one on a filter counts 0."""
    stop(service, tmp_path, OURS, THEIRS)
    ours = make_caller(service, tenant_id=OURS)
    path = f"/v1/dead-letters/{act}"
    absent, foreign, done = (
        ours("POST", path, {"event_id": name, **ACTS[act]})
        for name in ("nobody", f"{THEIRS}-dead", f"{OURS}-one")
    )

    for response in (absent, foreign, done):
        assert (response.status, response.code) == (404, "not_found")
    none = ours("POST", path, {**MANY, "event_type": "nothing.*"})
    assert (none.status, none.json) == (200, {"count": 0})


def test_dead_letters_are_filtered_by_a_type_pattern(
    service: RunningService, tmp_path: Path
) -> None:
    """E7: type patterns mean the same as in a read; a malformed one is refused."""
    stop(service, tmp_path, OURS)
    ours = make_caller(service, tenant_id=OURS)
    found = {
        pattern: ours("GET", "/v1/dead-letters", event_type=pattern)
        for pattern in ("*", "x.*", "x*")
    }

    assert [len(found[pattern].json["entries"]) for pattern in ("*", "x.*")] == [1, 0]
    assert (found["x*"].status, found["x*"].code) == (400, "invalid_argument")
    retried = ours(
        "POST", "/v1/dead-letters/retry", {**MANY, "event_type": "*", "expected_count": 1}
    )
    assert retried.json == {"count": 1}


def test_any_unfinished_event_can_be_skipped(service: RunningService, tmp_path: Path) -> None:
    """G5: a claimed and a blocked event can be skipped over HTTP."""
    stop(service, tmp_path, OURS)
    with closing(open_registry(registry_url(sqlite_in(tmp_path)))) as registry:
        registry.set_status(MAILER.name, "ready")
        identity = service.service.view(OURS).identity()
        claimed, blocked = (
            Delivery(event_id=name, tenant_id=OURS, position=9, event={}, log=identity)
            for name in ("claimed", "blocked")
        )
        registry.claim_all(MAILER, [claimed])
        registry.defer(MAILER, [blocked])
    ours = make_caller(service, tenant_id=OURS)

    for name in ("claimed", "blocked"):
        skipped = ours("POST", "/v1/dead-letters/skip", {"event_id": name, "reason": "given up"})
        assert skipped.json == {"count": 1}


@pytest.mark.parametrize("act", ACTS)
def test_actions_on_many_events_need_their_count_and_a_reason(
    service: RunningService, tmp_path: Path, act: str
) -> None:
    """N4: an action on a filter needs the right count of events and a reason."""
    stop(service, tmp_path, OURS, THEIRS)
    ours = make_caller(service, tenant_id=OURS)
    path = f"/v1/dead-letters/{act}"
    uncounted = ours("POST", path, {"all": True, "reason": "seen"})
    unexplained = ours("POST", path, {"all": True, "expected_count": 1, "reason": " "})
    wrong = ours("POST", path, {"all": True, "expected_count": 2, "reason": "seen"})

    assert (uncounted.status, uncounted.json["details"]) == (400, {"argument": "expected_count"})
    assert (unexplained.status, unexplained.json["details"]) == (400, {"argument": "reason"})
    assert (wrong.status, wrong.code) == (409, "conflict")
    assert wrong.json["details"] == {"expected_count": 2, "actual_count": 1}
    counted = ours("GET", "/v1/registry/count", status="dead").json
    assert (counted["count"], counted["retryable"], len(counted["counts"])) == (1, 1, 1)
    body = {"all": True, "status": "dead", "expected_count": 1, "reason": "seen"}
    assert ours("POST", path, body).json == {"count": 1}


def test_registry_entries_are_filtered_by_status(service: RunningService, tmp_path: Path) -> None:
    """G5, K2: unfinished events are listed by status, with attempts, times and the last error."""
    stop(service, tmp_path, OURS, THEIRS)
    ours = make_caller(service, tenant_id=OURS)
    [dead] = ours("GET", "/v1/registry/entries", status="dead").json["entries"]
    [entry] = ours("GET", "/v1/registry/entries", event_id=f"{OURS}-dead").json["entries"]

    assert dead == entry
    assert (dead["event_id"], dead["attempts"], dead["error"]) == (f"{OURS}-dead", 1, f"no {OURS}")
    assert dead["first_at"] <= dead["updated_at"]
    assert ours("GET", "/v1/registry/entries", status="blocked").json == {"entries": []}
    processed = {
        name: [
            (found["handler"], found["status"])
            for found in ours("GET", "/v1/registry/event", event_id=f"{OURS}-{name}").json[
                "entries"
            ]
        ]
        for name in ("one", "dead", "more")
    }
    assert processed == {"one": [("mailer", "done")], "dead": [("mailer", "dead")], "more": []}
    for wrong in ({"status": "done"}, {"limit": 0}, {"limit": 1001}, {"after": -2}):
        refused = ours("GET", "/v1/registry/entries", **wrong)
        assert (refused.status, refused.code) == (400, "invalid_argument")
