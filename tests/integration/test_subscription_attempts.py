"""Attempts of subscriptions on each database: programs of the previous version, and the bound."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

import seriatim
from seriatim import Log, NewEvent, RetryPolicy
from seriatim.core.operation import Operator
from seriatim.log import subscriptions
from seriatim.log.operator_journal import read_journal
from seriatim.store import common
from seriatim.testing.factories import events, positions

BOUNDED: dict[str, Any] = {"retry": RetryPolicy(attempts=1), "idle_timeout": 0.0}

RunSql = Callable[[str], None]


def fail(_: object) -> None:
    """Refuse every batch."""
    raise ValueError("no mail server")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new log in a database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def run_sql(url: str) -> RunSql:
    """Return a function that runs a statement on the tables of the log."""

    def run(statement: str) -> None:
        if url.startswith("sqlite"):
            with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
                file.execute(statement)
            file.close()
        else:
            with psycopg.connect(url) as connection:
                connection.execute("set local search_path to seriatim")
                connection.execute(statement.encode())

    return run


def test_an_older_program_moves_a_parked_cursor_on(url: str, run_sql: RunSql) -> None:
    """E5, F3: attempts end when a program that does not know them moves the cursor."""
    with seriatim.open(url) as log:
        for _ in range(3):
            log.append(events(1))
        log.subscribe("s", **BOUNDED).run(fail)
        assert log.subscriptions.get("s").status == "parked"

        cursor = log.store.cursor("default", "subscription", "s")
        assert cursor is not None
        moved = {"position": 1, "last_event_id": log.store.event_id_at(1)}
        after = msgspec.structs.replace(cursor, **moved)
        log.store.put_cursor(after, lease=None, reset=False)
        # As the older program leaves the columns that it does not know.
        run_sql(
            "update cursors set attempts = 1, attempt_after = 0, attempt_first = 1,"
            " attempt_last = 1, parked_us = 1 where name = 's'"
        )

        status = log.subscriptions.get("s")
        assert (status.status, status.attempt, status.position) == ("ready", None, 1)
        batches = [positions(batch) for batch in log.subscribe("s", **BOUNDED)]
        assert batches == [[2], [3]]


def test_a_policy_parks_when_it_has_skipped_too_many(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5, K3: the list of skipped batches is bounded; then the subscription is parked instead."""
    monkeypatch.setattr(common, "SKIPPED_BATCHES_MAX", 2)
    with seriatim.open(url) as log:
        for _ in range(4):
            log.append(events(1))
        log.subscribe("s", on_poison="skip", **BOUNDED).run(fail)

        status = log.subscriptions.get("s")
        assert (status.status, status.position, status.skipped) == ("parked", 2, 2)
        # An operator may skip more: each act has a reason, and is recorded in the journal.
        log.subscriptions.skip("s", 3, reason="malformed")
        assert [one.skipped_by is None for one in log.subscriptions.skipped("s")] == [
            True,
            True,
            False,
        ]
        log.subscribe("s", on_poison="skip", **BOUNDED).run(fail)
        assert log.subscriptions.get("s").status == "parked"


def test_a_lower_bound_allows_an_attempt(url: str) -> None:
    """E5: a policy that is introduced later does not skip a batch without an attempt under it."""
    with seriatim.open(url) as log:
        log.append(events(1))
        subscription = log.subscribe("s", backoff_s=0.001, idle_timeout=0.0)

        def handler(_: object) -> None:
            if subscription.failures == 5:
                subscription.stop()
            fail(_)

        subscription.run(handler)
        assert log.subscriptions.get("s").failures == 6

        seen = [positions(batch) for batch in log.subscribe("s", on_poison="skip", **BOUNDED)]

        assert seen == [[1]]
        assert log.subscriptions.get("s").skipped == 0


def test_all_skipped_batches_are_listed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """E5: the list of skipped batches is read in pages, and complete."""
    monkeypatch.setattr(subscriptions, "_PAGE_SIZE", 2)
    with seriatim.open(url) as log:
        for _ in range(5):
            log.append(events(1))
        log.subscribe("s", on_poison="skip", **BOUNDED).run(fail)

        listed = [batch.first_position for batch in log.subscriptions.skipped("s")]
        page = log.subscriptions.list_skipped("s", after=2, limit=2)

    assert listed == [1, 2, 3, 4, 5]
    assert [batch.first_position for batch in page] == [3, 4]


def record(log: Log) -> list[tuple[str, str, dict[str, Any], str]]:
    """Return the actions in the journal, oldest first."""
    return [
        (entry.action, entry.actor_id, entry.target, entry.reason)
        for entry in reversed(read_journal(log))
    ]


def test_the_acts_of_operators_are_recorded() -> None:
    """N4, E5: retry, skip and reset are events of the infrastructure tenant, with their reasons."""
    operator = Operator("ann", "python", "person")
    with seriatim.open("memory:", tenant_id="acme") as log:
        log.append([NewEvent("a", {}), NewEvent("b", {})])
        log.subscribe("s", **BOUNDED).run(fail)
        log.subscriptions.retry("s", reason="fixed", operator=operator)
        log.subscribe("s", **BOUNDED).run(fail)
        log.subscriptions.skip("s", 1, reason="malformed", operator=operator)
        log.subscriptions.reset("s", 0, reason="once more", operator=operator)
        log.reset_subscription("t", 1)

        batch = {"subscription": "s", "position": 1, "last_position": 2, "attempts": 1}
        reset = {"subscription": "s", "position": 0, "from_position": 2}
        *entries, last = record(log)
        assert entries == [
            ("subscription_retried", "ann", batch, "fixed"),
            ("subscription_batch_skipped", "ann", batch, "malformed"),
            ("subscription_reset", "ann", reset, "once more"),
        ]
        assert (last[0], last[2]) == ("subscription_reset", {"subscription": "t", "position": 1})
        assert {entry.tenant_id for entry in read_journal(log)} == {"acme"}


@pytest.mark.parametrize("act", ["retry", "skip", "reset"])
def test_a_secret_is_no_reason(act: str) -> None:
    """K1, N4: a reason that looks like a secret is refused before anything changes."""
    secret = "ghp_" + "a1B2" * 9
    with seriatim.open("memory:") as log:
        log.append(events(1))
        log.subscribe("s", **BOUNDED).run(fail)
        arguments = {"retry": (), "skip": (1,), "reset": (0,)}[act]

        with pytest.raises(seriatim.InvalidArgument):
            getattr(log.subscriptions, act)("s", *arguments, reason=secret)

        assert log.subscriptions.get("s").status == "parked"
