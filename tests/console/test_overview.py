"""The overview: what each kind of token sees, and that contents are text."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from seriatim.console.history import ConsumerSample, LogSample
from seriatim.core.event import NewEvent
from tests.console.console_service import ConsoleService, run_console
from tests.service.tenant_data import OURS, SECRET, THEIRS

HOSTILE = "<script>alert(1)</script>\u202ejavascript:"


def test_an_operator_sees_the_log_and_its_consumers(console_anywhere: ConsoleService) -> None:
    """N1: the page shows the log, its consumers with lag and state, problems and findings."""
    page = console_anywhere.sign_in().get("/", tenant=OURS)
    identity = console_anywhere.service.log.identity()

    assert page.status == 200
    for text in (identity.log_id, "seats", "projection", "acme-cursor", "mailer", "schema"):
        assert text in page.text
    assert re.search(r"[\d.,]+ [KMG]iB size of the log", page.text)
    assert "acme-parked" in page.text
    assert "parked after 1 attempt" in page.text
    assert "dead letters: 1" in page.text
    assert "projection failures: 1" in page.text


def test_an_operator_of_a_tenant_sees_no_other(console_anywhere: ConsoleService) -> None:
    """K2: an operator of a tenant sees no other tenant, database check or append latency."""
    page = console_anywhere.sign_in(tenant_id=OURS).get("/")

    assert page.status == 200
    assert SECRET not in page.html
    assert "acme-cursor" in page.text
    assert f"{THEIRS}-cursor" not in page.text
    assert "Checks of the database" not in page.text
    assert "median append" not in page.text
    assert "size of the log" not in page.text
    assert console_anywhere.sign_in(tenant_id=OURS).get("/", tenant=THEIRS).status == 403


def test_a_reader_sees_no_parts_for_operators(console: ConsoleService) -> None:
    """N2: a token without `operate` sees projections, but neither subscriptions nor handlers."""
    page = console.sign_in(tenant_id=OURS, rights=["read"]).get("/")

    assert page.status == 200
    assert "seats" in page.text
    assert "acme-cursor" not in page.text
    assert "mailer" not in page.text


def test_a_reader_of_some_types_sees_the_overview(console: ConsoleService) -> None:
    """K4: a token limited to event types sees its events, and no projections."""
    page = console.sign_in(tenant_id=OURS, rights=["read"], types=["acme.one"]).get("/")

    assert page.status == 200
    assert "acme.one" in page.text
    assert "acme.more" not in page.text
    assert "seats" not in page.text


def test_a_log_in_memory_has_an_overview() -> None:
    """N1: without read models and registry, the page lists no consumers."""
    with run_console("memory:") as service:
        page = service.sign_in().get("/")

    assert page.status == 200
    assert "No consumers" in page.text
    assert "this log is in memory" in page.text


def test_hostile_contents_are_text(console: ConsoleService) -> None:
    """N3: markup in events and names is displayed, not interpreted."""
    console.service.view(OURS).append([NewEvent("noted", {"note": HOSTILE + "x" * (2**20 - 100)})])
    page = console.sign_in(subject=HOSTILE[:8], tenant_id=OURS).get("/")

    assert page.status == 200
    assert "<script>alert" not in page.html
    assert "&lt;script&gt;alert(1)" in page.html
    assert len(page.html) < 100_000
    assert "script-src 'self'" in page.headers["content-security-policy"]


def test_stalled_consumers_are_marked(console: ConsoleService) -> None:
    """N1: a consumer without progress for a minute while events are pending is marked."""
    history = console._config.loaded_app._mount._history
    for number in range(20):
        at = 1000.0 + 5 * number
        history.add((OURS, "projection", "seats"), ConsumerSample(at, 2, 4))
        history.log.append(LogSample(at, 10 * number, 5, 0.001, 0.004))
    page = console.sign_in().get("/", tenant=OURS)

    assert "stalled consumers: 1" in page.text
    assert "steady" in page.text
    assert page.html.count('<svg class="chart"') == 2
    assert "1 ms median append" in page.text


def test_the_history_starts_and_stops_with_the_service(tmp_path: Path) -> None:
    """N1: the sampler is a task of the service and ends with it."""
    with run_console(f"sqlite:///{tmp_path / 'log.db'}") as service:
        mount = service._config.loaded_app._mount
        task = mount._sampler._task
        assert not task.done()
        listeners = service.service.log.telemetry._listeners
    assert task.done()
    assert msgspec.structs.asdict(mount._history.log[0])["head"] == 0
    assert len(service.service.log.telemetry._listeners) < len(listeners)
