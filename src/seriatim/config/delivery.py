"""The settings of consumers and of the publisher, by the names that their seed gave them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from seriatim.core.errors import InvalidArgument

logger = logging.getLogger("seriatim")

_LONGEST_S = 366 * 86_400.0


class Registering(msgspec.Struct, frozen=True, kw_only=True):
    """How consumers use the processed-event registry; `owner` None names host and process."""

    lease_s: float = 900.0
    heartbeat_s: float = 30.0
    owner: str | None = None
    enabled: bool = True
    on_outage: Literal["pause", "fail_fast", "dlq"] = "pause"

    def __post_init__(self) -> None:
        """Refuse a heartbeat that comes too late for its lease."""
        if not 0 < self.lease_s <= _LONGEST_S:
            raise _bad("lease_s", f"must be above 0 and at most {_LONGEST_S:g}")
        if not 0 < self.heartbeat_s < self.lease_s:
            msg = (
                f"a heartbeat every {self.heartbeat_s:g} s cannot keep a lease of "
                f"{self.lease_s:g} s: it must be shorter"
            )
            raise InvalidArgument(msg, details={"argument": "heartbeat_s"})
        if self.on_outage not in ("pause", "fail_fast", "dlq"):
            msg = "on_outage is one of pause, fail_fast, dlq"
            raise InvalidArgument(msg, details={"argument": "on_outage"})


class Publishing(msgspec.Struct, frozen=True, kw_only=True):
    """How the publisher behaves; the names and defaults are those of its seed.

    A log without gaps has no late arrivals, so looking back is off; the knob works.
    """

    batch_size: int = 200  # events that a task takes at a time
    flush_batch_size: int | None = None  # messages between two flushes; None: the batch size
    flush_timeout_s: float = 10.0
    lookback_s: float = 0.0
    lookback_max_keys: int = 50
    dedup_max_events: int = 10_000
    dedup_checkpoint_max_events: int = 2_000
    metrics_log_interval_s: float = 30.0
    step_events: int = 200_000  # events between two checkpoints, at most

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        for name in ("batch_size", "step_events"):
            _check_least(name, getattr(self, name), 1)
        if self.flush_batch_size is not None:
            _check_least("flush_batch_size", self.flush_batch_size, 1)
        for name in ("lookback_max_keys", "dedup_max_events", "dedup_checkpoint_max_events"):
            _check_least(name, getattr(self, name), 0)
        for name in ("flush_timeout_s", "metrics_log_interval_s"):
            if not 0 < getattr(self, name) <= _LONGEST_S:
                raise _bad(name, f"must be above 0 and at most {_LONGEST_S:g}")
        if not 0 <= self.lookback_s <= _LONGEST_S:
            raise _bad("lookback_s", f"must be from 0 to {_LONGEST_S:g}")


def _check_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise _bad(name, f"must be a whole number from {least}")


def _bad(name: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{name} {problem}", details={"argument": name})


class Retries(msgspec.Struct, frozen=True, kw_only=True):
    """How often each kind of worker tries an event before it is a dead letter."""

    instance_worker: int = 5
    ontology_worker: int = 5
    projection_worker: int = 5


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise ValueError(text)
    return text.lower() in ("true", "1", "yes", "on")


_Reader = Callable[[str], Any]
_REGISTRY: dict[str, tuple[str, _Reader]] = {
    "ENABLE_PROCESSED_EVENT_REGISTRY": ("enabled", _flag),
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
WITHOUT_EFFECT = ("EVENT_STORE_SEQUENCE_SCHEMA", "EVENT_STORE_SEQUENCE_HANDLER_PREFIX")
SEED_VARIABLES = (
    *_REGISTRY,
    *_RETRIES,
    *_PUBLISHER,
    ALLOCATOR_VARIABLE,
    *WITHOUT_EFFECT,
)


def registering(**given: Any) -> Registering:
    """Return how consumers use the registry: what is given, else the environment."""
    return Registering(**(_read(_REGISTRY) | given))


def publishing(**given: Any) -> Publishing:
    """Return how the publisher behaves: what is given, else the environment."""
    return Publishing(**(_read(_PUBLISHER) | given))


def retries() -> Retries:
    """Return how often workers try an event."""
    return Retries(**_read(_RETRIES))


def numbered_by() -> Literal["log", "caller"]:
    """Return who numbers the events of a stream; the seed's allocator is the log itself."""
    for name in WITHOUT_EFFECT:
        if os.environ.get(name) and name not in _said:
            _said.add(name)
            logger.warning("%s has no effect: the log numbers streams without a table", name)
    mode = os.environ.get(ALLOCATOR_VARIABLE, "postgres")
    if mode in ("legacy", "s3"):
        msg = (
            f"{ALLOCATOR_VARIABLE}={mode} numbers streams without a lock, so that two writers may "
            "take the same number: use postgres (the log numbers) or off (the caller does)"
        )
        raise InvalidArgument(msg, details={"argument": ALLOCATOR_VARIABLE})
    if mode not in ("postgres", "off"):
        raise _bad(ALLOCATOR_VARIABLE, "must be postgres or off")
    return "caller" if mode == "off" else "log"


_said: set[str] = set()


def _read(known: dict[str, tuple[str, _Reader]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for variable, (field, reader) in known.items():
        text = os.environ.get(variable)
        if not text:
            continue
        try:
            found[field] = reader(text)
        except ValueError:
            raise _bad(variable, f"cannot be {text!r:.40}") from None
    return found
