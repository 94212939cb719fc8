"""The Postgres server of a run, its settings, and the description of the machine."""

import importlib.metadata
import os
import platform
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.fixtures.postgres_server import PostgresServer

SETTINGS: dict[str, str | int] = {
    "shared_buffers": "1GB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
    "maintenance_work_mem": "256MB",
}
REPORTED_SETTINGS = (
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_sync_method",
    "autovacuum",
    *SETTINGS,
)
PACKAGES = ("seriatim", "psycopg", "umadb", "eventsourcing")


def start_server() -> PostgresServer:
    """Return a new server with durable commits, to be entered as a context manager."""
    return PostgresServer(fsync=True, settings=SETTINGS)


def vacuum_and_checkpoint(url: str) -> None:
    """Vacuum and checkpoint, so that no background work disturbs the measurements."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("vacuum analyze")
        session.execute("checkpoint")


def describe_machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return a description of the machine and the versions of packages."""
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "load_average_before": os.getloadavg()[0],
        **versions,
    }


def read_settings(url: str) -> dict[str, str]:
    """Return the server settings that affect speed and durability."""
    with psycopg.connect(url) as session:
        rows = session.execute(
            "select name, current_setting(name) from pg_settings where name = any(%s)",
            (list(REPORTED_SETTINGS),),
        ).fetchall()
    return dict(sorted(rows))


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
