"""Raises every documented error, for the examples of the reference."""

from collections.abc import Callable
from typing import Any

import psycopg

import seriatim
from seriatim import (
    Command,
    ExpectedContext,
    ExpectedSeq,
    Filter,
    Limits,
    NewEvent,
    Query,
    SeriatimError,
    Settings,
    StreamKind,
)
from seriatim.access.quotas import Quota, QuotaMeter
from seriatim.access.rights import Caller
from seriatim.access.tokens import invalid_token_error
from seriatim.api.hub import identity_changed_error
from seriatim.core.errors import ProjectionFailed, ProjectionOutOfDate, TimedOut
from seriatim.factory import Log
from seriatim.log.projections import _lag_error, wait_timeout_error
from seriatim.store.port import Cursor, Lease
from seriatim.store.postgres.failures import translate_error
from seriatim.store.readmodel.port import Progress

BEHIND = "projection seats has reached 40, not 41"
STREAM = ("show", "s-1")
SEAT = Query([Filter(tags=["seat:12A"])])
SEEN = Progress(
    name="seats",
    shadow=False,
    tenant_id="default",
    declaration="",
    position=40,
    log_id="",
    epoch=1,
    last_event_id="",
    status="ready",
    updated_at="",
    owner="",
    token=0,
)


def _event(event_type: str = "seat.reserved", **more: Any) -> NewEvent:
    return NewEvent(event_type, more.pop("payload", {"seat": "12A"}), **more)


def _late(log: Log, condition: Any) -> None:
    for _ in range(4):
        log.append([_event(stream=STREAM, tags=("seat:12A",))])
    log.append([_event(stream=STREAM, tags=("seat:12A",))], condition)


def _twice(log: Log) -> None:
    log.append([_event()], idempotency_key="order-7")
    log.append([_event(payload={"seat": "12B"})], idempotency_key="order-7")


def _other_command(log: Log) -> None:
    for seat in ("12A", "12B"):
        command = Command(
            actor="shop", endpoint="POST /v1/events", key="order-7", request={"seat": seat}
        )
        log.append([_event()], command=command)


def _declared_twice(log: Log) -> None:
    log.declare(StreamKind(name="show"))
    log.declare(StreamKind(name="show", first_seq=0))


def _lost_lease(log: Log) -> None:
    log.store.claim_lease("default", "mailer", "b", 10.0)
    cursor = Cursor(
        tenant_id="default", purpose="subscription", name="mailer", position=0, log_id="", epoch=1
    )
    log.store.put_cursor(cursor, lease=Lease("default", "mailer", 0), reset=False)


def _over_quota() -> None:
    meter = QuotaMeter(Quota(tenant_id="*", events_per_s=100))
    for _ in range(2):
        meter.charge("acme", 300, 0, 0.0)


def _raise(error: SeriatimError) -> None:
    raise error


_TRACE: dict[str, Any] = {
    "event_id": "e-1",
    "trace_id": "t-1",
    "trace_seq": 0,
    "occurred_at": "2024-05-01T10:00:00Z",
    "idempotency_key": "t-1/0",
    "source": {"producer_id": "deal-desk", "system": "crm"},
    "actor": {"actor_type": "agent", "actor_id": "a-1"},
}

ACTS: list[Callable[[Log], Any]] = [
    lambda log: log.append([]),
    lambda log: log.page(limit=0),
    lambda log: log.append([NewEvent("seat reserved\n", {})]),
    lambda _: Query.from_mapping({"filters": 3}),
    lambda _: _raise(invalid_token_error()),
    lambda _: Caller(subject="shop", rights=frozenset({"read"})).require("append"),
    lambda log: log.event("e-1"),
    _twice,
    lambda log: _late(log, ExpectedSeq(STREAM, 3)),
    lambda log: _late(log, ExpectedContext(SEAT, 3)),
    _declared_twice,
    _other_command,
    _lost_lease,
    lambda _: _raise(identity_changed_error(900)),
    lambda _: _raise(
        ProjectionFailed(details={"projection": "seats", "position": 7, "reason": "KeyError"})
    ),
    lambda _: _raise(_lag_error(ProjectionOutOfDate, BEHIND, SEEN, 41)),
    lambda log: log.append([_event(payload={"text": "x" * 2000})]),
    lambda _: _over_quota(),
    lambda log: log.traces.append_event({"event_type": "TraceStarted", **_TRACE, "payload": {}}),
    lambda log: log.append([_event(payload={"key": "AKIA" + "ABCDEFGHIJKLMNOP"})]),
    lambda _: _raise(translate_error(psycopg.OperationalError(), "appending", sent=True)),
    lambda _: _raise(wait_timeout_error(SEEN, 41, 10)),
    lambda _: _raise(TimedOut()),
]


def raise_documented_errors() -> list[SeriatimError]:
    """Return an instance of each error as the code raises it."""
    found = []
    for act in ACTS:
        with seriatim.open("memory:", settings=Settings(limits=Limits(payload_bytes=1000))) as log:
            try:
                act(log)
            except SeriatimError as error:
                found.append(error)
            else:
                raise AssertionError(act)
    return found
