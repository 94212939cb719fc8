"""The private Postgres of a run, with its settings, and what they and the machine are."""

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
SHOWN = (
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
    """Return a durable server of our own, to be entered."""
    return PostgresServer(fsync=True, settings=SETTINGS)


def settle(url: str) -> None:
    """Leave nothing to be caught up with while others are measured."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("vacuum analyze")
        session.execute("checkpoint")


def machine(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return what the figures were taken on."""
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


def settings_of(url: str) -> dict[str, str]:
    """Return the settings that bear on speed and durability."""
    with psycopg.connect(url) as session:
        rows = session.execute(
            "select name, current_setting(name) from pg_settings where name = any(%s)",
            (list(SHOWN),),
        ).fetchall()
    return dict(sorted(rows))


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
