"""Generated valid and invalid requests get only the responses that OpenAPI describes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from seriatim.api.openapi import make_openapi
from seriatim.api.routes import ROUTES, Route
from seriatim.core.errors import ALL_ERRORS
from seriatim.wire.problems import STATUS_BY_CODE
from tests.fixtures.service import RunningService, run_service
from tests.service.http_calls import Caller, make_caller, make_event, open_tail
from tests.service.tenant_data import REQUESTS, RequestParts, fill

CASES = 24  # of each route, mode and backend
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
PLAIN = [route for route in ROUTES if not route.stream]


@pytest.fixture(scope="module")
def service(shared_url: str) -> Iterator[RunningService]:
    """A service with a short maximum wait."""
    with run_service(shared_url, wait_max_s=0.05) as service:
        fill(service, shared_url)
        yield service


@pytest.fixture(scope="module")
def described(service: RunningService) -> Any:
    """A loaded OpenAPI document of the service, as the source of generated requests."""
    response = make_caller(service)("GET", "/v1/openapi.json")
    assert response.headers["content-type"] == "application/json"
    return schemathesis.openapi.from_dict(response.json)


@pytest.fixture(scope="module")
def session(service: RunningService) -> Iterator[requests.Session]:
    """An HTTP session whose token has every right."""
    with requests.Session() as one:
        one.trust_env = False
        one.headers["authorization"] = f"Bearer {service.token()}"
        yield one


def generated(described: Any, route: Route, mode: GenerationMode) -> Any:
    """Return a strategy for valid or invalid requests to a route."""
    return described[route.path][route.method].as_strategy(generation_mode=mode)


def check_generated_requests(
    service: RunningService, session: requests.Session, strategy: Any, count: int
) -> None:
    """Send generated requests and check each response against the document."""

    @settings(
        max_examples=count,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def ask(case: Any) -> None:
        response = case.call(base_url=service.url, session=session, timeout=30)
        case.validate_response(response, checks=CHECKS)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generator's own
        ask()


def test_the_document_is_openapi(service: RunningService) -> None:
    """L1: the document names every route, and each of its schemas is JSON Schema 2020-12."""
    found = make_openapi()

    assert found["openapi"] == "3.1.0"
    assert {f"{route.method} {route.path}" for route in ROUTES} == {
        f"{method.upper()} {path}"
        for path, item in found["paths"].items()
        for method in item
        if path not in ("/health", "/ready")
    }
    ids = [one["operationId"] for item in found["paths"].values() for one in item.values()]
    assert len(ids) == len(set(ids))
    for schema in found["components"]["schemas"].values():
        jsonschema_rs.Draft202012Validator({**schema, "components": found["components"]})
    for refused in _references(found):
        assert refused.removeprefix("#/components/schemas/") in found["components"]["schemas"]


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def test_a_tail_follows_the_document(service: RunningService) -> None:
    """L1: a tail has both content types, and answers malformed requests with a problem."""
    caller = make_caller(service)
    for lines, kind in ((True, "application/x-ndjson"), (False, "text/event-stream")):
        with open_tail(caller, lines=lines) as tail:
            assert (tail.status, tail.headers["content-type"]) == (200, kind)
            assert tail.response.readline()
    for wrong in ({"after": -1}, {"query": "{"}, {"query": "[]"}, {"after": 10**9}, {"x": 1}):
        with open_tail(caller, **wrong) as tail:
            assert tail.status == 400
            assert tail.headers["content-type"] == "application/problem+json"
    bodies: list[Any] = [{"after": -1}, {"query": "{}"}, {"query": {"filters": 1}}, {"x": 1}, []]
    for body in (*bodies, {"after": 10**9}, {"types": ["a"], "query": {}}):
        with open_tail(caller, body) as tail:
            assert tail.status == 400, body
            assert tail.headers["content-type"] == "application/problem+json"
    with open_tail(caller, {}) as tail:
        assert (tail.status, tail.headers["content-type"]) == (200, "application/x-ndjson")
    with open_tail(caller, {}, headers={"content-type": "text/plain"}) as tail:
        assert tail.status == 400
    for last_id in ("x", "-1", "1.5", "９", "1" * 5000):
        with open_tail(
            caller, headers={"last-event-id": last_id.encode().decode("latin-1")}
        ) as tail:
            assert tail.status == 400


# -- text that databases refuse


def _spoiled(value: Any, bad: str) -> Iterator[Any]:
    """Yield a copy of a value for each text in it, with that text made invalid."""
    if isinstance(value, str):
        yield value + bad + value
    elif isinstance(value, dict):
        for name, inner in value.items():
            for one in _spoiled(inner, bad):
                yield {**value, name: one}
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            for one in _spoiled(inner, bad):
                yield [*value[:index], one, *value[index + 1 :]]


@pytest.mark.parametrize("bad", ["\0", "\ud800", "\x1f"], ids=["nul", "surrogate", "control"])
@pytest.mark.parametrize("route", PLAIN, ids=lambda route: route.endpoint)
def test_text_that_databases_refuse_is_no_server_error(
    service: RunningService, route: Route, bad: str
) -> None:
    """L1: NUL, a surrogate or a control character in any text is never a server error."""
    caller = Caller(service.port, service.token(), "acme")
    wanted = REQUESTS[route.endpoint](service, "acme")
    asked = [RequestParts(wanted.params, body) for body in _spoiled(wanted.body, bad)]
    if bad != "\ud800":  # a query string cannot say it
        asked += [RequestParts(params, wanted.body) for params in _spoiled(wanted.params, bad)]
    for one in asked:
        response = caller(route.method, route.path, one.body, **one.params)
        assert response.status < 500, (one, response.body)


# -- a request for every error code


def appended(**more: object) -> dict[str, Any]:
    """Return an append request."""
    return {"method": "POST", "path": "/v1/events", "body": {"events": [make_event()], **more}}


def _asked(path: str, **params: object) -> dict[str, Any]:
    return {"method": "GET", "path": path, **params}


STREAM = {"stream": ["s", "1"], "seq": 99}
FACTS = {"query": {"filters": [{"types": ["acme.one"]}]}, "expected_version": None}
HELD = {"tenant_id": "acme", "name": "acme-lease", "token": 99}
KIND = {"name": "acme", "first_seq": 0}
PROVOKED: dict[str, dict[str, Any]] = {
    "empty_append": appended(events=[]),
    "invalid_argument": _asked("/v1/events", limit=0),
    "invalid_event": appended(events=[make_event("")]),
    "schema_violation": appended(
        events=[
            make_event(
                "Nonsense",
                stream_type="trace",
                stream_id="t",
                stream_seq=0,
                event_id="t-1",
                occurred_at="2025-01-01T00:00:00Z",
                producer_id="p",
                source_system="s",
                source_subsystem="s",
                actor_type="system",
                actor_id="tester",
                idempotency_key="t-1",
            )
        ],
        profile="traces",
    ),
    "invalid_query": {"method": "POST", "path": "/v1/query", "body": {"query": {"filters": 1}}},
    "pii_policy_violation": appended(events=[make_event(payload={"password": "x"})]),
    "idempotency_conflict": appended(events=[make_event("other", event_id="acme-one")]),
    "event_sequence_invalid": appended(conditions=[STREAM]),
    "conditional_append_conflict": {
        "method": "POST",
        "path": "/v1/append-if",
        "body": {"events": [make_event()], **FACTS},
    },
    "conflict": {
        "method": "POST",
        "path": "/v1/declarations",
        "body": {"kinds": [KIND, {**KIND, "first_seq": 1}]},
    },
    "not_found": _asked("/v1/event", event_id="none"),
    "projection_out_of_date": _asked("/v1/projections/wait", name="seats", position=6, timeout_s=0),
    "projection_timeout": _asked("/v1/projections/wait", name="seats", position=6, timeout_s=0.04),
    "idempotency_key_reuse": {**appended(), "headers": {"idempotency-key": "used"}},
    "unauthorized": {**_asked("/v1/log"), "headers": {"authorization": "Bearer x"}},
    "forbidden": {**_asked("/v1/log"), "headers": {"seriatim-tenant": "seriatim.infrastructure"}},
    "limit_exceeded": appended(events=[make_event(tags=["t"] * 65)]),
    "lease_lost": {
        "method": "POST",
        "path": "/v1/cursors",
        "body": {
            "purpose": "subscription",
            "name": "acme-cursor",
            "position": 6,
            "log_id": "",
            "epoch": 1,
            "lease": HELD,
        },
    },
    "log_identity_changed": _asked("/v1/tail", log_id="another"),
}
ELSEWHERE = {
    "timeout": "test_service_faults.py: an incomplete body, a locked database",
    "backend_failure": "test_service_faults.py: a closed log",
    "projection_failed": "raised only where a projection runs",
}


def test_every_error_code_is_provoked() -> None:
    """L1: every error code has a request that provokes it, or a test elsewhere."""
    assert (
        set(PROVOKED) | set(ELSEWHERE) == {kind.code for kind in ALL_ERRORS} == set(STATUS_BY_CODE)
    )


@pytest.mark.parametrize("code", PROVOKED)
def test_a_problem_has_its_code_and_status(service: RunningService, code: str) -> None:
    """L1: each error code has one status, and its problem has every field of RFC 9457."""
    token = service.token(tenant_id="acme" if code != "conflict" else "*")
    caller = Caller(service.port, token)
    caller("POST", "/v1/events", {"events": [make_event("x")]}, headers={"idempotency-key": "used"})
    wanted = dict(PROVOKED[code])
    if code == "lease_lost":
        identity = service.service.log.identity()
        wanted["body"] = {**wanted["body"], "log_id": identity.log_id, "epoch": identity.epoch}
    response = caller(wanted.pop("method"), wanted.pop("path"), wanted.pop("body", None), **wanted)

    assert (response.code, response.status) == (code, STATUS_BY_CODE[code]), response.json
    problem = response.json
    assert problem["type"] == f"urn:seriatim:problem:{code}"
    assert problem["status"] == response.status
    assert problem["detail"]
    assert problem["request_id"] == response.headers["x-request-id"]
    assert set(problem) == set(make_openapi()["components"]["schemas"]["Problem"]["properties"])


LISTS = [route for route in ROUTES if "limit" in getattr(route.params, "__struct_fields__", ())]


@pytest.mark.parametrize("route", LISTS, ids=lambda route: route.path)
def test_the_documented_maximum_of_a_page_is_enforced(
    service: RunningService, route: Route
) -> None:
    """L1: a list accepts the documented maximum of `limit`, and refuses more."""
    operation = make_openapi()["paths"][route.path]["get"]
    [schema] = [one["schema"] for one in operation["parameters"] if one["name"] == "limit"]
    parts = REQUESTS[f"GET {route.path}"](service, "acme")
    caller, maximum = make_caller(service), schema["maximum"]
    accepted, refused = (
        caller("GET", route.path, **{**parts.params, "limit": limit})
        for limit in (maximum, maximum + 1)
    )

    assert accepted.status == 200 or accepted.json["details"].get("argument") != "limit"
    assert refused.code in ("invalid_argument", "limit_exceeded"), refused.json
    assert refused.json["detail"].startswith(("limit ", "page ")), refused.json


# -- HTTP semantics


def test_a_request_id_is_returned(service: RunningService) -> None:
    """L1: a valid request id is returned, an invalid one is replaced, also in problems."""
    caller = make_caller(service)
    for own in ("abc-1", "x" * 128):
        response = caller("GET", "/v1/log", headers={"x-request-id": own})
        assert response.headers["x-request-id"] == own
    made = {
        caller("GET", "/nowhere", headers={"x-request-id": wrong}).json["request_id"]
        for wrong in ("", "x" * 129, "é", "a\tb")
    }
    assert len(made) == 4
    assert all(len(one) == 24 for one in made)


def test_unknown_paths_and_methods(service: RunningService) -> None:
    """L1: an unknown path is 404, an unknown method of a known path 405."""
    caller = make_caller(service)

    assert caller("GET", "/v1/nothing").code == "not_found"
    assert caller("GET", "/v1/events/").code == "not_found"
    assert caller("GET", "/v1//events").code == "not_found"
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        response = caller(method, "/v1/events")
        assert (response.status, response.code) == (405, "invalid_argument")
    head = caller("HEAD", "/v1/log")
    assert (head.status, head.body) == (200, b"")


def test_cors_allows_only_configured_origins(
    serving: Callable[..., RunningService],
) -> None:
    """K4: other origins get no CORS headers; an allowed one gets a preflight without a token."""
    service = serving(cors_origins=("https://app.example",))
    anybody, caller = Caller(service.port), make_caller(service)
    good, evil = {"origin": "https://app.example"}, {"origin": "https://evil.example"}
    preflight = anybody("OPTIONS", "/v1/events", headers=good)

    assert (preflight.status, preflight.body) == (204, b"")
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert anybody("OPTIONS", "/v1/events", headers=evil).status == 401
    assert anybody("GET", "/v1/log", headers=good).status == 401
    assert caller("GET", "/v1/log", headers=good).headers["vary"] == "origin"
    response = caller("GET", "/v1/log", headers=evil)
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/v1/events", "/v1/append-if", "/v1/appends"])
def test_surrogates_in_names_are_refused(service: RunningService, path: str) -> None:
    """L2: an unpaired surrogate in a name or value is refused like other invalid text."""
    caller = make_caller(service)
    for bad in ({"\ud800": 1}, {"events": [], "profile": "\ud800"}, {"events": [{"\ud800": 1}]}):
        body: Any = {**bad, "query": {}} if path == "/v1/append-if" else bad
        response = caller("POST", path, {"appends": [body]} if path == "/v1/appends" else body)
        assert response.status in (200, 400), response
        assert response.json


# -- generated requests: at the end, because they change the data


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", PLAIN, ids=lambda route: route.endpoint)
def test_generated_requests_follow_the_document(
    service: RunningService,
    session: requests.Session,
    described: Any,
    route: Route,
    mode: GenerationMode,
) -> None:
    """L1: statuses, content types and schemas match the document, and no server error occurs."""
    check_generated_requests(service, session, generated(described, route, mode), CASES)
