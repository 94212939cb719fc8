"""Metrics of the lag of consumers and projections of every tenant."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from seriatim.store.port import Cursor
from tests.fixtures.service import RunningService
from tests.service.http_calls import Caller, make_caller, make_event


def lags(operator: Caller) -> dict[tuple[str, str], float]:
    """Return the lag of every consumer, by its tenant and name."""
    text = operator("GET", "/metrics").body.decode()
    return {
        (sample.labels["tenant"], sample.labels["consumer"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "seriatim_consumer_lag_events"
    }


def test_lag_metrics_cover_all_tenants(service: RunningService) -> None:
    """M2: the metrics contain the lag of consumers of every tenant."""
    store, identity = service.service.log.store, service.service.log.identity()
    head = 0
    for tenant in ("default", "acme", "zeta"):
        response = make_caller(service, tenant_id=tenant).append(make_event(), make_event())
        head = response.json["last_position"]
        cursor = Cursor(
            tenant_id=tenant,
            purpose="subscription",
            name=f"mailer-{tenant}",
            position=1,
            log_id=identity.log_id,
            epoch=identity.epoch,
        )
        store.put_cursor(cursor, lease=None, reset=False)

    assert lags(make_caller(service)) == {
        (tenant, f"mailer-{tenant}"): head - 1 for tenant in ("default", "acme", "zeta")
    }
    assert service.service.store.tenants(2) == ["acme", "default"]
