"""The settings of consumers and of the publisher, and their environment variables."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from seriatim.core.errors import InvalidArgument

logger = logging.getLogger("seriatim")

OnOutage = Literal["pause", "fail_fast", "dlq"]

_LONGEST_S = 366 * 86_400.0


class RegistrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the processed-event registry.

    Attributes:
        lease_s: How long a claim is valid without a heartbeat, in seconds.
        heartbeat_s: The interval of heartbeats, in seconds; shorter than the lease.
        owner: The name of this consumer; None for one made of host and process.
        enabled: Whether the registry is used.
        on_outage: What a consumer does while the registry is unavailable: `pause`, `fail_fast` or
            `dlq`.
    """

    lease_s: float = 900.0
    heartbeat_s: float = 30.0
    owner: str | None = None
    enabled: bool = True
    on_outage: OnOutage = "pause"

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for invalid values."""
        if not 0 < self.lease_s <= _LONGEST_S:
            raise _setting_error("lease_s", f"must be above 0 and at most {_LONGEST_S:g}")
        if not 0 < self.heartbeat_s < self.lease_s:
            msg = (
                f"heartbeat_s must be above 0 and shorter than lease_s, got {self.heartbeat_s:g} "
                f"for a lease of {self.lease_s:g}"
            )
            raise InvalidArgument(msg, details={"argument": "heartbeat_s"})
        if self.on_outage not in ("pause", "fail_fast", "dlq"):
            msg = "on_outage must be one of pause, fail_fast, dlq"
            raise InvalidArgument(msg, details={"argument": "on_outage"})


class PublisherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the publisher.

    Attributes:
        batch_size: The number of events that a task reads at a time.
        flush_batch_size: The number of messages between two flushes; None for `batch_size`.
        flush_timeout_s: The timeout of a flush, in seconds.
        lookback_s: How far back in time a step reads before it continues, in seconds. It is off by
            default, because a gapless log has no late events.
        lookback_max_keys: The maximum number of events of a lookback.
        dedup_max_events: The number of sent event ids kept in memory; a lookback skips them.
        dedup_checkpoint_max_events: How many of these ids a checkpoint stores.
        metrics_log_interval_s: The interval of logged metrics, in seconds.
        step_events: The maximum number of events between two checkpoints.
    """

    batch_size: int = 200
    flush_batch_size: int | None = None
    flush_timeout_s: float = 10.0
    lookback_s: float = 0.0
    lookback_max_keys: int = 50
    dedup_max_events: int = 10_000
    dedup_checkpoint_max_events: int = 2_000
    metrics_log_interval_s: float = 30.0
    step_events: int = 200_000

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for values out of range."""
        for name in ("batch_size", "step_events"):
            _check_minimum(name, getattr(self, name), 1)
        if self.flush_batch_size is not None:
            _check_minimum("flush_batch_size", self.flush_batch_size, 1)
        for name in ("lookback_max_keys", "dedup_max_events", "dedup_checkpoint_max_events"):
            _check_minimum(name, getattr(self, name), 0)
        for name in ("flush_timeout_s", "metrics_log_interval_s"):
            if not 0 < getattr(self, name) <= _LONGEST_S:
                raise _setting_error(name, f"must be above 0 and at most {_LONGEST_S:g}")
        if not 0 <= self.lookback_s <= _LONGEST_S:
            raise _setting_error("lookback_s", f"must be from 0 to {_LONGEST_S:g}")


def _check_minimum(name: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise _setting_error(name, f"must be a whole number from {minimum}")


def _setting_error(name: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{name} {problem}", details={"argument": name})


class RetryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The number of attempts of each kind of worker before an event becomes a dead letter."""

    instance_worker: int = 5
    ontology_worker: int = 5
    projection_worker: int = 5


def _parse_flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise ValueError(text)
    return text.lower() in ("true", "1", "yes", "on")


_Reader = Callable[[str], Any]
_REGISTRY: dict[str, tuple[str, _Reader]] = {
    "ENABLE_PROCESSED_EVENT_REGISTRY": ("enabled", _parse_flag),
    "PROCESSED_EVENT_LEASE_TIMEOUT_SECONDS": ("lease_s", float),
    "PROCESSED_EVENT_HEARTBEAT_INTERVAL_SECONDS": ("heartbeat_s", float),
    "PROCESSED_EVENT_OWNER": ("owner", str),
}
_RETRIES: dict[str, tuple[str, _Reader]] = {
    "INSTANCE_WORKER_MAX_RETRY_ATTEMPTS": ("instance_worker", int),
    "ONTOLOGY_WORKER_MAX_RETRY_ATTEMPTS": ("ontology_worker", int),
    "PROJECTION_WORKER_MAX_RETRIES": ("projection_worker", int),
}
_PUBLISHER: dict[str, tuple[str, _Reader]] = {
    "EVENT_PUBLISHER_LOOKBACK_SECONDS": ("lookback_s", float),
    "EVENT_PUBLISHER_LOOKBACK_MAX_KEYS": ("lookback_max_keys", int),
    "EVENT_PUBLISHER_DEDUP_MAX_EVENTS": ("dedup_max_events", int),
    "EVENT_PUBLISHER_DEDUP_CHECKPOINT_MAX_EVENTS": ("dedup_checkpoint_max_events", int),
    "EVENT_PUBLISHER_BATCH_SIZE": ("batch_size", int),
    "EVENT_PUBLISHER_KAFKA_FLUSH_BATCH_SIZE": ("flush_batch_size", int),
    "EVENT_PUBLISHER_KAFKA_FLUSH_TIMEOUT_SECONDS": ("flush_timeout_s", float),
    "EVENT_PUBLISHER_METRICS_LOG_INTERVAL_SECONDS": ("metrics_log_interval_s", float),
}
ALLOCATOR_VARIABLE = "EVENT_STORE_SEQUENCE_ALLOCATOR_MODE"
IGNORED_VARIABLES = ("EVENT_STORE_SEQUENCE_SCHEMA", "EVENT_STORE_SEQUENCE_HANDLER_PREFIX")
DELIVERY_VARIABLES = (
    *_REGISTRY,
    *_RETRIES,
    *_PUBLISHER,
    ALLOCATOR_VARIABLE,
    *IGNORED_VARIABLES,
)


def load_registry_settings(*, on_outage: OnOutage = "pause") -> RegistrySettings:
    """Return the registry settings of the environment, and this reaction to an outage.

    Raises:
        InvalidArgument: A variable or `on_outage` has an invalid value.
    """
    return RegistrySettings(**_read_variables(_REGISTRY), on_outage=on_outage)


def load_publisher_settings() -> PublisherSettings:
    """Return the publisher settings of the environment.

    Raises:
        InvalidArgument: A variable has an invalid value.
    """
    return PublisherSettings(**_read_variables(_PUBLISHER))


def load_retry_limits() -> RetryLimits:
    """Return the numbers of attempts of the environment."""
    return RetryLimits(**_read_variables(_RETRIES))


def load_numbering_mode() -> Literal["log", "caller"]:
    """Return who numbers the events of streams, from the allocator mode of the environment.

    Raises:
        InvalidArgument: The mode is unknown or not safe with several writers.
    """
    for name in IGNORED_VARIABLES:
        if os.environ.get(name) and name not in _warned:
            _warned.add(name)
            logger.warning("%s has no effect: the log numbers streams itself", name)
    mode = os.environ.get(ALLOCATOR_VARIABLE, "postgres")
    if mode in ("legacy", "s3"):
        msg = (
            f"{ALLOCATOR_VARIABLE}={mode} is not supported: without a lock two writers may use the "
            "same number. Use postgres (the log assigns numbers) or off (the caller does)"
        )
        raise InvalidArgument(msg, details={"argument": ALLOCATOR_VARIABLE})
    if mode not in ("postgres", "off"):
        raise _setting_error(ALLOCATOR_VARIABLE, "must be postgres or off")
    return "caller" if mode == "off" else "log"


_warned: set[str] = set()  # variables that were reported, once per process


def _read_variables(fields: dict[str, tuple[str, _Reader]]) -> dict[str, Any]:
    """Return the settings of the variables that are set, by field name."""
    settings: dict[str, Any] = {}
    for variable, (field, reader) in fields.items():
        text = os.environ.get(variable)
        if not text:
            continue
        try:
            settings[field] = reader(text)
        except ValueError:
            raise _setting_error(variable, f"has the invalid value {text!r:.40}") from None
    return settings
