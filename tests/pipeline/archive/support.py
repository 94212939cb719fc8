"""Helpers that fill logs with events of every shape."""

from contextlib import closing
from typing import Any

import seriatim
from seriatim import NewEvent
from seriatim.core.event import EventRecord
from seriatim.core.indexes import PayloadIndex
from seriatim.core.kinds import EventType, StreamKind
from seriatim.log.batches import iterate_pages
from seriatim.store.port import ReadSpec
from seriatim.testing.factories import trace


def fill(url: str, events: int, *, tenant_id: str = "default") -> None:
    """Append events to some streams in batches."""
    with closing(seriatim.open(url, tenant_id=tenant_id)) as log:
        for start in range(0, events, 500):
            size = min(500, events - start)
            log.append(
                [NewEvent("noted", {"n": start + n}, stream=("s", f"{n % 7}")) for n in range(size)]
            )


def fill_every_shape(url: str) -> int:
    """Append events of every shape that a record can have, and return the head."""
    with closing(seriatim.open(url)) as log:
        log.append([NewEvent("first", {"n": 1}), NewEvent("first", {"n": 2}, tags=("a", "b"))])
        # Streams older than the declaration of their kind, and streams numbered from 0.
        log.append(
            [NewEvent("opened", stream=("case", "old")), NewEvent("x", stream=("case", "old"))]
        )
        log.declare(
            EventType(event_type="opened", kind="case"),
            EventType(event_type="x", kind="case"),
            StreamKind(name="case", first_seq=0, catalogue="closed"),
        )
        log.append(
            [NewEvent("x", stream=("case", "old")), NewEvent("opened", stream=("case", "new"))]
        )
        log.append([NewEvent("seat", {"seat": "1A"})])
        log.declare(PayloadIndex("seat", "seat"))
        log.append([NewEvent("seat", {"seat": "1A"}, tags=("ü", "b"))], idempotency_key="k-1")
        log.append(
            [
                NewEvent(
                    "full",
                    {"text": "Ünïcödé ｆoo \x1f", "big": 10**30, "f": 1.5, "none": None},
                    stream=("order", "fo:o"),
                    event_id="not-a-uuid",
                    event_version=3,
                    occurred_at="2025-01-01T00:00:00.1234567+02:00",
                    producer_id="p",
                    source_system="",
                    source_subsystem="sub",
                    actor_type="user",
                    actor_id="u-1",
                    request_id="r",
                    correlation_id="c",
                    causation_id="ca",
                    idempotency_key="k-2",
                    app_id="app",
                    env_id="env",
                    metadata={"b": "2", "a": "1", "empty": ""},
                    tags=("x", "y", "x"),
                )
            ]
        )
        for one in trace("t-1"):
            log.append([one])
        log.append([NewEvent("theirs", {"n": n}) for n in range(3)])
    with closing(seriatim.open(url, tenant_id="other")) as log:
        log.append([NewEvent("theirs", {"n": n}, stream=("s", "1")) for n in range(3)])
        _command(log)
        return log.store.head()


def _command(log: seriatim.Log) -> None:
    """Append two events with one key, as commands on aggregates do (C7)."""
    seat = ("seat", "1")
    common: Any = {
        "request_id": "r-1",
        "actor_type": "user",
        "actor_id": "u",
        "idempotency_key": "cmd",
    }
    log.aggregates.append(
        [NewEvent("taken", stream=seat, **common), NewEvent("left", stream=seat, **common)]
    )


def records(url: str) -> list[EventRecord]:
    """Return every record of a log."""
    with closing(seriatim.open(url, create=False)) as log:
        return [
            one
            for page in iterate_pages(log.store, ReadSpec(tenant_id=None, limit=5000))
            for one in page
        ]


def head(url: str) -> int:
    """Return a log's head."""
    with closing(seriatim.open(url, create=False)) as log:
        return log.store.head()
