"""Methods, heads, codings and parameters as HTTP means them."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from seriatim.api.routes import ROUTES
from seriatim.core.limits import DEFAULT_LIMITS
from tests.fixtures.service import Running
from tests.service.calls import Caller, caller, event
from tests.service.test_hard_times import raw

GETS = [route.path for route in ROUTES if route.method == "GET"]


@pytest.fixture(scope="module")
def who(quick: Running) -> Caller:
    """Somebody with every right, and some events."""
    made = caller(quick)
    for n in range(20):
        assert made.append(event("seen", {"n": n, "a": "x" * 200})).status == 201
    return made


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES} | {"/health", "/ready"}))
def test_a_wrong_method_is_named(who: Caller, path: str) -> None:
    """L1: 405, and Allow names what works."""
    answer = who("DELETE", path)
    allowed = answer.headers["allow"].split(", ")

    assert (answer.status, answer.code) == (405, "invalid_argument")
    assert answer.json["status"] == 405
    known = {route.method for route in ROUTES if route.path == path} or {"GET"}
    assert set(allowed) == known | ({"HEAD"} if "GET" in known else set())


@pytest.mark.parametrize("path", [*GETS, "/health", "/ready", "/metrics", "/v1/openapi.json"])
def test_head_is_get_without_a_body(who: Caller, path: str) -> None:
    """L1: the same status and type, and nothing else."""
    head = who("HEAD", path)
    assert head.body == b""
    if path == "/v1/tail":
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        return
    get = who("GET", path)
    assert (head.status, head.headers["content-type"]) == (get.status, get.headers["content-type"])


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /v1/log HTTP/1.1\r\nx: " + b"a" * 300_000 + b"\r\n\r\n", b"431"),
        (b"GET /v1/log HTTP/1.1\r\n" + b"x: aaaaaaaaaaaaaaaaaaaa\r\n" * 10_000 + b"\r\n", b"431"),
        (b"no HTTP at all\r\n\r\n", b"400"),
    ],
)
def test_a_head_over_its_bound_is_a_problem(quick: Running, sent: bytes, status: bytes) -> None:
    """K3: whoever sends too long a line or head is told so in the shape of every refusal."""
    answer = raw(quick.port, sent)
    head, _, body = answer.partition(b"\r\n\r\n")

    assert head.split(b" ", 2)[1] == status, answer[:200]
    assert b"content-type: application/problem+json" in head
    assert json.loads(body)["status"] == int(status)


def test_a_gzip_body_is_understood(who: Caller) -> None:
    """L1: as if it were not packed; of several members, too."""
    body = json.dumps({"events": [event("packed", {"a": "x" * 5000})]}).encode()
    coded = {"content-encoding": "gzip"}
    for packed in (gzip.compress(body), gzip.compress(body[:20]) + gzip.compress(body[20:])):
        assert who("POST", "/v1/events", packed, headers=coded).status == 201
    for broken in (b"no gzip", gzip.compress(body)[:-9], b""):
        answer = who("POST", "/v1/events", broken, headers=coded)
        assert (answer.status, answer.code) == (400, "invalid_argument"), answer


def test_a_gzip_bomb_is_refused(who: Caller) -> None:
    """K3: a small body that would be large is over the bound of bodies."""
    bomb = gzip.compress(b" " * (200 * 1024 * 1024))
    answer = who("POST", "/v1/events", bomb, headers={"content-encoding": "gzip"})

    assert (answer.status, answer.json["details"]["limit"]) == (413, "request_bytes")


@pytest.mark.parametrize("coding", ["br", "deflate", "gzip, br", "zstd"])
def test_another_coding_is_refused_by_name(who: Caller, coding: str) -> None:
    """L1: 415, and what is understood."""
    answer = who("POST", "/v1/query", b"{}", headers={"content-encoding": coding})

    assert (answer.status, answer.code) == (415, "invalid_argument")
    assert coding in answer.json["detail"]
    assert answer.headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize("path", ["/v1/events", "/v1/openapi.json", "/metrics"])
def test_answers_are_compressed_when_asked(who: Caller, path: str) -> None:
    """L1: gzip for who asks, as it is for who does not."""
    packed = who("GET", path, headers={"accept-encoding": "br, gzip"})
    plain = who("GET", path, headers={"accept-encoding": "gzip;q=0"})

    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"
    assert len(packed.body) < len(plain.body) / 2
    if path != "/metrics":
        assert gzip.decompress(packed.body) == plain.body
    assert (
        "content-encoding" not in who("GET", "/health", headers={"accept-encoding": "gzip"}).headers
    )


def test_a_large_answer_is_compressed(who: Caller, quick: Running) -> None:
    """L1: also one that is packed beside the event loop."""
    large = caller(quick, tenant_id="large")
    large.append(*[event(payload={"a": "x" * 100_000}) for _ in range(10)])
    packed = large("GET", "/v1/events", headers={"accept-encoding": "gzip"})

    assert len(json.loads(gzip.decompress(packed.body))["records"]) == 10


@pytest.mark.parametrize("name", ["limit", "until", "since_seq"])
@pytest.mark.parametrize("value", ["null", "NULL", "none", ""])
def test_a_null_parameter_is_refused(who: Caller, name: str, value: str) -> None:
    """L1: a number is given, or left out."""
    answer = who("GET", f"/v1/events?{name}={value}")

    assert (answer.status, answer.json["details"]["argument"]) == (400, name)


def test_a_text_may_be_called_null(who: Caller) -> None:
    """L1: where any text may stand, null is one."""
    assert who("GET", "/v1/event", event_id="null").status == 404
    assert who("GET", "/v1/events", types=["null"]).status == 200


def test_bounds_are_described(who: Caller) -> None:
    """K3: whoever reads the description knows how much may be asked for and sent."""
    found: Any = who("GET", "/v1/openapi.json").json
    page = {one["name"]: one["schema"] for one in found["paths"]["/v1/events"]["get"]["parameters"]}
    body = found["components"]["schemas"]["AppendBody"]["properties"]

    assert (page["limit"]["minimum"], page["limit"]["maximum"]) == (1, DEFAULT_LIMITS.page)
    assert (page["wait_s"]["minimum"], page["wait_s"]["maximum"]) == (0, 60)
    assert body["events"]["maxItems"] == DEFAULT_LIMITS.append_events
    assert body["conditions"]["maxItems"] == DEFAULT_LIMITS.conditions
    assert 'items": false' not in json.dumps(found)
