"""Numbers beyond the range of the databases are refused everywhere."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from seriatim.api.routes import ROUTES, Route
from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, make_event
from tests.service.tenant_data import OURS, REQUESTS

LARGE = (2**63, -(2**63) - 1, 2**64, 10**400)
# Positions that do not exist yet: only then is the wait time checked.
WAITING: dict[str, dict[str, Any]] = {
    route: {"after": 10**6, "wait_s": 0.01} for route in ("GET /v1/log", "GET /v1/events")
}
SECONDS = ("1e308", "-1", "nan", "inf")


@pytest.fixture(scope="module")
def service(filled: RunningService) -> RunningService:
    """A service with data of two tenants."""
    return filled


@pytest.fixture(scope="module")
def caller(service: RunningService) -> Caller:
    """A caller with every right."""
    return Caller(service.port, service.token(), OURS)


def fields(kind: type[Any], wanted: type[Any]) -> list[str]:
    """Return the fields of a schema that have a numeric type."""
    info: Any = msgspec.inspect.type_info(kind)
    return [
        field.name
        for field in info.fields
        if any(isinstance(one, wanted) for one in getattr(field.type, "types", (field.type,)))
    ]


def cases(kind: type[Any]) -> list[Any]:
    """Return every route with each of its numbers."""
    return [
        pytest.param(route, name, id=f"{route.endpoint} {name}")
        for route in ROUTES
        for name in fields(route.params or route.body or Route, kind)
        if route.params is not None or route.body is not None
    ]


def ask(service: RunningService, caller: Caller, route: Route, name: str, value: Any) -> int:
    """Send a request to a route, with one number changed."""
    wanted = REQUESTS[route.endpoint](service, OURS)
    if route.params is not None:
        params = wanted.params | WAITING.get(route.endpoint, {}) | {name: value}
        return caller(route.method, route.path, **params).status
    return caller(route.method, route.path, {**wanted.body, name: value}).status


@pytest.mark.parametrize("value", LARGE, ids=["2^63", "below", "2^64", "10^400"])
@pytest.mark.parametrize(("route", "name"), cases(msgspec.inspect.IntType))
def test_an_integer_beyond_64_bits_is_refused(
    service: RunningService, caller: Caller, route: Route, name: str, value: int
) -> None:
    """L2: every integer parameter and body field is checked before it reaches a database."""
    status = ask(service, caller, route, name, value)

    # The epoch of another log is reported as such.
    assert status == 400 or (status == 409 and name == "epoch"), (name, value)


@pytest.mark.parametrize("value", SECONDS)
@pytest.mark.parametrize(("route", "name"), cases(msgspec.inspect.FloatType))
def test_a_time_is_bounded(
    service: RunningService, caller: Caller, route: Route, name: str, value: str
) -> None:
    """K3: durations that are negative, too long or not finite are refused."""
    given = float(value) if route.body is not None else value
    status = ask(service, caller, route, name, given)

    assert status == 400, (name, value)


CONDITION: dict[str, Any] = {"events": [make_event()], "conditions": [{}]}
LEASE: Any = {"tenant_id": OURS, "name": f"{OURS}-lease", "token": 0}


@pytest.mark.parametrize("value", LARGE, ids=["2^63", "below", "2^64", "10^400"])
@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/v1/leases/renew", {"lease": LEASE, "seconds": 60}, ("lease", "token")),
        ("/v1/leases/release", {"lease": LEASE}, ("lease", "token")),
        ("/v1/cursors", {"lease": LEASE}, ("lease", "token")),
        ("/v1/events", {"events": [make_event(stream_seq=1)]}, ("events", 0, "stream_seq")),
        ("/v1/events", {"events": [make_event(event_version=1)]}, ("events", 0, "event_version")),
        ("/v1/events", CONDITION, ("conditions", 0, "seq")),
        ("/v1/events", CONDITION, ("conditions", 0, "version")),
        ("/v1/query", {"query": {}}, ("query", "min_position")),
    ],
    ids=lambda one: None if isinstance(one, dict) else str(one),
)
def test_a_nested_integer_beyond_64_bits_is_refused(
    service: RunningService,
    caller: Caller,
    path: str,
    body: dict[str, Any],
    place: tuple[Any, ...],
    value: int,
) -> None:
    """L2: an integer within the parts of a body is checked before it reaches a database."""
    wanted = copy.deepcopy(body)
    if path == "/v1/cursors":
        wanted |= REQUESTS["POST /v1/cursors"](service, OURS).body
    inner: Any = wanted
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    if place[0] == "conditions":
        inner["stream" if place[-1] == "seq" else "query"] = (
            ["order", "x"] if place[-1] == "seq" else {}
        )
    if place[-1] == "stream_seq":
        inner |= {"stream_type": "order", "stream_id": "x"}
    response = caller("POST", path, wanted)

    assert response.status in (400, 409), response
    assert response.code != "backend_failure"
