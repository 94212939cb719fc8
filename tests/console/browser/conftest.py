"""Fixtures: a browser, and services with hostile contents on each backend."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from playwright.sync_api import Browser

import seriatim
from seriatim.factory import access_url, open_access
from tests.console.browser.console_visit import Visit
from tests.console.browser.hostile_events import (
    DIRECTION,
    IMAGE,
    QUOTES,
    SCRIPT,
    make_hostile_events,
)
from tests.console.trace_samples import DEAL_DESK, observe_entity, start_trace
from tests.fixtures.chromium import run_browser
from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.service import RunningService
from tests.service.http_calls import make_event
from tests.service.service_process import ServiceProcess, run_service_process
from tests.service.tenant_data import fill as fill_tenants

PRECEDENT = "eeeeeeee-eeee-eeee-eeee-eeeeeeeeeeee"  # of the deal desk
OPEN_VISIT = Callable[..., Visit]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser that the tests of a file share; its event loop must end before other tests."""
    with run_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a log in a file."""
    folder: Path = tmp_path_factory.mktemp("browser")
    return f"sqlite:///{folder / 'log.db'}"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def service(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    """A service process on each backend, with ordinary events of two tenants and hostile ones."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            url = request.getfixturevalue("sqlite_url")
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            name = f"browser_{next(_numbers)}"
            url = server.create_database(name, request.getfixturevalue("postgres_template"))
            stack.callback(server.drop_database, name)
        prepare(url)
        process = stack.enter_context(run_service_process(url))
        fill(process)
        yield process


def prepare(url: str) -> None:
    """Give the tenants projections, dead letters, cursors and traces."""
    with seriatim.open(url) as log:
        views = SimpleNamespace(view=log.for_tenant)
        fill_tenants(cast("RunningService", SimpleNamespace(service=views)), url)
    with closing(open_access(access_url(url))) as access, closing(access.open_jobs()) as jobs:
        job = jobs.add("verify", "seats", "acme", actor_id=SCRIPT, reason=IMAGE)
        result = {"equal": False, "difference": {"key": {QUOTES: DIRECTION}}}
        jobs.finish(job.job_id, "succeeded", result=result, error="")
    with seriatim.open(url, tenant_id="acme") as log:
        for envelope in DEAL_DESK:
            log.traces.append_event(envelope)
        start_trace(log, PRECEDENT)
        start_trace(log, f"trace {SCRIPT}", workflow=IMAGE, title=DIRECTION)
        observe_entity(log, f"trace {SCRIPT}", 1, QUOTES)


def fill(service: ServiceProcess) -> None:
    """Append events of the tenants acme and glob."""
    caller = service.caller()
    for tenant in ("acme", "glob"):
        caller.tenant = tenant
        ordinary = [
            make_event(
                "order.placed",
                {"number": number, "of": tenant},
                stream_type="order",
                stream_id=f"{tenant}-{number % 5}",
                correlation_id=f"{tenant}-{number % 3}",
            )
            for number in range(30)
        ]
        assert caller.append(*ordinary).status == 201
    caller.tenant = "acme"
    for event in make_hostile_events():
        response = caller.append(event)
        assert response.status == 201, response.body


@pytest.fixture
def visit(browser: Browser, service: ServiceProcess) -> Iterator[OPEN_VISIT]:
    """Return a function that opens a visit; afterwards nothing forbidden may have happened."""
    opened: list[tuple[Visit, bool]] = []

    def open_visit(*, signed_in: bool = True, errors: bool = False, **options: Any) -> Visit:
        token = options.pop("token", {})
        visitor = Visit(browser, service.at, **options)
        opened.append((visitor, errors))
        if signed_in:
            visitor.sign_in(service.caller(**token).token or "")
        return visitor

    yield open_visit
    for visitor, errors in opened:
        problems = [] if errors else visitor.problems
        visitor.close()
        assert problems == []
