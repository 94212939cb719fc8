"""Effects that misuse their transaction: only their event fails, others are handle once."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from seriatim.core.errors import SeriatimError
from seriatim.delivery.claim_context import HandlerContext
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry
from tests.integration.delivery.support import QUICK, make_handler
from tests.integration.delivery.test_commit_failures import Ledger, event_of_own_stream, handle

WRONG = 2  # the event whose effect misuses its transaction
EVENTS = (1, WRONG, 4)


@pytest.fixture
def ledger(registry: Registry) -> Ledger:
    """The user's tables."""
    return Ledger(registry)


def _close(connection: Any) -> None:
    connection.close()


def _close_and_go_on(connection: Any) -> None:
    connection.close()
    connection.execute("select 1")


def _block(connection: Any) -> None:
    with connection:  # commits at its end, and with psycopg closes too
        pass


def _commit(connection: Any) -> None:
    connection.commit()


def _roll_back(connection: Any) -> None:
    connection.rollback()


@pytest.mark.parametrize("misuse", [_close, _close_and_go_on, _block, _commit, _roll_back])
def test_effect_that_closes_the_connection_fails(
    registry: Registry, ledger: Ledger, misuse: Any
) -> None:
    """G10: an effect that closes or commits the registry's connection fails its event."""
    done: list[int] = []

    def bill(given: Any, context: HandlerContext) -> None:
        done.append(given["n"])
        context.connection.execute(f"insert into {ledger.at}bills (way) values ('{given['n']}')")
        if given["n"] == WRONG:
            misuse(context.connection)

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    counts = handle(registry, billing, [event_of_own_stream(number) for number in EVENTS])

    assert (counts.done, counts.failed) == (2, 1)
    assert _ways(registry, ledger) == ["1", "4"]
    [entry] = registry.entries(EntryFilter(status="failed"))
    assert (entry.event_id, entry.attempts) == (event_of_own_stream(WRONG).event_id, 1)
    assert entry.error


@pytest.mark.parametrize(
    "statement", ["commit", "rollback", "insert into bills (way) values ('script')"]
)
def test_a_script_in_an_effect_fails(tmp_path: Path, statement: str) -> None:
    """G7: `executescript` in an effect, which would commit first, fails its event."""
    registry = open_registry(f"sqlite:///{tmp_path}/delivery.db")
    ledger = Ledger(registry)

    def bill(given: Any, context: HandlerContext) -> None:
        context.connection.execute("insert into bills (way) values (?)", (str(given["n"]),))
        if given["n"] == WRONG:
            context.connection.executescript(statement)

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    counts = handle(registry, billing, [event_of_own_stream(number) for number in EVENTS])

    assert (counts.done, counts.failed) == (2, 1)
    assert _ways(registry, ledger) == ["1", "4"]
    [entry] = registry.entries(EntryFilter(status="failed"))
    assert "leave commit and rollback to its owner" in entry.error
    registry.close()


def test_the_connection_is_usable_after_the_effect(registry: Registry, ledger: Ledger) -> None:
    """G10: savepoints work in an effect, and the connection can be used after it."""

    def bill(given: Any, context: HandlerContext) -> None:
        context.connection.execute("savepoint mine")
        ledger.bill(given, context)
        context.connection.execute("release savepoint mine")

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    counts = handle(registry, billing, [event_of_own_stream(number) for number in EVENTS])
    with registry.engine.transaction() as session:
        connection = session.connection
    connection.execute("begin")
    connection.commit()

    assert counts.done == len(EVENTS)
    assert ledger.billed == list(EVENTS)


def _locked(folder: Path) -> None:
    holder = sqlite3.connect(folder / "other.db", isolation_level=None)
    holder.execute("create table if not exists things (n)")
    holder.execute("begin immediate")
    try:
        sqlite3.connect(folder / "other.db", timeout=0, isolation_level=None).execute(
            "begin immediate"
        )
    finally:
        holder.close()


def _missing(folder: Path) -> None:
    sqlite3.connect(folder / "nowhere" / "other.db").execute("select 1")


def _no_database(folder: Path) -> None:
    (folder / "text.db").write_text("no database " * 100)
    sqlite3.connect(folder / "text.db").execute("select * from things")


@pytest.mark.parametrize("trouble", [_locked, _missing, _no_database])
def test_an_error_of_another_database(
    registry: Registry, ledger: Ledger, tmp_path: Path, trouble: Any
) -> None:
    """G10: an error in a database of the effect fails the event, not the registry."""

    def bill(given: Any, context: HandlerContext) -> None:
        ledger.bill(given, context)
        if given["n"] == WRONG:
            trouble(tmp_path)

    billing = make_handler("billing", effect="transactional", run=bill, retry=QUICK)

    counts = handle(registry, billing, [event_of_own_stream(number) for number in EVENTS])

    assert (counts.done, counts.failed) == (2, 1)
    assert ledger.billed == [1, 4]


def test_a_claim_block_that_closes_the_connection(registry: Registry, ledger: Ledger) -> None:
    """G10: a claim block that closes the connection fails its event; the registry works on."""
    billing = make_handler("billing", effect="transactional", retry=QUICK)
    registry.declare(billing)

    with (
        pytest.raises(SeriatimError, match="closed"),
        registry.claim(billing, event_of_own_stream(1)) as claim,
    ):
        claim.connection.close()

    assert [entry.status for entry in registry.entries(EntryFilter())] == ["failed"]
    assert ledger.billed == []


def _ways(registry: Registry, ledger: Ledger) -> list[str]:
    with registry.engine.transaction(write=False) as session:
        return sorted(row[0] for row in session.run(f"select way from {ledger.at}bills"))
