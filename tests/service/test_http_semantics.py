"""Methods, headers, codings and parameters follow the HTTP specification."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest

from seriatim.api.routes import ROUTES
from seriatim.core.limits import DEFAULT_LIMITS
from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, make_caller, make_event
from tests.service.test_service_faults import raw

GETS = [route.path for route in ROUTES if route.method == "GET"]


@pytest.fixture(scope="module")
def caller(quick: RunningService) -> Caller:
    """A caller with every right, and some events."""
    made = make_caller(quick)
    for n in range(20):
        assert made.append(make_event("seen", {"n": n, "a": "x" * 200})).status == 201
    return made


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES} | {"/health", "/ready"}))
def test_a_wrong_method_is_refused_with_allow(caller: Caller, path: str) -> None:
    """L1: a method that a path does not have is 405, and Allow names those it has."""
    response = caller("DELETE", path)
    allowed = response.headers["allow"].split(", ")

    assert (response.status, response.code) == (405, "invalid_argument")
    assert response.json["status"] == 405
    known = {route.method for route in ROUTES if route.path == path} or {"GET"}
    assert set(allowed) == known | ({"HEAD"} if "GET" in known else set())


@pytest.mark.parametrize("method", ["BREW", "get", "X" * 40])
@pytest.mark.parametrize("path", ["/v1/query", "/v1/log?after=1", "/health", "/nowhere"])
def test_an_unknown_method_is_refused_with_allow(
    quick: RunningService, method: str, path: str
) -> None:
    """L1: a method that HTTP does not define is 405 with Allow, not a malformed request."""
    sent = f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    head, _, body = raw(quick.port, sent).partition(b"\r\n\r\n")
    allowed = {"/v1/query": b"POST", "/nowhere": b"GET, HEAD, POST"}.get(path, b"GET, HEAD")

    assert head.split(b" ", 2)[1] == b"405", head
    assert head.endswith(b"\r\nallow: " + allowed)
    assert json.loads(body)["details"] == {"argument": "method"}
    assert method[:20] in json.loads(body)["detail"]


@pytest.mark.parametrize("path", [*GETS, "/health", "/ready", "/metrics", "/v1/openapi.json"])
def test_head_is_get_without_a_body(caller: Caller, path: str) -> None:
    """L1: HEAD has the status and content type of GET and no body."""
    head = caller("HEAD", path)
    assert head.body == b""
    if path == "/v1/tail":
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        assert head.headers["cache-control"] == "no-store"
        assert "content-length" not in head.headers  # GET has none
        return
    get = caller("GET", path)
    assert (head.status, head.headers["content-type"]) == (get.status, get.headers["content-type"])


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /v1/log?after=" + b"1" * 65_530 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", b"414"),
        (b"GET /v1/log HTTP/1.1\r\nx: " + b"a" * 300_000 + b"\r\n\r\n", b"431"),
        (b"GET /v1/log HTTP/1.1\r\n" + b"x: aaaaaaaaaaaaaaaaaaaa\r\n" * 10_000 + b"\r\n", b"431"),
        (b"no HTTP at all\r\n\r\n", b"400"),
    ],
)
def test_a_head_over_its_bound_is_a_problem(
    quick: RunningService, sent: bytes, status: bytes
) -> None:
    """K3: a request line or head that is too long is refused with a problem."""
    response = raw(quick.port, sent)
    head, _, body = response.partition(b"\r\n\r\n")

    assert head.split(b" ", 2)[1] == status, response[:200]
    assert b"content-type: application/problem+json" in head
    assert json.loads(body)["status"] == int(status)


@pytest.mark.parametrize(
    "sent",
    [
        b"0\r\n" + b"x: aaaaaaaaaaaaaaaaaaaa\r\n" * 50_000,
        b"2\r\n{}\r\n0\r\nx: " + b"a" * 1_000_000,
        b"2;extension=" + b"a" * 1_000_000,
    ],
)
def test_trailers_are_bounded(quick: RunningService, caller: Caller, sent: bytes) -> None:
    """K3: chunk extensions and trailers over their bound are refused with 431."""
    response = raw(quick.port, chunked(caller, "chunked"), sent)
    head, _, body = response.partition(b"\r\n\r\n")

    assert head.split(b" ", 2)[1] == b"431", response[:200]
    assert json.loads(body)["details"]["limit"] == "trailer_bytes"


def test_small_trailers_are_accepted(quick: RunningService, caller: Caller) -> None:
    """L1: a chunked body may end with trailers."""
    response = raw(
        quick.port, chunked(caller, "chunked"), b"1;e=1\r\n{\r\n1\r\n}\r\n0\r\nx: y\r\n\r\n"
    )

    assert json.loads(response.partition(b"\r\n\r\n")[2])["details"]["argument"] == "events"


@pytest.mark.parametrize("coding", ["gzip, chunked", "deflate, chunked"])
def test_a_transfer_coding_is_refused_by_name(
    quick: RunningService, caller: Caller, coding: str
) -> None:
    """L1: a compressed transfer coding is refused with 501 before the body arrives."""
    head, _, body = raw(quick.port, chunked(caller, coding)).partition(b"\r\n\r\n")

    assert head.split(b" ", 2)[1] == b"501", head
    assert coding in json.loads(body)["detail"]


def chunked(caller: Caller, coding: str) -> bytes:
    """Return the head of an append whose body comes in chunks."""
    return (
        f"POST /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {caller.token}\r\n"
        f"content-type: application/json\r\ntransfer-encoding: {coding}\r\n\r\n"
    ).encode()


def test_a_gzip_body_is_decoded(caller: Caller) -> None:
    """L1: a gzip body is decoded, also with several members; a broken one is refused."""
    body = json.dumps({"events": [make_event("packed", {"a": "x" * 5000})]}).encode()
    coded = {"content-encoding": "gzip"}
    large = gzip.compress(body[:-1] + b" " * 1_000_000) + gzip.compress(body[-1:])
    parts = gzip.compress(body[:20]) + gzip.compress(body[20:])
    for packed in (gzip.compress(body), parts, large):
        assert caller("POST", "/v1/events", packed, headers=coded).status == 201
    for broken in (b"no gzip", gzip.compress(body)[:-9], b""):
        response = caller("POST", "/v1/events", broken, headers=coded)
        assert (response.status, response.code) == (400, "invalid_argument"), response


def test_a_gzip_bomb_is_refused(caller: Caller) -> None:
    """K3: a small gzip body that decodes to 200 MiB is refused with 413."""
    bomb = gzip.compress(b" " * (200 * 1024 * 1024))
    response = caller("POST", "/v1/events", bomb, headers={"content-encoding": "gzip"})

    assert (response.status, response.json["details"]["limit"]) == (413, "request_bytes")


def test_members_of_a_gzip_body_are_bounded(caller: Caller) -> None:
    """K3: a gzip body has at most 1024 members."""
    coded = {"content-encoding": "gzip"}
    packed = gzip.compress(json.dumps({"events": [make_event("packed")]}).encode())
    many = caller("POST", "/v1/events", gzip.compress(b"") * 1023 + packed, headers=coded)
    too_many = caller("POST", "/v1/events", gzip.compress(b"") * 1024 + packed, headers=coded)

    assert many.status == 201
    assert (too_many.status, too_many.json["details"]["limit"]) == (413, "gzip_members")


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, br", "zstd"])
def test_an_unsupported_content_coding_is_refused(caller: Caller, coding: str) -> None:
    """L1: an unsupported content coding is 415, with the supported one in Accept-Encoding."""
    response = caller("POST", "/v1/query", b"{}", headers={"content-encoding": coding})

    assert (response.status, response.code) == (415, "invalid_argument")
    assert coding in response.json["detail"]
    assert response.headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize("path", ["/v1/events", "/v1/openapi.json", "/metrics"])
def test_responses_are_compressed_on_request(caller: Caller, path: str) -> None:
    """L1: responses are compressed if the client accepts gzip, and plain otherwise."""
    packed = caller("GET", path, headers={"accept-encoding": "br, gzip"})
    plain = caller("GET", path, headers={"accept-encoding": "gzip;q=0"})

    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
    assert len(packed.body) < len(plain.body) / 2
    if path != "/metrics":
        assert gzip.decompress(packed.body) == plain.body
    assert (
        "content-encoding"
        not in caller("GET", "/health", headers={"accept-encoding": "gzip"}).headers
    )


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("*;q=0, gzip", "gzip"),
        ("identity;q=0.5, *;q=0.1", "gzip"),
        ("x-gzip", "gzip"),
        ("gzip;q=0, *", None),
        ("GZIP;Q=0.0", None),
        ("gzip ; q=0", None),
        ("br, *;q=0", None),
    ],
)
def test_named_codings_override_the_wildcard(
    caller: Caller, accepted: str, coding: str | None
) -> None:
    """L1: `*` in Accept-Encoding applies to codings that are not named."""
    response = caller("GET", "/v1/events", headers={"accept-encoding": accepted})

    assert response.headers.get("content-encoding") == coding


def test_a_large_response_is_compressed(caller: Caller, quick: RunningService) -> None:
    """L1: a response of a megabyte, compressed outside of the event loop, is valid gzip."""
    large = make_caller(quick, tenant_id="large")
    large.append(*[make_event(payload={"a": "x" * 100_000}) for _ in range(10)])
    packed = large("GET", "/v1/events", headers={"accept-encoding": "gzip"})

    assert len(json.loads(gzip.decompress(packed.body))["records"]) == 10


@pytest.mark.parametrize("name", ["limit", "until", "since_seq"])
@pytest.mark.parametrize("value", ["null", "NULL", "none", ""])
def test_a_null_parameter_is_refused(caller: Caller, name: str, value: str) -> None:
    """L1: an empty or null numeric parameter is refused, with its name."""
    response = caller("GET", f"/v1/events?{name}={value}")

    assert (response.status, response.json["details"]["argument"]) == (400, name)


@pytest.mark.parametrize("path", ["/v1/events", "/v1/log", "/v1/log?after=0"])
@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "61"])
def test_a_wait_outside_its_bounds_is_refused(caller: Caller, path: str, seconds: str) -> None:
    """L1: `wait_s` outside 0 to 60 is refused, also where it has no effect."""
    response = caller("GET", f"{path}{'&' if '?' in path else '?'}wait_s={seconds}")

    assert (response.status, response.json["details"]["argument"]) == (400, "wait_s")


def test_null_is_a_valid_text_parameter(caller: Caller) -> None:
    """L1: the text "null" is a valid event id and event type."""
    assert caller("GET", "/v1/event", event_id="null").status == 404
    assert caller("GET", "/v1/events", types=["null"]).status == 200


def test_the_openapi_document_contains_bounds(caller: Caller) -> None:
    """K3: the OpenAPI document contains the bounds of parameters and bodies."""
    found: Any = caller("GET", "/v1/openapi.json").json
    page = {
        parameter["name"]: parameter["schema"]
        for parameter in found["paths"]["/v1/events"]["get"]["parameters"]
    }
    body = found["components"]["schemas"]["AppendBody"]["properties"]

    assert (page["limit"]["minimum"], page["limit"]["maximum"]) == (1, DEFAULT_LIMITS.page)
    assert (page["wait_s"]["minimum"], page["wait_s"]["maximum"]) == (0, 60)
    assert body["events"]["maxItems"] == DEFAULT_LIMITS.append_events
    assert body["conditions"]["maxItems"] == DEFAULT_LIMITS.conditions
    assert 'items": false' not in json.dumps(found)
    assert not [schema for schema in schemas(found) if {} in schema.get("anyOf", ())]
    assert not [schema for schema in schemas(found) if "enum" in schema and "type" not in schema]


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of an OpenAPI document."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict | list):
            yield from schemas(inner)
