"""Every metric by its name, its labels and what it says: labels are names, never ids."""

from __future__ import annotations

from typing import Literal

import msgspec

# From half a millisecond, a lone append in memory, to the longest that an append may wait.
SECONDS = (
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


class Family(msgspec.Struct, frozen=True):
    """One metric; a histogram counts seconds in the buckets above."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    says: str
    labels: tuple[str, ...] = ()


# -- what a log tells as it happens

APPENDS = Family(
    "seriatim_appends_total",
    "counter",
    "Appends: stored, replayed, or the code of the error.",
    ("tenant", "outcome"),
)
APPEND_EVENTS = Family(
    "seriatim_append_events_total",
    "counter",
    "Events that were stored, by the type of the first in their append.",
    ("tenant", "event_type"),
)
APPEND_SECONDS = Family(
    "seriatim_append_seconds", "histogram", "How long appends took.", ("outcome",)
)
REUSES = Family(
    "seriatim_idempotent_reuses_total",
    "counter",
    "Appends that were answered with what was stored before.",
    ("tenant",),
)
READ_BATCHES = Family(
    "seriatim_read_batches_total", "counter", "Pages and batches that were read.", ("tenant",)
)
READ_RECORDS = Family(
    "seriatim_read_records_total", "counter", "Records that were read.", ("tenant",)
)
SUBSCRIPTION_FAILURES = Family(
    "seriatim_subscription_failures_total",
    "counter",
    "Failed attempts of durable subscriptions.",
    ("tenant", "consumer"),
)
READ_SECONDS = Family("seriatim_read_seconds", "histogram", "How long pages and batches took.")

# -- what a log is asked when somebody looks

LOG_UP = Family("seriatim_log_up", "gauge", "1 if the log could be asked, else 0.")
LOG_HEAD = Family("seriatim_log_head_position", "gauge", "The last position: the log's size.")
LOG_GROWTH = Family(
    "seriatim_log_growth_events_per_second",
    "gauge",
    "How fast it grew within the last minute, whoever appended.",
)
PROJECTION_LAG = Family(
    "seriatim_projection_lag_events",
    "gauge",
    "Positions that a projection has not passed.",
    ("tenant", "projection"),
)
PROJECTION_FAILURES = Family(
    "seriatim_projection_failures",
    "gauge",
    "Events that a projection could not take.",
    ("tenant", "projection"),
)
PROJECTION_RUNNING = Family(
    "seriatim_projection_running",
    "gauge",
    "1 while somebody runs it.",
    ("tenant", "projection"),
)
CONSUMER_LAG = Family(
    "seriatim_consumer_lag_events",
    "gauge",
    "Positions that a durable subscription has not passed.",
    ("tenant", "consumer"),
)

# -- what the service counts

HTTP_REQUESTS = Family(
    "seriatim_http_requests_total",
    "counter",
    "Requests by their route and the class of their status, such as 2xx.",
    ("route", "method", "status"),
)
HTTP_SECONDS = Family(
    "seriatim_http_request_seconds", "histogram", "How long requests took.", ("route",)
)
HTTP_TAILS = Family("seriatim_http_open_tails", "gauge", "Tails that are open now.")
HTTP_REFUSALS = Family(
    "seriatim_http_quota_refusals_total",
    "counter",
    "Requests that a quota refused.",
    ("tenant",),
)
HTTP_BOUNDS = Family(
    "seriatim_http_bounds_met_total",
    "counter",
    "Requests, tails and connections that met a bound, by its name.",
    ("limit", "tenant"),
)
HTTP_RECEIVED = Family(
    "seriatim_http_received_bytes_total", "counter", "Bytes of request bodies.", ("route",)
)
HTTP_SENT = Family(
    "seriatim_http_sent_bytes_total", "counter", "Bytes of response bodies.", ("route",)
)

# -- what jobs tell

JOB_POSITION = Family("seriatim_job_position", "gauge", "How far a job has come.", ("job",))
JOB_LAG = Family("seriatim_job_lag_events", "gauge", "How many events are still to come.", ("job",))
JOB_PACE = Family("seriatim_job_events_per_second", "gauge", "Its pace since it began.", ("job",))
JOB_EVENTS = Family("seriatim_job_events", "gauge", "What became of events.", ("job", "outcome"))
REGISTRY_EVENTS = Family(
    "seriatim_registry_events", "gauge", "What is open.", ("handler", "status")
)
REGISTRY_OUTAGE = Family(
    "seriatim_registry_outage", "gauge", "1 while the registry is away.", ("handler",)
)

FAMILIES: tuple[Family, ...] = tuple(
    one for one in list(globals().values()) if isinstance(one, Family)
)
