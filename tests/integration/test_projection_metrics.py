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


def projection_samples(metrics: Metrics) -> dict[str, float]:
    """Return the metrics of the projection."""
    text = metrics.render()[0].decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels == {"tenant": "default", "projection": "seats"}
    }


def test_projection_metrics(url: str) -> None:
    """M2: metrics have lag, failures and running state of the log's projections."""
    metrics = Metrics()
    with seriatim.open(url) as log:
        LogMetrics(metrics).observe(log, cache_s=0)
        log.append([NewEvent("seat.taken", {"n": n}) for n in range(5)])
        assert projection_samples(metrics) == {}
        with closing(open_read_model(read_model_url(url))) as model:
            model.create_projection(seats, "default", log.identity())
            token = model.claim("seats", "runner", 60)
            assert token is not None
            step = make_step(0, 2, state_rows=seat_rows({"1a": 2}, 2))
            step.last_event_id = log.store.event_id_at(2) or ""
            model.commit(seats, step, token=token)

            assert projection_samples(metrics) == {
                "seriatim_projection_lag_events": 3,
                "seriatim_projection_failures": 0,
                "seriatim_projection_running": 1,
            }
