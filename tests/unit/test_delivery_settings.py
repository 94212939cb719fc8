"""Settings of delivery and their environment variables."""

from __future__ import annotations

import logging

import pytest

import seriatim
from seriatim import NewEvent
from seriatim.config import delivery
from seriatim.config.delivery import PublisherSettings, RegistrySettings
from seriatim.core.errors import InvalidArgument, InvalidEvent


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings from the environment."""
    for name in delivery.DELIVERY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(delivery, "_warned", set())


def test_default_settings() -> None:
    """H4: the settings have the defaults of the specification, except lookback, which is off."""
    assert delivery.load_registry_settings() == RegistrySettings(
        lease_s=900, heartbeat_s=30, owner=None, enabled=True, on_outage="pause"
    )
    found = delivery.load_publisher_settings()
    assert (found.batch_size, found.flush_batch_size, found.flush_timeout_s) == (200, None, 10)
    assert (found.lookback_s, found.lookback_max_keys) == (0, 50)
    assert (found.dedup_max_events, found.dedup_checkpoint_max_events) == (10_000, 2_000)
    assert found.metrics_log_interval_s == 30
    retries = delivery.load_retry_limits()
    assert (retries.instance_worker, retries.ontology_worker, retries.projection_worker) == (
        5,
        5,
        5,
    )
    assert delivery.load_numbering_mode() == "log"


def test_environment_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: the environment variables of the specification are read."""
    for name, value in {
        "ENABLE_PROCESSED_EVENT_REGISTRY": "false",
        "PROCESSED_EVENT_LEASE_TIMEOUT_SECONDS": "60",
        "PROCESSED_EVENT_HEARTBEAT_INTERVAL_SECONDS": "5",
        "PROCESSED_EVENT_OWNER": "me",
        "INSTANCE_WORKER_MAX_RETRY_ATTEMPTS": "7",
        "PROJECTION_WORKER_MAX_RETRIES": "2",
        "EVENT_PUBLISHER_LOOKBACK_SECONDS": "600",
        "EVENT_PUBLISHER_KAFKA_FLUSH_BATCH_SIZE": "9",
    }.items():
        monkeypatch.setenv(name, value)

    assert delivery.load_registry_settings() == RegistrySettings(
        enabled=False, lease_s=60, heartbeat_s=5, owner="me"
    )
    assert (
        delivery.load_retry_limits().instance_worker,
        delivery.load_retry_limits().projection_worker,
    ) == (7, 2)
    assert (
        delivery.load_publisher_settings().lookback_s,
        delivery.load_publisher_settings().flush_batch_size,
    ) == (600, 9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PROCESSED_EVENT_LEASE_TIMEOUT_SECONDS", "soon"),
        ("PROCESSED_EVENT_LEASE_TIMEOUT_SECONDS", "inf"),
        ("PROCESSED_EVENT_HEARTBEAT_INTERVAL_SECONDS", "900"),
        ("ENABLE_PROCESSED_EVENT_REGISTRY", "perhaps"),
        ("EVENT_PUBLISHER_BATCH_SIZE", "0"),
        ("EVENT_PUBLISHER_LOOKBACK_SECONDS", "nan"),
        ("EVENT_PUBLISHER_LOOKBACK_MAX_KEYS", "-1"),
    ],
)
def test_invalid_variables_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """H4: an invalid value of an environment variable is refused."""
    monkeypatch.setenv(name, value)
    reader = (
        delivery.load_publisher_settings if "PUBLISHER" in name else delivery.load_registry_settings
    )
    with pytest.raises(InvalidArgument):
        reader()


@pytest.mark.parametrize("mode", ["legacy", "s3", "sometimes"])
def test_unsafe_allocator_is_refused(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """H4: allocator modes without a lock are refused with a reason."""
    monkeypatch.setenv("EVENT_STORE_SEQUENCE_ALLOCATOR_MODE", mode)
    with pytest.raises(InvalidArgument, match=r"two writers|must be"):
        seriatim.open("memory:")


def test_allocator_off_requires_caller_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """H4: with the allocator off the caller must number the events of streams."""
    monkeypatch.setenv("EVENT_STORE_SEQUENCE_ALLOCATOR_MODE", "off")
    with seriatim.open("memory:") as log:
        with pytest.raises(InvalidEvent, match="stream_seq is missing"):
            log.append([NewEvent("a", stream=("s", "1"))])
        log.append([NewEvent("a", stream=("s", "1"), stream_seq=1), NewEvent("b")])
        assert log.head() == 2


def test_settings_without_effect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """H4: the allocator's schema is accepted without effect, and logged once."""
    monkeypatch.setenv("EVENT_STORE_SEQUENCE_SCHEMA", "spice_event_registry")
    with caplog.at_level(logging.WARNING, logger="seriatim"):
        delivery.load_numbering_mode()
        delivery.load_numbering_mode()

    assert len(caplog.records) == 1
    assert "no effect" in caplog.text


def test_invalid_settings_are_refused() -> None:
    """H4: invalid settings in code are refused."""
    with pytest.raises(InvalidArgument):
        PublisherSettings(step_events=0)
    with pytest.raises(InvalidArgument):
        RegistrySettings(on_outage="hope")  # type: ignore[arg-type]
