"""Settings, and the only place that reads the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from seriatim.core.errors import InvalidArgument
from seriatim.core.limits import DEFAULT_LIMITS, Limits

URL_VARIABLE = "SERIATIM_URL"
TOKEN_VARIABLE = "SERIATIM_TOKEN"  # noqa: S105 - a name
MASTER_VARIABLE = "SERIATIM_SPARK_MASTER"
JAVA_VARIABLE = "JAVA_HOME"
MISMATCH_VARIABLE = "EVENT_STORE_IDEMPOTENCY_MISMATCH_MODE"

OBJECT_STORE_VARIABLES = frozenset(
    {
        "AWS_ACCESS_KEY_ID",
        "AWS_ALLOW_HTTP",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    }
)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a log behaves, beyond where it lives."""

    limits: Limits = DEFAULT_LIMITS
    timeout_s: float = 30.0
    read_timeout_s: float | None = None  # None: a read may take as long as it takes
    on_id_mismatch: Literal["error", "warn"] = "error"
    writers: int | None = None  # None: what the backend does best
    lock_wait_s: float = 5.0
    lock_hold_s: float = 5.0
    connect_timeout_s: float = 10.0
    pool_size: int = 8
    allow_async_commit: bool = False
    numbered_by: Literal["log", "caller"] = "log"  # who numbers the events of a stream


def default_url() -> str | None:
    """Return the log's address from the environment, if it names one."""
    return os.environ.get(URL_VARIABLE) or None


def service_token() -> str | None:
    """Return the token for a service from the environment, if there is one."""
    return os.environ.get(TOKEN_VARIABLE) or None


def mismatch_mode() -> Literal["error", "warn"]:
    """Return what a reused event id with other content does: refuse, or warn and reuse."""
    value = os.environ.get(MISMATCH_VARIABLE, "error")
    if value not in ("error", "warn"):
        msg = f"{MISMATCH_VARIABLE} must be error or warn"
        raise InvalidArgument(msg, details={"argument": MISMATCH_VARIABLE})
    return "warn" if value == "warn" else "error"


def spark_master() -> str:
    """Return the Spark master that jobs run on: local threads unless the environment says more."""
    return os.environ.get(MASTER_VARIABLE) or "local[*]"


def object_store() -> dict[str, str]:
    """Return what the environment says of the S3 server: keys, region, endpoint."""
    found = {
        name.lower(): value
        for name, value in os.environ.items()
        if name in OBJECT_STORE_VARIABLES and value
    }
    if found.get("aws_endpoint_url", "").startswith("http:"):
        found.setdefault("aws_allow_http", "true")  # it was asked for by name
    return found


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_for_spark(*, local: bool) -> None:
    """Tell Spark which Python its workers use, and to stay on loopback when it runs here."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def java_home() -> str | None:
    """Return where the user says that Java is, if anywhere."""
    return os.environ.get(JAVA_VARIABLE) or None


@contextmanager
def java_home_set(home: Path) -> Iterator[None]:
    """Name another Java to the processes that start meanwhile, and take it back."""
    before = os.environ.get(JAVA_VARIABLE)
    os.environ[JAVA_VARIABLE] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ[JAVA_VARIABLE]
        else:
            os.environ[JAVA_VARIABLE] = before
