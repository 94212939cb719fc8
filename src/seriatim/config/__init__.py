"""Settings of a log, and the only package that reads environment variables."""

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
TOKEN_VARIABLE = "SERIATIM_TOKEN"  # noqa: S105 - the name of a variable
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
    """The settings of a log.

    Attributes:
        limits: The bounds on events, queries and queues.
        timeout_s: The timeout of an append, in seconds.
        read_timeout_s: The timeout of a read, in seconds; None for no timeout.
        on_id_mismatch: Whether a reused event id with different content is an `error`, or returns
            the stored event with a `warn`ing.
        writers: The number of append groups that are committed concurrently; None for the
            backend's default.
        lock_wait_s: How long one attempt waits for the append lock, in seconds.
        lock_hold_s: How long a process may hold the append lock without progress, in seconds.
        connect_timeout_s: The timeout of connecting, in seconds.
        pool_size: The number of connections for reads.
        allow_async_commit: Whether to accept a Postgres with `synchronous_commit` off.
        numbered_by: Whether the log or the caller numbers the events of streams.

    Example:
        with seriatim.open("sqlite:///app.db", settings=Settings(timeout_s=5)) as app_log:
            app_log.append([NewEvent("order.placed")])
    """

    limits: Limits = DEFAULT_LIMITS
    timeout_s: float = 30.0
    read_timeout_s: float | None = None
    on_id_mismatch: Literal["error", "warn"] = "error"
    writers: int | None = None
    lock_wait_s: float = 5.0
    lock_hold_s: float = 5.0
    connect_timeout_s: float = 10.0
    pool_size: int = 8
    allow_async_commit: bool = False
    numbered_by: Literal["log", "caller"] = "log"


def default_url() -> str | None:
    """Return the URL of the log from `SERIATIM_URL`, or None."""
    return os.environ.get(URL_VARIABLE) or None


def make_child_environment(url: str) -> dict[str, str]:
    """Return the environment of a child process that works on a log, without a service's token."""
    environment = {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}
    return environment | {URL_VARIABLE: url}


def service_token() -> str | None:
    """Return the token for a service from `SERIATIM_TOKEN`, or None."""
    return os.environ.get(TOKEN_VARIABLE) or None


def mismatch_mode() -> Literal["error", "warn"]:
    """Return the `on_id_mismatch` setting from the environment; the default is `error`.

    Raises:
        InvalidArgument: The variable has another value.
    """
    value = os.environ.get(MISMATCH_VARIABLE, "error")
    if value not in ("error", "warn"):
        msg = f"{MISMATCH_VARIABLE} must be error or warn, not {value!r:.40}"
        raise InvalidArgument(msg, details={"argument": MISMATCH_VARIABLE})
    return "warn" if value == "warn" else "error"


def spark_master() -> str:
    """Return the Spark master from the environment; the default is `local[*]`."""
    return os.environ.get(MASTER_VARIABLE) or "local[*]"


def object_store_options() -> dict[str, str]:
    """Return the S3 options from the environment: keys, region and endpoint."""
    options = {
        name.lower(): value
        for name, value in os.environ.items()
        if name in OBJECT_STORE_VARIABLES and value
    }
    # The client refuses plain HTTP by default; an explicit http: endpoint asks for it.
    if options.get("aws_endpoint_url", "").startswith("http:"):
        options.setdefault("aws_allow_http", "true")
    return options


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def set_spark_environment(*, local: bool) -> None:
    """Set the environment of Spark: the Python of its workers, and loopback for a local master.

    Variables that are already set are not changed.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def java_home() -> str | None:
    """Return `JAVA_HOME` from the environment, or None."""
    return os.environ.get(JAVA_VARIABLE) or None


@contextmanager
def override_java_home(home: Path) -> Iterator[None]:
    """Set `JAVA_HOME` for processes that are started in the block, and restore it after."""
    before = os.environ.get(JAVA_VARIABLE)
    os.environ[JAVA_VARIABLE] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ[JAVA_VARIABLE]
        else:
            os.environ[JAVA_VARIABLE] = before
