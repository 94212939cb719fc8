"""All metrics by name, type, help text and labels; label values are names, never ids."""

from __future__ import annotations

from typing import Literal

import msgspec

# From half a millisecond, a single append in memory, to the default timeout of an append.
DURATION_BUCKETS_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
)


class MetricFamily(msgspec.Struct, frozen=True):
    """One metric; histograms measure seconds in the buckets above."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


# -- counted as events happen in a log

APPENDS = MetricFamily(
    "seriatim_appends_total",
    "counter",
    "Appends by outcome: stored, replayed, or an error code.",
    ("tenant", "outcome"),
)
APPEND_EVENTS = MetricFamily(
    "seriatim_append_events_total",
    "counter",
    "Stored events, by the type of the first event of their append.",
    ("tenant", "event_type"),
)
APPEND_SECONDS = MetricFamily(
    "seriatim_append_seconds", "histogram", "Duration of appends.", ("outcome",)
)
REUSES = MetricFamily(
    "seriatim_idempotent_reuses_total",
    "counter",
    "Appends that returned the receipt of an earlier append.",
    ("tenant",),
)
READ_BATCHES = MetricFamily(
    "seriatim_read_batches_total", "counter", "Pages and batches read.", ("tenant",)
)
READ_RECORDS = MetricFamily("seriatim_read_records_total", "counter", "Records read.", ("tenant",))
SUBSCRIPTION_FAILURES = MetricFamily(
    "seriatim_subscription_failures_total",
    "counter",
    "Failed attempts of durable subscriptions.",
    ("tenant", "consumer"),
)
SUBSCRIPTION_SKIPS = MetricFamily(
    "seriatim_subscription_skips_total",
    "counter",
    "Batches that durable subscriptions skipped by their policy.",
    ("tenant", "consumer"),
)
READ_SECONDS = MetricFamily(
    "seriatim_read_seconds", "histogram", "Duration of reading a page or batch."
)

# -- read from a log on each scrape

LOG_UP = MetricFamily("seriatim_log_up", "gauge", "1 if the log can be read, else 0.")
LOG_HEAD = MetricFamily("seriatim_log_head_position", "gauge", "The last position of the log.")
LOG_GROWTH = MetricFamily(
    "seriatim_log_growth_events_per_second",
    "gauge",
    "Events appended per second in the last minute, by all processes.",
)
PROJECTION_LAG = MetricFamily(
    "seriatim_projection_lag_events",
    "gauge",
    "Positions between a projection's cursor and the head.",
    ("tenant", "projection"),
)
PROJECTION_FAILURES = MetricFamily(
    "seriatim_projection_failures",
    "gauge",
    "Events that a projection could not process.",
    ("tenant", "projection"),
)
PROJECTION_RUNNING = MetricFamily(
    "seriatim_projection_running",
    "gauge",
    "1 while a process runs the projection.",
    ("tenant", "projection"),
)
CONSUMER_LAG = MetricFamily(
    "seriatim_consumer_lag_events",
    "gauge",
    "Positions between a subscription's cursor and the head.",
    ("tenant", "consumer"),
)
SUBSCRIPTION_PARKED = MetricFamily(
    "seriatim_subscription_parked",
    "gauge",
    "1 while a subscription waits for an operator.",
    ("tenant", "consumer"),
)
SUBSCRIPTION_ATTEMPTS = MetricFamily(
    "seriatim_subscription_attempts",
    "gauge",
    "Attempts at the batch after a subscription's cursor.",
    ("tenant", "consumer"),
)

# -- counted by the service

HTTP_REQUESTS = MetricFamily(
    "seriatim_http_requests_total",
    "counter",
    "Requests by route, method and status class, such as 2xx.",
    ("route", "method", "status"),
)
HTTP_SECONDS = MetricFamily(
    "seriatim_http_request_seconds", "histogram", "Duration of requests.", ("route",)
)
HTTP_TAILS = MetricFamily("seriatim_http_open_tails", "gauge", "Open tails.")
HTTP_REFUSALS = MetricFamily(
    "seriatim_http_quota_refusals_total",
    "counter",
    "Requests refused because of a quota.",
    ("tenant",),
)
HTTP_BOUNDS = MetricFamily(
    "seriatim_http_bounds_met_total",
    "counter",
    "Requests, tails and connections that reached a limit, by limit.",
    ("limit", "tenant"),
)
HTTP_RECEIVED = MetricFamily(
    "seriatim_http_received_bytes_total", "counter", "Bytes of request bodies received.", ("route",)
)
HTTP_SENT = MetricFamily(
    "seriatim_http_sent_bytes_total", "counter", "Bytes of response bodies sent.", ("route",)
)

# -- reported by jobs

JOB_POSITION = MetricFamily(
    "seriatim_job_position", "gauge", "The position that a job has reached.", ("job",)
)
JOB_LAG = MetricFamily(
    "seriatim_job_lag_events", "gauge", "Events that a job has not processed yet.", ("job",)
)
JOB_PACE = MetricFamily(
    "seriatim_job_events_per_second",
    "gauge",
    "Events per second since the job started.",
    ("job",),
)
JOB_EVENTS = MetricFamily(
    "seriatim_job_events", "gauge", "Events of a job by outcome.", ("job", "outcome")
)
REGISTRY_EVENTS = MetricFamily(
    "seriatim_registry_events",
    "gauge",
    "Unfinished events of a handler by status.",
    ("handler", "status"),
)
REGISTRY_OUTAGE = MetricFamily(
    "seriatim_registry_outage",
    "gauge",
    "1 while the registry is unavailable.",
    ("handler",),
)

FAMILIES: tuple[MetricFamily, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, MetricFamily)
)
