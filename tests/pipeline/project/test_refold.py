"""A parked key that is folded again equals a rebuild (I3, I7)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seriatim import EventRecord, Log, NewEvent, Projection, Table, projection
from seriatim.pipeline.project.projector import Projector
from tests.pipeline.project.support import digest_in_python, stored_digest

Start = Callable[..., Projector]

TABLES = [
    Table("firsts", {"name": str}, {"by": str, "value": int}, keep="first"),
    Table("lasts", {"name": str}, {"by": str, "value": int}),
]


def fold_entry(state: dict[str, Any] | None, event: EventRecord) -> Any:
    """Write rows shared by several keys; once the code is fixed, other rows and values."""
    fixed = Path(event.payload["mended"]).exists()
    if event.payload["bad"] and not fixed:
        msg = "not yet"
        raise ValueError(msg)
    previous = state or {"sum": 0}
    total = previous["sum"] + event.payload["n"] + (1000 if fixed else 0)
    name = (
        event.payload["moves_to"] if fixed and event.payload["moves_to"] else event.payload["name"]
    )
    row = {"name": name, "by": event.stream_id, "value": total}
    return {"sum": total}, {"firsts": [row], "lasts": [row]}


def declare_books(**options: Any) -> Projection:
    """Declare the books projection, with policy park."""
    options = {"on_failure": "park", **options}
    return projection("books", key="stream_id", tables=TABLES, state=dict, **options)(fold_entry)


def fill(log: Log, fixed: Path, *, moves: bool, own_names: bool) -> None:
    """Append events of four keys, some of which fail until the code is fixed."""
    chance = random.Random(40)
    for number in range(60):
        key = f"k{number % 4}"
        name = chance.choice("abcdef") + (key if own_names else "")
        payload = {
            "n": number,
            "bad": key in ("k1", "k2") and number > 20,
            "name": name,
            "moves_to": "moved" if moves and key == "k1" and number < 10 else "",
            "mended": str(fixed),
        }
        log.append([NewEvent("entry", payload, stream=("book", key))])


@pytest.mark.parametrize(
    ("url", "moves", "own_names"),
    [("sqlite", False, True), ("postgres", True, False)],
    indirect=["url"],
    ids=["in place", "by a rebuild"],
)
def test_a_retried_key_equals_a_rebuild(
    start: Start, log: Log, tmp_path: Path, moves: bool, own_names: bool
) -> None:
    """I3, I7: after a retry no failure is left, and verify finds no difference.

    The keys that did not fail were folded by the old code; the test inserts failure rows for them
    so that the retry folds them again with the fixed code.
    """
    fixed = tmp_path / "mended"
    fill(log, fixed, moves=moves, own_names=own_names)
    job = start(declare_books())
    job.run()
    assert {failure.failure.key for failure in job.failures()} == {"k1", "k2"}

    fixed.touch()
    model = job.model
    with model.engine.transaction() as session:
        for position, key in ((1, "k0"), (4, "k3")):
            session.run(
                f"insert into {model.engine.schema_prefix}seriatim_failures (name, shadow, "
                "position, "
                "tenant_id, key, event_id, event_type, reason, status, failed_us) values ('books', "
                f"0, {position}, 'default', '{key}', 'e', 'entry', 'older code', 'parked', 0)"
            )
    assert job.retry() == 4
    job.run()

    assert job.failures() == []
    proof = job.verify()
    assert proof.equal, proof.difference
    assert stored_digest(job) == digest_in_python(log.read(), declare_books())


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_skipped_events_of_a_parked_key_equal_a_rebuild(
    start: Start, log: Log, tmp_path: Path
) -> None:
    """I3, I7: skipped events of parked keys are also skipped by verify."""
    fill(log, tmp_path / "never", moves=False, own_names=False)
    job = start(declare_books())
    job.run()
    for _ in range(2):
        for failure in job.failures():
            if failure.status == "parked":
                job.skip(failure.failure.position)
        job.run()

    proof = job.verify()
    assert proof.equal, proof.difference
