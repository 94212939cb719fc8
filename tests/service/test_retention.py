"""C5: command records and responses are kept for at least a day, and deleted afterwards."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

from tests.faults.support import wait_until
from tests.fixtures.service import RunningService
from tests.service.http_calls import make_caller, make_event

TWO_DAYS_US = 2 * 86_400 * 1_000_000


def age(file: Path, table: str) -> None:
    """Make the first row of a table two days old."""
    with sqlite3.connect(file) as database:
        database.execute(
            f"update {table} set created_us = created_us - ? where rowid ="
            f" (select min(rowid) from {table})",
            (TWO_DAYS_US,),
        )
    database.close()


def count(file: Path, table: str) -> int:
    """Count the rows of a table."""
    database = sqlite3.connect(file)
    try:
        found: int = database.execute(f"select count(*) from {table}").fetchone()[0]
        return found
    finally:
        database.close()


def test_old_records_are_deleted(serving: Callable[..., RunningService], tmp_path: Path) -> None:
    """C5: the service deletes records older than a day and keeps younger ones."""
    service = serving(purge_every_s=0.0)
    caller = make_caller(service)
    log, beside = tmp_path / "log.db", tmp_path / "log.service.db"
    lease = {"name": "job", "owner": "me", "seconds": 60}
    for key in ("a", "b"):
        headers = {"idempotency-key": key}
        assert (
            caller("POST", "/v1/events", {"events": [make_event()]}, headers=headers).status == 201
        )
        assert caller("POST", "/v1/leases", lease, headers=headers).status == 200
    assert (count(log, "commands"), count(beside, "seriatim_answers")) == (2, 2)

    age(log, "commands")
    age(beside, "seriatim_answers")

    wait_until(lambda: count(log, "commands") == 1, "old command records are deleted")
    wait_until(lambda: count(beside, "seriatim_answers") == 1, "old responses are deleted")
    again = caller(
        "POST", "/v1/events", {"events": [make_event()]}, headers={"idempotency-key": "b"}
    )
    assert again.headers["seriatim-replayed"] == "true"
    assert caller("GET", "/v1/log").json["head"] == 2
