"""Cursors and leases over HTTP: isolated by tenant and limited in number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import seriatim
from seriatim import LogIdentityChanged, NewEvent
from seriatim.core.errors import InvalidArgument
from seriatim.log.cursors import make_cursor
from seriatim.store.port import Cursor
from tests.fixtures.service import RunningService, run_service
from tests.service.conftest import sqlite_in
from tests.service.http_calls import Caller, ServiceResponse, make_caller

OURS, THEIRS = "acme", "glob"
# The positions of the events of the log below.
SHOWN, HIDDEN, FOREIGN, LAST = 1, 2, 3, 4

_names = itertools.count(1)


@pytest.fixture(scope="module")
def service(shared_url: str) -> Iterator[RunningService]:
    """A service with events of two tenants."""
    with run_service(shared_url) as service:
        for tenant, name in ((OURS, "shown"), (OURS, "hidden"), (THEIRS, "x"), (OURS, "last")):
            event = NewEvent(name, {}, event_id=f"{tenant}-{name}")
            service.service.view(tenant).append([event])
        yield service


@pytest.fixture(params=["whole", "scoped"])
def caller(service: RunningService, request: pytest.FixtureRequest) -> Caller:
    """A caller of one tenant, for all event types or for one."""
    if request.param == "whole":
        return make_caller(service, tenant_id=OURS)
    return make_caller(service, tenant_id=OURS, rights=["read"], types=["shown"])


def put(
    service: RunningService, caller: Caller, position: int, event_id: str, **more: object
) -> ServiceResponse:
    """Put a cursor."""
    identity = service.service.log.identity()
    body = {
        "purpose": "subscription",
        "name": f"cursor-{next(_names)}",
        "position": position,
        "log_id": identity.log_id,
        "epoch": identity.epoch,
        "last_event_id": event_id,
    }
    return caller("POST", "/v1/cursors", body | more)


def event_id_at(caller: Caller, position: int) -> str:
    """Return the id, or the opaque value, that a caller receives for a position."""
    found: str = caller("GET", "/v1/last-event-id", position=position).json["last_event_id"]
    return found


# -- opaque ids


@pytest.mark.parametrize("how", ["plain", "only_new", "again", "reset", "leased"])
@pytest.mark.parametrize("position", [SHOWN, HIDDEN, FOREIGN])
def test_an_opaque_id_sent_back_is_returned_again(
    service: RunningService, caller: Caller, how: str, position: int
) -> None:
    """K2: however a cursor is stored, every response returns the value that was sent."""
    name, event_id = f"mark-{next(_names)}", event_id_at(caller, position)
    more: dict[str, Any] = {"name": name}
    if how == "leased":
        lease = {"name": name, "owner": "me", "seconds": 60}
        more["lease"] = caller("POST", "/v1/leases", lease).json["lease"]
    elif how in ("only_new", "reset"):
        more[how] = True
    if how == "again":
        put(service, caller, position, event_id, **more)
        more["only_new"] = True

    response = put(service, caller, position, event_id, **more)
    read = caller("GET", "/v1/cursors", purpose="subscription", name=name)
    every = caller("GET", "/v1/cursors", purpose="subscription")

    assert response.status == 200, response
    assert response.json["cursor"]["last_event_id"] == event_id
    assert read.json["cursors"][0]["last_event_id"] == event_id
    assert {cursor["name"]: cursor["last_event_id"] for cursor in every.json["cursors"]}[
        name
    ] == event_id
    stored = service.service.log.store.cursor(OURS, "subscription", name)
    assert stored is not None
    assert stored.last_event_id == service.service.log.store.event_id_at(position)
    for answered in (response, read, every):
        assert b"glob-x" not in answered.body


def test_guessed_ids_are_refused_alike(service: RunningService, caller: Caller) -> None:
    """K2: only the value of a position is accepted; foreign and absent ids fail alike."""
    theirs = make_caller(service, tenant_id=THEIRS)
    scoped = make_caller(service, tenant_id=OURS, rights=["read"], types=["shown"])
    wrong = [
        (FOREIGN, f"{THEIRS}-x"),  # the event itself
        (FOREIGN, f"{THEIRS}-y"),
        (FOREIGN, f"{OURS}-shown"),  # an event of the own tenant at another position
        (FOREIGN, event_id_at(scoped, HIDDEN)),  # the opaque id of another position
        (FOREIGN, event_id_at(theirs, HIDDEN)),  # the opaque id for another tenant
        (HIDDEN, event_id_at(theirs, HIDDEN)),
        (FOREIGN, "opaque:" + "0" * 32),
        (99, f"{THEIRS}-x"),
        (0, f"{THEIRS}-x"),
    ]
    responses = [put(service, caller, *one, name="guess") for one in wrong]
    responses += [put(service, caller, *one, name="guess", only_new=True) for one in wrong]
    known = caller("GET", "/v1/cursors", purpose="subscription", name="guess")

    assert {(response.status, response.code) for response in responses} == {
        (400, "invalid_argument")
    }
    assert len({repr(response.comparable) for response in responses}) == 1
    assert known.json == {"cursors": []}


def test_opaque_ids_are_specific_to_tenant_and_position(service: RunningService) -> None:
    """K2: opaque ids of two tenants, or of one event at two positions, are unrelated."""
    one, other = make_caller(service, tenant_id=OURS), make_caller(service, tenant_id="none")
    mark = service.service.opaque_event_id

    assert event_id_at(one, FOREIGN) != event_id_at(other, FOREIGN)
    assert mark("a", "t", 1) != mark("a", "t", 2)
    assert mark("a:b", "c", 1) != mark("a", "b:c", 1)


def test_a_hidden_id_is_refused(service: RunningService) -> None:
    """K4: a caller that may not read an event's type cannot find its position by its id."""
    scoped = make_caller(service, tenant_id=OURS, rights=["read"], types=["shown"])
    hidden = put(service, scoped, HIDDEN, f"{OURS}-hidden")
    absent = put(service, scoped, HIDDEN, f"{OURS}-nothing")

    assert hidden.status == 400
    assert hidden.comparable == absent.comparable


def test_a_cursor_needs_no_last_event_id(service: RunningService, caller: Caller) -> None:
    """F8: a cursor may be stored without a last event id."""
    response = put(service, caller, FOREIGN, "")

    assert response.json["cursor"]["last_event_id"] == ""


# -- subscriptions


def follow(service: RunningService, token: str) -> list[str]:
    """Run a subscription over the stored events and return their ids."""
    seen: list[str] = []
    with seriatim.open(service.url, token=token) as log:
        subscription = log.subscribe("reader", idle_timeout=0.05, poll_s=0.05)
        subscription.run(lambda batch: seen.extend(one.event_id for one in batch))
    return seen


def test_a_subscription_continues_after_foreign_events(shared_url: str, tmp_path: Path) -> None:
    """E5: a cursor at another tenant's event continues, also after a restart of the service."""
    url = sqlite_in(tmp_path) if shared_url.startswith("sqlite") else shared_url
    tenants = ("sub-ours", "sub-theirs")
    with run_service(url) as first:
        token = first.token(tenant_id=tenants[0])
        ours, theirs = (first.service.view(tenant) for tenant in tenants)
        ours.append([NewEvent("a", {}, event_id="one")])
        theirs.append([NewEvent("a", {}, event_id="secret")])
        seen = [follow(first, token)]
        cursor = ours.store.cursor(tenants[0], "subscription", "reader")
    with run_service(url) as second:
        ours, theirs = (second.service.view(tenant) for tenant in tenants)
        seen.append(follow(second, token))
        theirs.append([NewEvent("a", {}, event_id="secret-2")])
        ours.append([NewEvent("a", {}, event_id="two")])
        seen.append(follow(second, token))

    assert cursor is not None
    assert cursor.last_event_id == "secret"
    assert seen == [["one"], [], ["two"]]


@pytest.mark.parametrize("at", ["own", "foreign"])
def test_a_replaced_log_stops_a_subscription(tmp_path: Path, at: str) -> None:
    """F8: a subscription whose cursor has another event id at its position fails."""
    url = sqlite_in(tmp_path)
    with run_service(url) as service:
        token = service.token(tenant_id=OURS)
        store = service.service.view(OURS).store
        service.service.view(OURS).append([NewEvent("a", {}, event_id="one")])
        if at == "foreign":
            service.service.view(THEIRS).append([NewEvent("a", {}, event_id="two")])
        assert follow(service, token) == ["one"]
        cursor = store.cursor(OURS, "subscription", "reader")
        assert cursor is not None
        changed = msgspec.structs.replace(cursor, last_event_id="other")
        store.put_cursor(changed, lease=None, reset=True)
        with pytest.raises(LogIdentityChanged):
            follow(service, token)


def test_a_cursor_is_not_moved_over_a_replaced_log(service: RunningService) -> None:
    """F8: a cursor with another event id at its position is refused, and nothing is stored."""
    with seriatim.open(service.url, token=service.token(tenant_id=OURS)) as log:
        cursor = make_cursor(log.store, OURS, "subscription", "moved", SHOWN)
        log.store.put_cursor(cursor, lease=None, reset=False)
        other = make_cursor(log.store, OURS, "subscription", "moved", LAST)
        seen = msgspec.structs.replace(other, last_event_id="other")
        with pytest.raises(InvalidArgument, match="restored or replaced"):
            log.store.put_cursor(seen, lease=None, reset=False)
        stored = log.store.cursor(OURS, "subscription", "moved")

    assert stored is not None
    assert stored.position == SHOWN


# -- bounds


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def bounded(
    request: pytest.FixtureRequest, serving: Callable[..., RunningService]
) -> RunningService:
    """A service on each backend that allows three cursors and three leases per tenant."""
    url = {"memory": "memory:", "sqlite": None}.get(request.param)
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    return serving(url, tenant_cursors=3, tenant_leases=3)


def test_cursors_of_a_tenant_are_bounded(bounded: RunningService) -> None:
    """K3: new cursors over the bound of a purpose are refused; stored ones still move."""
    caller, other = (make_caller(bounded, tenant_id=tenant) for tenant in (OURS, THEIRS))
    for name in ("a", "b", "c"):
        assert put(bounded, caller, 0, "", name=name).status == 200
    refused = [put(bounded, caller, 0, "", only_new=new) for new in (True, False)]

    for response in refused:
        assert (response.status, response.code) == (413, "limit_exceeded")
        assert response.json["details"]["limit"] == "tenant_cursors"
        assert response.json["details"]["bound"] == 3
    assert put(bounded, caller, 5, "", name="b").status == 200
    assert put(bounded, caller, 0, "", purpose="projection").status == 200
    assert put(bounded, other, 0, "").status == 200


def test_leases_of_a_tenant_are_bounded(bounded: RunningService) -> None:
    """K3: released leases do not count towards the bound, and cannot be renewed."""
    caller, other = (make_caller(bounded, tenant_id=tenant) for tenant in (OURS, THEIRS))

    def claim(name: str, by: Caller = caller) -> ServiceResponse:
        return by("POST", "/v1/leases", {"name": name, "owner": "me", "seconds": 60})

    first = [claim(name).json["lease"] for name in ("a", "b", "c")]
    refused = claim("d")
    assert (refused.status, refused.code) == (413, "limit_exceeded")
    assert refused.json["details"] == {"limit": "tenant_leases", "bound": 3, "actual": 4}
    assert claim("b").status == 200
    assert claim("d", other).status == 200

    caller("POST", "/v1/leases/release", {"lease": first[0]})
    assert claim("d").json["lease"]["name"] == "d"
    assert claim("a").status == 413
    caller("POST", "/v1/leases/release", {"lease": first[2]})
    again = claim("a").json["lease"]
    held = caller("POST", "/v1/leases/renew", {"lease": first[0], "seconds": 60})
    assert again["token"] > first[0]["token"]
    assert held.json == {"held": False}


def test_the_query_of_a_cursor_is_bounded(service: RunningService) -> None:
    """K3: the query of a cursor has at most 256 KiB of characters."""
    caller = make_caller(service, tenant_id=OURS)
    assert put(service, caller, 0, "", query="é" * 128 * 1024).status == 200
    response = put(service, caller, 0, "", query="é" * 128 * 1024 + "x")

    assert (response.status, response.code) == (413, "limit_exceeded")
    assert response.json["details"]["limit"] == "cursor_query_bytes"


def test_cursors_are_listed_in_pages(service: RunningService) -> None:
    """K3: cursors are listed by name, at most 100 per page; the client requests all pages."""
    caller, store = make_caller(service, tenant_id="paged"), service.service.log.store
    identity = store.identity()
    names = sorted(f"{prefix}{number:04}" for number in range(60) for prefix in ("a", "é"))
    for name in names:
        store.put_cursor(
            Cursor(
                tenant_id="paged",
                purpose="projection",
                name=name,
                position=0,
                log_id=identity.log_id,
                epoch=1,
            ),
            lease=None,
            reset=False,
        )

    def page(**params: Any) -> list[str]:
        response = caller("GET", "/v1/cursors", purpose="projection", **params)
        return [cursor["name"] for cursor in response.json["cursors"]]

    assert page() == names[:100]
    assert page(after=names[99]) == names[100:]
    assert page(after=names[3], limit=2) == names[4:6]
    for wrong in ({"limit": 0}, {"limit": 101}, {"after": ""}):
        assert caller("GET", "/v1/cursors", purpose="projection", **wrong).status == 400
    with seriatim.open(service.url, token=caller.token) as log:
        assert [cursor.name for cursor in log.store.cursors("paged", "projection")] == names
