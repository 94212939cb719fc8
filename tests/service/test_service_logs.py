"""Logs of a service: JSON lines if requested, and a line with fields per request."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

from seriatim.factory import access_url, open_access
from tests.faults.support import wait_until
from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, make_caller, make_event
from tests.service.service_process import ServiceProcess, run_service_process
from tests.service.test_service_faults import raw

# Warns, and fails in a thread and in a request: none of it may be logged as plain text.
NOISY = """
import asyncio, logging, sys, threading, warnings

def fail() -> None:
    raise RuntimeError("in a thread")

async def broken(*_: object) -> None:
    warnings.warn("a warning of Python")
    logging.getLogger("uvicorn.error").error("a line of uvicorn")
    logging.getLogger("some.library").warning("a line of a library")
    threading.Thread(target=fail).start()
    asyncio.get_running_loop().call_exception_handler({"message": "a line of asyncio"})
    raise RuntimeError("in a request")

from seriatim.api import routes
import msgspec
routes.ROUTES = tuple(
    msgspec.structs.replace(one, handler=broken) if one.path == "/v1/token" else one
    for one in routes.ROUTES
)
from seriatim.api import app
app.App.__init__.__kwdefaults__["routes"] = routes.ROUTES
from seriatim.cli import main
main()
"""


def parsed(service: ServiceProcess) -> list[dict[str, Any]]:
    """Return every log line as JSON."""
    return [json.loads(line) for text in service.text for line in text.splitlines()]


def test_json_logs_contain_only_json(tmp_path: Path) -> None:
    """M2: banner, requests, warnings, other libraries' lines and errors are each a JSON object."""
    url = f"sqlite:///{tmp_path}/log.db"
    with run_service_process(
        url, "--log-format", "json", "--log-requests", script=NOISY
    ) as service:
        anybody = Caller(service.port)
        assert anybody("GET", "/v1/token").status == 503
        assert raw(service.port, b"no HTTP\r\n\r\n").startswith(b"HTTP/1.1 400")
        expected = ("a warning of Python", "a line of uvicorn", "a line of a library", "uncaught")
        wait_until(
            lambda: all(any(one in line for line in service.text) for one in expected),
            "all were written",
        )
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(40) == 0
        lines = parsed(service)

    messages = " ".join(line["message"] for line in lines)
    for said in (*expected, "a line of asyncio", "AUTHENTICATION IS OFF", "serving sqlite"):
        assert said in messages
    failed = next(line for line in lines if "unexpected" in line["message"])
    assert failed["exception"].endswith("in a request")


def test_request_lines_have_fields(tmp_path: Path) -> None:
    """M2: a request line has method, route, status, duration, tenant, caller and request id."""
    url = f"sqlite:///{tmp_path}/log.db"
    args = ("--log-format", "json", "--log-requests", "--processes", "2")
    with run_service_process(url, *args) as service:
        caller = service.caller(tenant_id="acme", subject="shop")
        assert caller.append(make_event()).status == 201
        assert caller("GET", "/v1/nowhere", headers={"x-request-id": "r-7"}).status == 404
        assert caller("GET", "/v1/openapi.json").status == 200
        assert caller("DELETE", "/v1/streams").status == 405
        assert Caller(service.port)("GET", "/health").status == 200

        def found(route: str) -> list[dict[str, Any]]:
            return [one for one in parsed(service) if one.get("route") == route]

        routes = ("/v1/events", "other", "/v1/openapi.json", "/v1/streams", "/health")
        wait_until(lambda: all(map(found, routes)), "all were logged")
        appended, lost, described, refused, alive = (found(route)[0] for route in routes)

    assert appended.pop("duration_ms") > 0
    assert appended.pop("request_id")
    assert {name: appended[name] for name in ("method", "status", "tenant", "caller")} == {
        "method": "POST",
        "status": 201,
        "tenant": "acme",
        "caller": "shop",
    }
    assert (lost["status"], lost["request_id"]) == (404, "r-7")
    for one, status in ((lost, 404), (described, 200), (refused, 405)):
        assert (one["status"], one["tenant"], one["caller"]) == (status, "acme", "shop")
    assert (alive["status"], "caller" in alive, "tenant" in alive) == (200, False, False)


# -- tokens


def test_the_last_use_of_a_token_is_stored(service: RunningService) -> None:
    """K2: the last use of a token is stored within seconds, but not at each request."""
    caller = make_caller(service, tenant_id="used")
    access = service.service.access
    token_id = caller.token.split("_")[1] if caller.token else ""
    assert access.token(token_id).last_used_at is None
    assert caller.append(make_event()).status == 201
    wait_until(lambda: access.token(token_id).last_used_at is not None, "kept", within_s=20)
    first = access.token(token_id)
    for _ in range(5):
        assert caller.append(make_event()).status == 201
    service.run(service.service._authenticator.write_uses())

    assert access.token(token_id) == first
    assert next(token for token in access.tokens() if token.token_id == token_id) == first
    assert first.last_used_at is not None
    assert first.last_used_at >= first.created_at


def test_an_older_access_store_is_upgraded(shared_url: str) -> None:
    """K2: an access store without the table of last uses gets it when it is opened."""
    url = access_url(shared_url)
    with closing(open_access(url)) as access:
        text, made = access.create(subject="s", tenant_id="t", rights=["read"])
        with access._engine.transaction() as session:
            session.run(f"drop table {access._engine.schema_prefix}seriatim_token_uses")
    with closing(open_access(url)) as access:
        assert access.token(made.token_id).last_used_at is None
        access.mark_used({made.token_id: 1.0})
        assert access.token(made.token_id).last_used_at is not None
        assert access.authenticate(text)[0].token_id == made.token_id
