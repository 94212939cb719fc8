"""Settings, and the only place that reads the environment."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from seriatim.core.errors import InvalidArgument
from seriatim.core.limits import DEFAULT_LIMITS, Limits

URL_VARIABLE = "SERIATIM_URL"
MISMATCH_VARIABLE = "EVENT_STORE_IDEMPOTENCY_MISMATCH_MODE"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a log behaves, beyond where it lives."""

    limits: Limits = DEFAULT_LIMITS
    timeout_s: float = 30.0
    on_id_mismatch: Literal["error", "warn"] = "error"
    writers: int | None = None  # None: what the backend does best
    lock_wait_s: float = 5.0
    lock_hold_s: float = 5.0
    connect_timeout_s: float = 10.0
    pool_size: int = 8
    allow_async_commit: bool = False


def default_url() -> str | None:
    """Return the log's address from the environment, if it names one."""
    return os.environ.get(URL_VARIABLE) or None


def mismatch_mode() -> Literal["error", "warn"]:
    """Return what a reused event id with other content does: refuse, or warn and reuse."""
    value = os.environ.get(MISMATCH_VARIABLE, "error")
    if value not in ("error", "warn"):
        msg = f"{MISMATCH_VARIABLE} must be error or warn"
        raise InvalidArgument(msg, details={"argument": MISMATCH_VARIABLE})
    return "warn" if value == "warn" else "error"
