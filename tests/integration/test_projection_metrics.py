"""Metrics of the progress of projections."""

from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import seriatim
from seriatim import NewEvent
from seriatim.factory import open_read_model, read_model_url
from seriatim.telemetry.log_metrics import LogMetrics
from seriatim.telemetry.metrics import Metrics
from tests.integration.readmodel_support import make_step, seat_rows, seats


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a log."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


def shown(metrics: Metrics) -> dict[str, float]:
    """Return what is said of projections, parsed."""
    text = metrics.render()[0].decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels == {"tenant": "default", "projection": "seats"}
    }


def test_projection_lag(url: str) -> None:
    """M2: lag, failures and running state of the log's projections."""
    metrics = Metrics()
    with seriatim.open(url) as log:
        LogMetrics(metrics).observe(log, cache_s=0)
        log.append([NewEvent("seat.taken", {"n": n}) for n in range(5)])
        assert shown(metrics) == {}
        with closing(open_read_model(read_model_url(url))) as model:
            model.create_projection(seats, "default", log.identity())
            token = model.claim("seats", "runner", 60)
            assert token is not None
            step = make_step(0, 2, state_rows=seat_rows({"1a": 2}, 2))
            step.last_event_id = log.store.event_id_at(2) or ""
            model.commit(seats, step, token=token)

            assert shown(metrics) == {
                "seriatim_projection_lag_events": 3,
                "seriatim_projection_failures": 0,
                "seriatim_projection_running": 1,
            }
