"""A log with data of two tenants, and a request for each route that names their data."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec

from seriatim.core.event import NewEvent
from seriatim.core.handler import Delivery, Handler, RetryPolicy, handler
from seriatim.core.request import Command
from seriatim.delivery.registry import Registry
from seriatim.factory import Log, open_read_model, open_registry, read_model_url, registry_url
from seriatim.store.port import Cursor
from tests.fixtures.service import RunningService
from tests.integration.readmodel_support import make_failure, make_step, seat_rows, seats

OURS, THEIRS, NOBODYS = "acme", "glob", "none"  # of one length, so that responses can be compared
SECRET = "zebra"  # part of all data of the other tenant
MAILER = handler("mailer", effect="keyed")(lambda _event, _context: None)
STOPPED = handler("stopped", effect="keyed", on_poison="stop")(lambda _event, _context: None)


class RequestParts(msgspec.Struct, frozen=True):
    """The parameters and body of a request."""

    params: dict[str, Any] = {}
    body: Any = None


RequestFactory = Callable[[RunningService, str], RequestParts]


def fill(service: RunningService, url: str) -> None:
    """Give both tenants events, streams, tags, cursors, leases, commands and so on."""
    for tenant in (OURS, THEIRS):
        _fill(service, tenant)
        _project(service, url, tenant)
    with closing(open_registry(registry_url(url))) as registry:
        create_dead_letter(service, registry, MAILER, OURS)
        create_dead_letter(service, registry, MAILER, THEIRS)
        create_dead_letter(service, registry, STOPPED, THEIRS)


def create_dead_letter(
    service: RunningService, registry: Registry, by: Handler, tenant: str
) -> None:
    """Create a dead letter for one event of a tenant."""
    registry.declare(by)
    log = service.service.view(tenant)
    done, dead = (
        Delivery.of(log.event(f"{tenant}-{name}"), log=log.identity()) for name in ("one", "dead")
    )
    registry.mark_done(by, registry.claim_all(by, [done]))
    [claim] = registry.claim_all(by, [dead])
    registry.mark_failed(by, claim, f"no {_of(tenant)}")


def _of(tenant: str) -> str:
    return SECRET if tenant == THEIRS else tenant


def _fill(service: RunningService, tenant: str) -> None:
    log = service.service.view(tenant)
    for name in ("one", "dead", "more"):
        event = NewEvent(
            f"{tenant}.{name}",
            {"word": _of(tenant)},
            stream=("order", f"{tenant}-stream"),
            event_id=f"{tenant}-{name}",
            tags=(f"tag:{_of(tenant)}",),
            idempotency_key=f"{tenant}-key-{name}",
            metadata={"word": _of(tenant)},
        )
        command = Command(
            actor="tester",
            endpoint="POST /orders",
            key=f"{tenant}-command-{name}",
            response={"word": _of(tenant)},
        )
        log.append([event], command=command)
    store, identity = log.store, log.identity()
    cursor = Cursor(
        tenant_id=tenant,
        purpose="subscription",
        name=f"{tenant}-cursor",
        position=log.head(),
        log_id=identity.log_id,
        epoch=identity.epoch,
        last_event_id=store.event_id_at(log.head()) or "",
        query="",
    )
    store.put_cursor(cursor, lease=None, reset=False)
    store.claim_lease(tenant, f"{tenant}-lease", _of(tenant), 3600.0)
    _park(log, f"{tenant}-parked", _of(tenant))


def _park(log: Log, name: str, word: str) -> None:
    """Let a subscription skip an append by its policy, and park at the next one."""

    def refuse(_: object) -> None:
        skipping.stop()
        raise ValueError(word)

    policy: dict[str, Any] = {"retry": RetryPolicy(attempts=1), "idle_timeout": 0.0}
    skipping = log.subscribe(name, on_poison="skip", **policy)
    skipping.run(refuse)
    log.subscribe(name, **policy).run(refuse)


def _parked(service: RunningService, whose: str, **more: object) -> RequestParts:
    """Name a subscription, which is parked if it is ours."""
    name = f"{whose}-parked"
    subscriptions = service.service.view(OURS).subscriptions
    if whose == OURS and subscriptions.get(name).status != "parked":
        subscriptions.reset(name, 0)
        _park(service.service.view(OURS), name, OURS)
    return RequestParts(body={"name": name, **more})


def _attempted(service: RunningService, whose: str) -> RequestParts:
    """Store an attempt under the lease of a subscription, which is held if it is ours."""
    name = f"subscription:{whose}-cursor"
    lease = _lease(whose) | {"name": name}
    if whose == OURS:
        held = service.service.log.store.claim_lease(OURS, name, "me", 3600.0)
        assert held is not None
        lease["token"] = held.token
    batch = {"first_position": 1, "last_position": 1, "attempts": 1}
    return RequestParts(body={"name": f"{whose}-cursor", "lease": lease, **batch})


def _project(service: RunningService, url: str, tenant: str) -> None:
    log = service.service.view(tenant)
    with closing(open_read_model(read_model_url(url, tenant))) as model:
        model.create_projection(seats, tenant, log.identity())
        token = model.claim("seats", "runner", 3600)
        assert token is not None
        failed = msgspec.structs.replace(make_failure(1), tenant_id=tenant, reason=_of(tenant))
        step = make_step(
            0, 2, state_rows=seat_rows({_of(tenant): 2}, 2, tenant), failures=[(failed, "parked")]
        )
        step.last_event_id = log.store.event_id_at(2) or ""
        model.commit(seats, step, token=token)


def _event(whose: str, **more: object) -> dict[str, Any]:
    return {"event_type": f"{whose}.one", "payload": {}, **more}


def _query(whose: str) -> dict[str, Any]:
    stream = {"streams": [["order", f"{whose}-stream"]]}
    return {"filters": [stream, {"types": [f"{whose}.one"]}, {"tags": [f"tag:{whose}"]}]}


def _cursor(service: RunningService, whose: str) -> RequestParts:
    identity = service.service.log.identity()
    return RequestParts(
        body={
            "purpose": "projection",
            "name": f"{whose}-cursor",
            "position": 1,
            "log_id": identity.log_id,
            "epoch": identity.epoch,
            "last_event_id": f"{whose}-one",
            "only_new": True,
        }
    )


def _lease(whose: str) -> dict[str, Any]:
    return {"tenant_id": whose, "name": f"{whose}-lease", "token": 1}


def _stored(_: RunningService, whose: str) -> RequestParts:
    """Repeat a stored append: a replay for its tenant, a new append for others."""
    stream = {"stream_type": "order", "stream_id": f"{whose}-new"}
    return RequestParts(body={"events": [_event(whose, event_id=f"{whose}-new", **stream)]})


def _explained(_: RunningService, whose: str) -> RequestParts:
    """Explain the repetition of a stored append with other contents."""
    event = _event(whose, event_id=f"{whose}-one", idempotency_key=f"{whose}-key-one")
    return RequestParts(body={"events": [event]})


def _several(service: RunningService, whose: str) -> RequestParts:
    return RequestParts(body={"appends": [_stored(service, whose).body]})


def _stored_if(service: RunningService, whose: str) -> RequestParts:
    return RequestParts(
        body={
            "events": [_event(whose, event_id=f"{whose}-if")],
            "query": {"filters": [{"types": [f"{whose}.never"]}]},
        }
    )


REQUESTS: dict[str, RequestFactory] = {
    "GET /v1/token": lambda _, __: RequestParts(),
    "POST /v1/events": _stored,
    "POST /v1/append-if": _stored_if,
    "POST /v1/appends": _several,
    "POST /v1/explain": _explained,
    "GET /v1/refusals": lambda _, __: RequestParts(),
    "GET /v1/log": lambda _, __: RequestParts(),
    "GET /v1/events": lambda _, whose: RequestParts(
        {"stream_type": "order", "stream_id": f"{whose}-stream", "types": [f"{whose}.one"]}
    ),
    "GET /v1/event": lambda _, whose: RequestParts({"event_id": f"{whose}-one"}),
    "GET /v1/receipts": lambda _, whose: RequestParts({"idempotency_key": f"{whose}-key-one"}),
    "GET /v1/last-event-id": lambda _, __: RequestParts({"position": 4}),
    "GET /v1/streams": lambda _, whose: RequestParts({"stream_type": f"{whose}-kind"}),
    "POST /v1/streams/last": lambda _, whose: RequestParts(
        body={"streams": [["order", f"{whose}-stream"]]}
    ),
    "GET /v1/event-types": lambda _, whose: RequestParts({"prefix": f"{whose}."}),
    "POST /v1/query": lambda _, whose: RequestParts(body={"query": _query(whose), "head": 6}),
    "POST /v1/query/records": lambda _, whose: RequestParts(
        body={"query": _query(whose), "after": 0, "until": 6, "limit": 10}
    ),
    "POST /v1/query/version": lambda _, whose: RequestParts(
        body={"query": _query(whose), "until": 6}
    ),
    "GET /v1/tail": lambda _, whose: RequestParts({"types": [f"{whose}.one"], "after": 6}),
    "POST /v1/tail": lambda _, whose: RequestParts(body={"query": _query(whose), "after": 6}),
    "GET /v1/cursors": lambda _, whose: RequestParts(
        {"purpose": "subscription", "name": f"{whose}-cursor"}
    ),
    "POST /v1/cursors": _cursor,
    "POST /v1/leases": lambda _, whose: RequestParts(
        body={"name": f"{whose}-lease", "owner": "me", "seconds": 60}
    ),
    "POST /v1/leases/renew": lambda _, whose: RequestParts(
        body={"lease": _lease(whose), "seconds": 60}
    ),
    "POST /v1/leases/release": lambda _, whose: RequestParts(body={"lease": _lease(whose)}),
    "GET /v1/subscriptions": lambda _, whose: RequestParts(
        {"after": f"{whose}-cursos", "limit": 1}
    ),
    "GET /v1/subscriptions/one": lambda _, whose: RequestParts({"name": f"{whose}-parked"}),
    "GET /v1/subscriptions/skipped": lambda _, whose: RequestParts({"name": f"{whose}-parked"}),
    "POST /v1/subscriptions/retry": _parked,
    "POST /v1/subscriptions/skip": lambda service, whose: _parked(
        service, whose, position=2, reason="malformed"
    ),
    "POST /v1/subscriptions/reset": lambda service, whose: _parked(service, whose, position=1),
    "POST /v1/subscriptions/attempt": _attempted,
    "POST /v1/subscriptions/failure": lambda _, whose: RequestParts(
        body={
            "name": f"{whose}-cursor",
            "lease": _lease(whose) | {"name": f"subscription:{whose}-cursor"},
            "failures": 1,
            "error": "no mail server",
        }
    ),
    "GET /v1/projections": lambda _, whose: RequestParts({"name": f"{whose}"}),
    "GET /v1/projections/wait": lambda _, __: RequestParts({"name": "seats", "position": 1}),
    "GET /v1/projections/failures": lambda _, __: RequestParts({"name": "seats"}),
    "POST /v1/projections/pause": lambda _, __: RequestParts(body={"name": "seats"}),
    "POST /v1/projections/resume": lambda _, __: RequestParts(body={"name": "seats"}),
    "POST /v1/projections/retry": lambda _, __: RequestParts(body={"name": "seats", "position": 1}),
    "POST /v1/projections/skip": lambda _, __: RequestParts(body={"name": "seats", "position": 1}),
    "GET /v1/registry": lambda _, __: RequestParts({"finished": "true"}),
    "GET /v1/dead-letters": lambda _, whose: RequestParts({"event_id": f"{whose}-dead"}),
    "GET /v1/registry/entries": lambda _, whose: RequestParts({"event_id": f"{whose}-dead"}),
    "GET /v1/registry/event": lambda _, whose: RequestParts({"event_id": f"{whose}-one"}),
    "GET /v1/registry/count": lambda _, whose: RequestParts({"event_id": f"{whose}-dead"}),
    "POST /v1/dead-letters/retry": lambda _, whose: RequestParts(
        body={"event_id": f"{whose}-dead"}
    ),
    "POST /v1/dead-letters/skip": lambda _, whose: RequestParts(
        body={"event_id": f"{whose}-dead", "reason": "seen"}
    ),
    "POST /v1/handlers/pause": lambda _, __: RequestParts(body={"handler": "mailer"}),
    "POST /v1/handlers/resume": lambda _, __: RequestParts(body={"handler": "mailer"}),
    "GET /v1/handlers/prunable": lambda _, __: RequestParts(
        {"handler": "mailer", "finished_before": "2026-01-01T00:00:00Z"}
    ),
    "POST /v1/handlers/prune": lambda _, __: RequestParts(
        body={
            "handler": "mailer",
            "finished_before": "2026-01-01T00:00:00Z",
            "expected_count": 0,
            "reason": "old",
        }
    ),
    "POST /v1/handlers/reset": lambda _, whose: RequestParts(
        body={"handler": "mailer", "tenant_id": whose, "dry_run": True}
    ),
    "GET /v1/operations": lambda _, whose: RequestParts({"tenant_id": whose}),
    "GET /v1/tokens": lambda _, whose: RequestParts({"tenant_id": whose}),
    "POST /v1/tokens": lambda _, whose: RequestParts(body={"tenant_id": whose, "rights": ["read"]}),
    "POST /v1/tokens/revoke": lambda _, whose: RequestParts(body={"token_id": f"{whose}-token"}),
    "GET /v1/quotas": lambda _, __: RequestParts(),
    "POST /v1/quotas": lambda _, whose: RequestParts(body={"tenant_id": whose}),
    "POST /v1/quotas/remove": lambda _, whose: RequestParts(body={"tenant_id": whose}),
    "POST /v1/jobs": lambda _, whose: RequestParts(body={"kind": "verify", "projection": whose}),
    "GET /v1/jobs": lambda _, __: RequestParts(),
    "GET /v1/jobs/one": lambda _, whose: RequestParts({"id": f"{whose}-job"}),
    "GET /v1/declarations": lambda _, __: RequestParts(),
    "POST /v1/declarations": lambda _, __: RequestParts(body={"kinds": [{"name": "order"}]}),
    "GET /v1/doctor": lambda _, __: RequestParts(),
    "GET /v1/storage": lambda _, __: RequestParts(),
    "GET /v1/log/size": lambda _, __: RequestParts(),
    "POST /v1/log/epoch": lambda _, __: RequestParts(body={}),
    "POST /v1/commands/purge": lambda _, __: RequestParts(body={"older_than_hours": 24}),
}

_TIMES = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_POSITIONS = re.compile(rb'"(first_|last_|append_)?position":\d+')
_MARKS = re.compile(rb"opaque:[0-9a-f]{32}")
_TOKENS = re.compile(rb'"token":\d{16,}')  # of leases, which begin with the clock


def mask_variable_parts(text: bytes, whose: str) -> bytes:
    """Return a response without names of the caller, times, positions and hashes."""
    plain = _TIMES.sub(b"T", _TOKENS.sub(b"T", text.replace(whose.encode(), b"they")))
    return _MARKS.sub(b"M", _POSITIONS.sub(b"P", plain))
