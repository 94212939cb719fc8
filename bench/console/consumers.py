"""The consumers of a generated log: a projection and a handler with failures, and subscriptions."""

from contextlib import closing
from typing import Any

import seriatim
from bench.console.rows import RARE_TYPE, event_id_at
from seriatim.core.canonical import canonical_text
from seriatim.core.event import DEFAULT_TENANT, EventRecord
from seriatim.core.fold import Failure
from seriatim.core.handler import Delivery, handler
from seriatim.core.projection import projection
from seriatim.factory import open_read_model, open_registry, read_model_url, registry_url
from seriatim.store.port import Cursor
from seriatim.store.readmodel.port import ProjectionStep

PROJECTION, HANDLER = "order_totals", "mailer"
LAG = 1000  # events after the cursors
FAILURES_MAX = 500  # of the projection
DEAD_MAX = 2000  # dead letters of the handler
_SHARE = 50  # one failure for so many events, in small logs
_HANDLER_BATCH = 500


@projection(PROJECTION, key="stream_id", columns={"events": int})
def order_totals(state: dict[str, Any] | None, _event: EventRecord) -> dict[str, Any]:
    """Count the events of an order."""
    return {"events": (state["events"] if state else 0) + 1}


mailer = handler(HANDLER, effect="keyed", events=["page.*"])(lambda _event, _context: None)


def add_consumers(url: str) -> None:
    """Add a projection with failures, a handler with dead letters, and lagging subscriptions."""
    with seriatim.open(url) as log:
        _add_projection(log, url)
        _add_handler(log, url)
        for name, query in (("all", seriatim.Query()), ("rare", _of_type(RARE_TYPE))):
            _add_subscription(log, name, query)


def _of_type(name: str) -> seriatim.Query:
    return seriatim.Query([seriatim.Filter(types=[name])])


def _add_projection(log: seriatim.Log, url: str) -> None:
    head = log.head()
    until = max(1, head - LAG)
    failures = [
        Failure(
            tenant_id=DEFAULT_TENANT,
            key=f"o-{number:08d}",
            position=number + 1,
            event_id=event_id_at(number + 1),
            event_type="order.placed",
            reason="ValueError: the amount is missing",
        )
        for number in range(min(FAILURES_MAX, head // _SHARE))
    ]
    step = ProjectionStep(
        after=0,
        until=until,
        last_event_id=event_id_at(until),
        failures=[(failure, "parked") for failure in failures],
    )
    with closing(open_read_model(read_model_url(url))) as model:
        model.create_projection(order_totals, DEFAULT_TENANT, log.identity())
        token = model.claim(PROJECTION, "bench", 1.0)
        assert token is not None
        model.commit(order_totals, step, token=token)


def _add_handler(log: seriatim.Log, url: str) -> None:
    with closing(open_registry(registry_url(url))) as registry:
        registry.declare(mailer)
        wanted = min(DEAD_MAX, log.head() // _SHARE)
        for page in log.read_batches(types=["page.*"], limit=2 * wanted, batch_size=_HANDLER_BATCH):
            deliveries = [Delivery.of(event, log=log.identity()) for event in page]
            claims = registry.claim_all(mailer, deliveries)
            registry.mark_done(mailer, claims[::2])
            for claim in claims[1::2]:
                registry.mark_failed(mailer, claim, "ConnectionError: the mail server is down")


def _add_subscription(log: seriatim.Log, name: str, query: seriatim.Query) -> None:
    identity, position = log.identity(), max(1, log.head() - LAG)
    cursor = Cursor(
        tenant_id=DEFAULT_TENANT,
        purpose="subscription",
        name=name,
        position=position,
        log_id=identity.log_id,
        epoch=identity.epoch,
        last_event_id=event_id_at(position),
        query=canonical_text(query.as_dict()),
    )
    log.store.put_cursor(cursor, lease=None, reset=False)
