"""Metrics in Prometheus format, of logs, services and jobs; labels are names, never ids."""

import asyncio
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import seriatim
from seriatim import Log, NewEvent, RetryPolicy
from seriatim.core.errors import BackendFailure, EventSequenceInvalid, InvalidArgument
from seriatim.core.request import ExpectedSeq
from seriatim.telemetry import metrics as metrics_module
from seriatim.telemetry.log_metrics import LogMetrics
from seriatim.telemetry.metric_families import FAMILIES
from seriatim.telemetry.metrics import (
    OTHER_LABEL,
    BoundedLabels,
    JobMetrics,
    Metrics,
    MetricsServer,
    ServiceMetrics,
)

Samples = dict[tuple[str, ...], float]


@pytest.fixture
def log() -> Iterator[Log]:
    """A log in memory."""
    with seriatim.open("memory:") as opened:
        yield opened


def samples(metrics: Metrics) -> Samples:
    """Return the parsed metrics by name and label values, ordered by label name."""
    text, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_append_and_read_metrics(log: Log) -> None:
    """M2: appends, latency, reuse and reads are counted by tenant, type and error code."""
    metrics = Metrics()
    LogMetrics(metrics).observe(log)
    other = log.for_tenant("acme")
    for _ in range(2):
        log.append([NewEvent("order.placed"), NewEvent("order.paid")], idempotency_key="k")
    other.append([NewEvent("order.placed", stream=("order", "7"))])
    with pytest.raises(EventSequenceInvalid):
        log.append([NewEvent("x", stream=("order", "1"))], ExpectedSeq(("order", "1"), 5))
    asyncio.run(log.aio.append([NewEvent("order.placed")]))
    list(log.read())

    seen = samples(metrics)
    assert seen["seriatim_appends_total", "stored", "default"] == 2
    assert seen["seriatim_appends_total", "replayed", "default"] == 1
    assert seen["seriatim_appends_total", "event_sequence_invalid", "default"] == 1
    assert seen["seriatim_appends_total", "stored", "acme"] == 1
    assert seen["seriatim_append_events_total", "order.placed", "default"] == 3
    assert seen["seriatim_append_events_total", "order.placed", "acme"] == 1
    assert seen["seriatim_append_seconds_count", "stored"] == 3
    assert seen["seriatim_append_seconds_bucket", "30.0", "stored"] == 3
    assert seen["seriatim_idempotent_reuses_total", "default"] == 1
    assert seen["seriatim_read_batches_total", "default"] == 1
    assert seen["seriatim_read_records_total", "default"] == 3
    assert seen["seriatim_read_seconds_count",] == 1


def test_head_and_lag_metrics(log: Log) -> None:
    """M2: head, growth and lag of durable subscriptions are read at each scrape."""
    metrics = Metrics()
    stop = LogMetrics(metrics).observe(log, lambda: ("default", "acme"), cache_s=0)
    assert samples(metrics)["seriatim_log_head_position",] == 0
    subscription = log.for_tenant("acme").subscribe("mailer", idle_timeout=0.01)
    log.for_tenant("acme").append([NewEvent("a") for _ in range(3)])

    seen = samples(metrics)
    assert seen["seriatim_log_up",] == 1
    assert seen["seriatim_log_head_position",] == 3
    assert seen["seriatim_log_growth_events_per_second",] > 0
    assert seen["seriatim_consumer_lag_events", "mailer", "acme"] == 3
    subscription.run(lambda _: None)
    assert samples(metrics)["seriatim_consumer_lag_events", "mailer", "acme"] == 0
    stop()
    assert ("seriatim_log_up",) not in samples(metrics)
    assert not log.telemetry.active


def test_failing_subscriptions_are_measured(log: Log) -> None:
    """M2, E5: parked subscriptions and attempts are gauges, batches skipped by policy a counter."""
    metrics = Metrics()
    LogMetrics(metrics).observe(log, cache_s=0)
    for _ in range(2):
        log.append([NewEvent("a")])

    def refuse(_: object) -> None:
        raise ValueError("refused")

    policy = RetryPolicy(attempts=2, base_s=0.0)
    log.subscribe("parking", retry=policy, idle_timeout=0.0).run(refuse)
    log.subscribe("skipping", retry=policy, on_poison="skip", idle_timeout=0.0).run(refuse)

    seen = samples(metrics)
    assert seen["seriatim_subscription_parked", "parking", "default"] == 1
    assert seen["seriatim_subscription_attempts", "parking", "default"] == 2
    assert seen["seriatim_subscription_parked", "skipping", "default"] == 0
    assert seen["seriatim_subscription_attempts", "skipping", "default"] == 0
    assert seen["seriatim_subscription_skips_total", "skipping", "default"] == 2
    assert seen["seriatim_subscription_failures_total", "skipping", "default"] == 4
    log.subscriptions.skip("parking", 1, reason="refused")
    assert samples(metrics)["seriatim_subscription_parked", "parking", "default"] == 0


def test_unreachable_log_is_reported_as_down(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """M2: an unreachable log is reported as down, and other metrics are still exported."""
    metrics = Metrics()
    LogMetrics(metrics).observe(log, cache_s=0)
    log.append([NewEvent("a")])

    def away() -> int:
        raise BackendFailure("away")

    monkeypatch.setattr(log.store, "head", away)
    seen = samples(metrics)

    assert seen["seriatim_log_up",] == 0
    assert ("seriatim_log_head_position",) not in seen
    assert seen["seriatim_appends_total", "stored", "default"] == 1


def test_scrapes_are_cached(log: Log) -> None:
    """M2: the head is read at most once within the cache time."""
    metrics = Metrics()
    LogMetrics(metrics).observe(log, cache_s=60)
    samples(metrics)
    log.append([NewEvent("a")])

    assert samples(metrics)["seriatim_log_head_position",] == 0


def test_labels_are_bounded(log: Log) -> None:
    """M2: a bounded number of tenants and types have labels of their own."""
    metrics = Metrics()
    LogMetrics(metrics, names_max=3).observe(log)
    for number in range(10):
        view = log.for_tenant(f"t{number}")
        view.append([NewEvent(f"type.{number}")])
        log.for_tenant("t0").append([NewEvent(f"more.{number}")])

    seen = samples(metrics)
    appends = {key: value for key, value in seen.items() if key[0] == "seriatim_appends_total"}
    assert {key[2] for key in appends} == {"t0", "t1", "t2", OTHER_LABEL}
    assert sum(appends.values()) == 20
    types = {key: value for key, value in seen.items() if key[0] == "seriatim_append_events_total"}
    assert len(types) <= 3 + 4
    assert sum(types.values()) == 20


def test_bounded_labels_keep_the_first_names() -> None:
    """M2: a name that has a label keeps it; names over the bound share one."""
    names = BoundedLabels(2)

    assert [names.bound(one) for one in ("a", "b", "c", "a", "b")] == [
        "a",
        "b",
        OTHER_LABEL,
        "a",
        "b",
    ]


def test_metrics_contain_no_ids(log: Log) -> None:
    """M2: metrics contain no payloads, ids, keys, streams, actors or tags."""
    metrics = Metrics()
    LogMetrics(metrics).observe(log, cache_s=0)
    event = NewEvent(
        "order.placed",
        {"secretly": "PRIVATE"},
        stream=("order", "PRIVATE"),
        event_id="PRIVATE",
        producer_id="PRIVATE",
        request_id="PRIVATE",
        correlation_id="PRIVATE",
        actor_id="PRIVATE",
        metadata={"traceparent": "PRIVATE"},
        tags=("PRIVATE",),
    )
    for _ in range(2):
        log.append([event], idempotency_key="PRIVATE")
    with pytest.raises(seriatim.SeriatimError):
        log.append([NewEvent("PRIVATE", {"password": "sk-PRIVATE"}, event_id="PRIVATE" * 99)])
    list(log.read())
    log.query()

    assert b"PRIVATE" not in metrics.render()[0]


def test_failing_metrics_do_not_affect_appends(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """M2: an append succeeds although its metrics cannot be counted."""
    counting = LogMetrics(Metrics())
    counting.observe(log)
    counting._appends = None

    assert log.append([NewEvent("a")]).first_position == 1
    assert "a telemetry listener failed" in caplog.text


def test_service_metrics() -> None:
    """M2: requests, bytes, tails and quota refusals of a service are counted."""
    metrics = Metrics()
    service = ServiceMetrics(metrics)
    service.count_request("/v1/events", "POST", 201, 0.02, received=100, sent=10)
    service.count_request("/v1/events", "POST", 409, 0.01)
    service.count_request("/v1/events", "BREW", 405, 0.01)
    service.count_quota_refusal("acme")
    with service.track_tail():
        assert samples(metrics)["seriatim_http_open_tails",] == 1

    seen = samples(metrics)
    assert seen["seriatim_http_requests_total", "POST", "/v1/events", "2xx"] == 1
    assert seen["seriatim_http_requests_total", "POST", "/v1/events", "4xx"] == 1
    assert seen["seriatim_http_requests_total", OTHER_LABEL, "/v1/events", "4xx"] == 1
    assert seen["seriatim_http_request_seconds_count", "/v1/events"] == 3
    assert seen["seriatim_http_received_bytes_total", "/v1/events"] == 100
    assert seen["seriatim_http_sent_bytes_total", "/v1/events"] == 10
    assert seen["seriatim_http_quota_refusals_total", "acme"] == 1
    assert seen["seriatim_http_open_tails",] == 0


def test_job_metrics() -> None:
    """M2: jobs, outcomes and registry states are exported over HTTP."""
    metrics = Metrics()
    jobs = JobMetrics(metrics)
    jobs.set_progress("publisher", 7, 3, 1.5)
    jobs.set_outcomes("mailer", {"done": 2})
    jobs.set_registry("mailer", {"dead": 1}, unavailable=False)
    jobs.set_registry("biller", {}, unavailable=True)
    shown = MetricsServer(metrics, "127.0.0.1:0")
    connection = HTTPConnection("127.0.0.1", shown.port)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    shown.close()

    assert 'seriatim_job_lag_events{job="publisher"} 3.0' in text
    assert 'seriatim_job_events{job="mailer",outcome="done"} 2.0' in text
    assert 'seriatim_registry_events{handler="mailer",status="dead"} 1.0' in text
    assert 'seriatim_registry_outage{handler="biller"} 1.0' in text


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:99999", "256.0.0.1:0"])
def test_an_invalid_address_is_refused(address: str) -> None:
    """M2: a metrics server with an unusable address is refused."""
    with pytest.raises((InvalidArgument, OSError)):
        MetricsServer(Metrics(), address)


def test_names_and_labels_of_metrics() -> None:
    """M2: names of metrics are unique and prefixed, and labels contain no ids."""
    names = [family.name for family in FAMILIES]
    labels = {label for family in FAMILIES for label in family.labels}

    assert len(set(names)) == len(names) >= 26
    assert all(name.startswith("seriatim_") for name in names)
    assert labels == {
        "limit",
        "tenant",
        "outcome",
        "event_type",
        "projection",
        "consumer",
        "route",
        "method",
        "status",
        "job",
        "handler",
    }


@pytest.mark.parametrize("version", ["abc", "", "1.0.x", "2.x", "1..0", "9" * 5000, "1.0.0 x", "²"])
@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
def test_an_invalid_version_gets_the_plain_format(kind: str, version: str) -> None:
    """M2: an invalid version in Accept gets the plain text format."""
    plain = Metrics().render()[1]

    assert Metrics().render(f"{kind}; version={version}")[1] == plain
    assert Metrics().render(f"text/html, {kind}; version={version}; q=0.5")[1] == plain


def test_openmetrics_on_request() -> None:
    """M2: OpenMetrics is returned if Accept requests it."""
    accept = "application/openmetrics-text; version=1.0.0; charset=utf-8, text/plain; q=0.5"

    assert Metrics().render(accept)[1].startswith("application/openmetrics-text; version=1.0.0")


def test_an_empty_file_of_another_process(tmp_path: Path) -> None:
    """M2: an empty metrics file of another process is ignored."""
    (tmp_path / "counter_1.db").touch()
    shared = metrics_module._MultiprocessCollector(metrics_module._client(), tmp_path)

    assert list(shared.collect()) == []
