"""Every route with every kind of caller: own and other tenants, bad tokens, fewer rights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import psycopg
import pytest

from seriatim.access.rights import RIGHTS
from seriatim.api.routes import ROUTES, Route
from seriatim.api.server import ServiceLocation
from seriatim.api.service import OPAQUE_ID_PREFIX
from seriatim.cli.command_session import CommandSession, CommonOptions
from seriatim.cli.serve import _allows_anonymous
from seriatim.core.fold import Failure
from seriatim.factory import access_url, open_access, open_read_model, read_model_url
from seriatim.store.postgres.migrate import migrate
from tests.faults.support import wait_until
from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.service import RunningService
from tests.integration.readmodel_support import make_failure, make_step, seats
from tests.service.conftest import sqlite_in
from tests.service.http_calls import Caller, ServiceResponse, make_caller, make_event, open_tail
from tests.service.tenant_data import NOBODYS, OURS, REQUESTS, SECRET, THEIRS, mask_variable_parts

every_route = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.endpoint)


@pytest.fixture(scope="module", params=["sqlite", "bypassing", "confined"])
def shared_url(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A log on SQLite, and on Postgres under two roles on purpose.

    The superuser bypasses row-level security: nothing but each statement's own filter keeps the
    tenants apart. A plain owner of the database is confined by it.
    """
    if request.param == "sqlite":
        yield sqlite_in(tmp_path_factory.mktemp("matrix"))
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    name = f"matrix_{request.param}"
    if request.param == "bypassing":
        yield server.create_database(name, request.getfixturevalue("postgres_template"))
        server.drop_database(name)
        return
    url = server.create_database(name)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create role {name} login".encode())
        connection.execute(f"alter database {name} owner to {name}".encode())
    owned = url.replace("//postgres@", f"//{name}@")
    migrate(owned)
    yield owned
    server.drop_database(name)
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"drop role {name}".encode())


@pytest.fixture(scope="module")
def service(filled: RunningService) -> RunningService:
    """A service with data of two tenants."""
    return filled


@pytest.fixture(scope="module")
def ours(service: RunningService) -> Caller:
    """A caller of our tenant with every right."""
    return make_caller(service, tenant_id=OURS)


def ask(service: RunningService, caller: Caller, route: Route, whose: str) -> ServiceResponse:
    """Send a request to a route, with the data of a tenant."""
    wanted = REQUESTS[route.endpoint](service, whose)
    if not route.stream:
        return caller(route.method, route.path, wanted.body, **wanted.params)
    with open_tail(caller, wanted.body, **wanted.params) as tail:
        body = tail.response.readline() if tail.status == 200 else tail.response.read()
        return ServiceResponse(tail.status, tail.headers, body)


def test_the_matrix_contains_every_route() -> None:
    """K2: every route of the service is part of this matrix."""
    assert [route.endpoint for route in ROUTES] == list(REQUESTS)


@every_route
def test_own_data_is_accessible(service: RunningService, ours: Caller, route: Route) -> None:
    """K4: a tenant's token with every right may call all routes but those of the whole log."""
    response = ask(service, ours, route, OURS)

    assert response.status == (403 if route.every_tenant else route.status), response.body
    assert_nothing_of_theirs(response)


@every_route
def test_foreign_and_absent_data_get_the_same_response(
    service: RunningService, ours: Caller, route: Route
) -> None:
    """K2: data of another tenant gets the same response as data that does not exist."""
    foreign = ask(service, ours, route, THEIRS)
    absent = ask(service, ours, route, NOBODYS)

    assert foreign.status == absent.status
    assert_nothing_of_theirs(foreign)
    assert mask_variable_parts(foreign.comparable[1], THEIRS) == mask_variable_parts(
        absent.comparable[1], NOBODYS
    )
    assert foreign.comparable[2] == absent.comparable[2]


@every_route
def test_another_tenant_cannot_be_named(service: RunningService, route: Route) -> None:
    """K2: a request that names another tenant gets 403, whether that tenant exists or not."""
    token = service.token(tenant_id=OURS)
    foreign = ask(service, Caller(service.port, token, THEIRS), route, OURS)
    absent = ask(service, Caller(service.port, token, NOBODYS), route, OURS)

    assert (foreign.status, foreign.code) == (403, "forbidden")
    assert foreign.comparable == absent.comparable


@every_route
def test_invalid_tokens_get_the_same_response(service: RunningService, route: Route) -> None:
    """K4: missing, malformed, unknown, expired and revoked tokens get the same response."""
    good = service.token(tenant_id=OURS)
    secret = good.split("_", 2)[2]
    head = good.removesuffix(f"_{secret}")
    expired = service.token(tenant_id=OURS, expires_in_s=1e-6)
    revoked, made = service.service.access.create(subject="x", tenant_id=OURS, rights=RIGHTS)
    service.service.access.revoke(made.token_id)
    bad = [None, "", "x", head, f"{head}_", f"{head}_{secret[:-1]}", f"srt_{secret}", good.upper()]
    bad += [f"srt_{'0' * 16}_{secret}", "é" * 20, "a" * 5000, expired, revoked, f"{good} {good}"]

    responses = [ask(service, Caller(service.port, token), route, OURS) for token in bad]
    basic = Caller(service.port)(
        route.method, route.path, headers={"authorization": f"Basic {good}"}
    )

    assert {response.status for response in [*responses, basic]} == {401}
    assert len({repr(response.comparable) for response in [*responses, basic]}) == 1
    assert responses[0].headers["www-authenticate"] == "Bearer"
    assert not any(secret in str(response) for response in responses)


@every_route
def test_each_right_is_needed(service: RunningService, route: Route) -> None:
    """K4: a token without the right of a route is refused, whatever other rights it has."""
    others = [right for right in RIGHTS if right != route.right]
    response = ask(service, make_caller(service, tenant_id=OURS, rights=others), route, OURS)

    if route.right is None:
        assert response.status == route.status
        return
    assert (response.status, response.code) == (403, "forbidden")
    assert response.json["details"] == {"right": route.right}


@every_route
def test_a_tenants_token_only_reads(service: RunningService, route: Route) -> None:
    """K4: a tenant's own token may call only the routes that read."""
    response = ask(
        service, make_caller(service, subject=None, tenant_id=OURS, rights=["read"]), route, OURS
    )

    allowed = route.right in (None, "read") and not route.service
    assert response.status == (route.status if allowed else 403)
    assert_nothing_of_theirs(response)


@every_route
def test_a_type_scope_confines_every_route(service: RunningService, route: Route) -> None:
    """K4: a token for one type reads that type alone; routes without a type are refused."""
    scoped = make_caller(
        service, tenant_id=OURS, rights=["append", "read", "act_as"], types=[f"{OURS}.one"]
    )
    response = ask(service, scoped, route, OURS)

    refused = route.all_types or route.right == "operate"
    assert response.status == (403 if refused else route.status)
    for hidden in (f"{OURS}.dead", f"{OURS}.more"):
        assert hidden.encode() not in response.body


@pytest.mark.parametrize("path", ["/metrics", "/v1/openapi.json", "/", "/v1", "/v2/events", "/x"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "DELETE", "PUT"])
def test_only_health_and_ready_need_no_token(
    service: RunningService, method: str, path: str
) -> None:
    """K4: every other path, known or not, is 401 without a token."""
    response = Caller(service.port)(method, path)

    assert response.status == 401
    assert "www-authenticate" in response.headers


def test_health_and_readiness_need_no_token(service: RunningService) -> None:
    """K4: `/health` and `/ready` respond without a token, with a status and nothing else."""
    anybody = Caller(service.port)

    assert anybody("GET", "/health").json == {"status": "alive"}
    assert anybody("GET", "/ready").json == {"status": "ready"}
    assert anybody("HEAD", "/health").status == 200
    assert anybody("POST", "/health").status == 405


@pytest.mark.parametrize("how", [{"tenant_id": OURS}, {"rights": ["append", "read", "act_as"]}])
def test_metrics_need_an_operator_of_all_tenants(
    service: RunningService, how: dict[str, object]
) -> None:
    """K2: metrics, which name tenants, are refused to any other token."""
    response = make_caller(service, **how)("GET", "/metrics")

    assert (response.status, response.code) == (403, "forbidden")
    assert THEIRS.encode() in make_caller(service)("GET", "/metrics").body


@pytest.mark.parametrize("kind", ["lines", "events"])
def test_a_tail_contains_only_the_callers_tenant(
    service: RunningService, ours: Caller, kind: str
) -> None:
    """K2: a tail sends neither stored nor new events of another tenant."""
    theirs = make_caller(service, tenant_id=THEIRS)
    with open_tail(ours, after=0, lines=kind == "lines") as tail:
        for n in range(5):
            theirs.append(make_event(f"{SECRET}.{n}", {"word": SECRET}))
            ours.append(make_event("last" if n == 4 else "mine"))
        seen = b""
        while b'"last"' not in seen:
            seen += tail.response.readline()

    assert f"{OURS}-dead".encode() in seen
    assert seen.count(b'"mine"') >= 4
    for word in (SECRET, f'"{THEIRS}"', f"{THEIRS}-stream"):
        assert word.encode() not in seen


@pytest.mark.parametrize(
    "path", ["/v1/streams", "/v1/event-types", "/v1/projections", "/v1/events"]
)
def test_lists_contain_only_the_callers_tenant(
    service: RunningService, ours: Caller, path: str
) -> None:
    """K2: lists contain only data of the caller's tenant."""
    response = ours("GET", path)

    assert response.status == 200
    assert_nothing_of_theirs(response)
    assert f"{THEIRS}-stream".encode() not in response.body


def event_id_at(caller: Caller, position: int) -> str:
    """Return the id, or the opaque value, that the caller receives for a position."""
    found: str = caller("GET", "/v1/last-event-id", position=position).json["last_event_id"]
    return found


def test_ids_at_foreign_positions_are_opaque(service: RunningService, ours: Caller) -> None:
    """K2: positions of other tenants have an opaque but stable value instead of an id."""
    ids = [event_id_at(ours, position) for position in range(1, 7)]
    theirs = event_id_at(make_caller(service, tenant_id=THEIRS), 4)

    assert ids[:3] == [f"{OURS}-{name}" for name in ("one", "dead", "more")]
    assert theirs == f"{THEIRS}-one"
    assert all(id_.startswith(OPAQUE_ID_PREFIX) for id_ in ids[3:])
    assert event_id_at(ours, 4) == ids[3]


def test_ids_of_hidden_types_are_opaque(service: RunningService) -> None:
    """K4: a position of an event outside the token's types has an opaque value, not its id."""
    scoped = make_caller(service, tenant_id=OURS, rights=["read"], types=[f"{OURS}.one"])
    ids = [event_id_at(scoped, position) for position in (1, 2)]

    assert ids[0] == f"{OURS}-one"
    assert ids[1].startswith(OPAQUE_ID_PREFIX)


def test_tenants_may_use_the_same_ids_and_keys(service: RunningService, ours: Caller) -> None:
    """K2: event ids, idempotency keys and commands are separate for each tenant."""
    theirs = make_caller(service, tenant_id=THEIRS)
    body = {"events": [make_event("x", {"a": 1}, event_id="both", idempotency_key="both")]}
    other = {"events": [make_event("y", {"b": 2}, event_id="both", idempotency_key="both")]}
    key = {"idempotency-key": "both"}

    first = theirs("POST", "/v1/events", body, headers=key)
    second = ours("POST", "/v1/events", other, headers=key)

    assert (first.status, second.status) == (201, 201)
    assert "seriatim-replayed" not in second.headers


def test_an_event_names_no_other_tenant(service: RunningService, ours: Caller) -> None:
    """K2: an event that names another tenant is refused, whether the tenant exists or not."""
    foreign = ours.append(make_event(tenant_id=THEIRS))
    absent = ours.append(make_event(tenant_id=NOBODYS))

    assert foreign.status == 400
    assert mask_variable_parts(foreign.comparable[1], THEIRS) == mask_variable_parts(
        absent.comparable[1], NOBODYS
    )


@pytest.mark.parametrize("whose", ["*", THEIRS])
def test_shared_read_models_are_confined_by_tenant(
    serving: Callable[..., RunningService], tmp_path: Path, whose: str
) -> None:
    """K2: a tenant reads its own failures of a shared read model, and nothing of a foreign one."""
    url = f"sqlite:///{tmp_path}/log.db"
    service = serving(url)
    log = service.service.log
    for tenant in ("default", THEIRS):
        make_caller(service, tenant_id=tenant).append(make_event())
    with closing(open_read_model(read_model_url(url))) as model:
        model.create_projection(seats, whose, log.identity())
        token = model.claim("seats", "runner", 60)
        failed = [(_failure(1, THEIRS), "parked"), (_failure(2, "default"), "parked")]
        step = make_step(0, 2, failures=failed)
        step.last_event_id = log.store.event_id_at(2) or ""
        model.commit(seats, step, token=token or 0)
    mine = make_caller(service, tenant_id="default")
    standings = mine("GET", "/v1/projections").json["projections"]
    waited = mine("GET", "/v1/projections/wait", name="seats", position=1)
    failures = mine("GET", "/v1/projections/failures", name="seats")
    later = mine("GET", "/v1/projections/failures", name="seats", after=2)
    absent = mine("GET", "/v1/projections/wait", name="none!", position=1)

    if whose == "*":
        assert [standing["failures"] for standing in standings] == [1]
        assert (waited.status, len(failures.json["failures"])) == (200, 1)
        assert (failures.json["count"], failures.json["unresolved"]) == (1, 1)
        assert (later.json["failures"], later.json["count"]) == ([], 1)
        return
    assert standings == []
    assert (waited.status, failures.status) == (404, 404)
    assert mask_variable_parts(waited.comparable[1], "seats") == mask_variable_parts(
        absent.comparable[1], "none!"
    )


def _failure(position: int, tenant: str) -> Failure:
    return msgspec.structs.replace(make_failure(position), tenant_id=tenant, key=tenant)


def assert_nothing_of_theirs(response: ServiceResponse) -> None:
    """Check that a response contains no data of the other tenant."""
    assert SECRET.encode() not in response.body
    assert SECRET not in str(response.headers)


def test_a_service_requires_tokens_once_one_exists(
    serving: Callable[..., RunningService],
) -> None:
    """K4: a service on loopback requires no token until the first one is created."""
    service = serving(open_on_loopback=True)
    anybody = Caller(service.port)
    first = anybody.append(make_event())
    wrong = Caller(service.port, "srt_x_y")("GET", "/v1/log")
    service.token()
    wait_until(lambda: anybody("GET", "/v1/log").status == 401, "closed", within_s=2.5)

    assert (first.status, wrong.status) == (201, 401)
    assert anybody.append(make_event()).status == 401


@pytest.mark.parametrize(
    ("url", "host", "token", "expected"),
    [
        ("sqlite", "127.0.0.1", False, True),
        ("sqlite", "127.0.0.1", True, False),
        ("sqlite", "0.0.0.0", False, False),  # noqa: S104 - refused as open
        ("postgres", "127.0.0.1", False, False),
    ],
)
def test_anonymous_access_needs_an_embedded_log_on_loopback(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    url: str,
    host: str,
    *,
    token: bool,
    expected: bool,
) -> None:
    """K4: services that other machines can reach, and Postgres logs, always require tokens."""
    at = sqlite_in(tmp_path) if url == "sqlite" else request.getfixturevalue("postgres_url")
    if token:
        with closing(open_access(access_url(at))) as access:
            access.create(subject="x", tenant_id="*", rights=["read"])

    place = ServiceLocation(url=at, host=host)
    assert _allows_anonymous(CommandSession(CommonOptions(at)), place, insecure=True) is expected
