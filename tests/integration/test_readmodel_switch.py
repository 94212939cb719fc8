"""The switch from a shadow to the live tables: atomic, and never to an older position."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from seriatim.core.errors import BackendFailure, Conflict, LeaseLost
from seriatim.core.fold import ReadModelRow
from seriatim.core.projection import Table, projection
from seriatim.factory import open_read_model, sqlite_path
from seriatim.store.readmodel import model as model_module
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.operations import skip
from tests.integration.readmodel_support import (
    LOG,
    begin_and_claim,
    keep_state,
    make_failure,
    make_step,
    plan,
    rows_of,
    seat_rows,
    seats,
    short_rows,
)


def make_shadow(model: ReadModel, rows: dict[str, Any], until: int) -> None:
    """Make a shadow at a position."""
    token = begin_and_claim(model, shadow=True)
    model.write_shadow_part(seats, make_step(0, 0, state_rows=seat_rows(rows, until)), "me")
    model.commit(seats, make_step(0, until), token=token, shadow=True)


@contextmanager
def reader_of(place: str) -> Iterator[Callable[[], list[tuple[Any, ...]]]]:
    """Yield a function that queries the table over a separate connection."""
    if place.startswith("sqlite:"):
        file = sqlite3.connect(sqlite_path(place), isolation_level=None)
        with closing(file):
            yield lambda: file.execute("select stream_id, taken from seats").fetchall()
        return
    with psycopg.connect(place.partition("?")[0], autocommit=True) as server:
        yield lambda: server.execute("select stream_id, taken from read.seats").fetchall()


def test_switch_replaces_the_live_tables(model: ReadModel) -> None:
    """I4: a switch replaces rows, position, declaration and log by those of the shadow."""
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 3, state_rows=seat_rows({"1a": 1, "1b": 1}, 3)), token=token)
    newer = msgspec.structs.replace(seats, version=2)
    model.create_projection(newer, "default", LOG, shadow=True)
    shadow = model.claim("seats", "rebuild", 60, shadow=True)
    assert shadow is not None
    model.write_shadow_part(newer, make_step(0, 0, state_rows=seat_rows({"1a": 7}, 5)), "rebuild")
    model.commit(newer, make_step(0, 5), token=shadow, shadow=True)

    assert short_rows(model) == {"1a": 1, "1b": 1}
    assert model.switch(newer)
    assert short_rows(model) == {"1a": 7}
    (only,) = model.list_progress()
    assert (only.shadow, only.position, only.last_event_id) == (False, 5, "e5")
    assert only.declaration == newer.declaration


def test_a_switch_raises_the_fencing_token(model: ReadModel) -> None:
    """I8: a token from before a switch is refused, and the next claim has a higher one."""
    token = begin_and_claim(model)
    make_shadow(model, {"1a": 1}, 5)
    assert model.switch(seats)

    with pytest.raises(LeaseLost):
        model.commit(seats, make_step(5, 6), token=token)
    assert model.claim("seats", "me", 60) == token + 2


def test_a_first_rebuild_needs_no_live_tables(model: ReadModel) -> None:
    """I4: a projection without live tables can be switched to its shadow."""
    make_shadow(model, {"1a": 1}, 5)

    assert model.switch(seats)
    assert short_rows(model) == {"1a": 1}
    assert model.claim("seats", "me", 60) == 2


def test_a_switch_never_goes_backwards(model: ReadModel) -> None:
    """I4: a shadow before the live tables or the required position is not switched to."""
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 6, state_rows=seat_rows({"1a": 6}, 6)), token=token)
    make_shadow(model, {"1a": 5}, 5)

    assert not model.switch(seats)
    assert short_rows(model) == {"1a": 6}
    assert short_rows(model, shadow=True) == {"1a": 5}
    assert [one.position for one in model.list_progress()] == [6, 5]
    model.drop(seats, shadow=True)
    assert short_rows(model) == {"1a": 6}
    make_shadow(model, {"1a": 8}, 8)
    assert not model.switch(seats, at_least=9)
    assert model.switch(seats, at_least=8)


def test_a_switch_without_a_shadow_does_nothing(model: ReadModel) -> None:
    """I4: without a shadow a switch returns False."""
    begin_and_claim(model)

    assert not model.switch(seats)
    assert model.progress("seats") is not None


def test_a_paused_projection_stays_paused(model: ReadModel) -> None:
    """I7: a switch leaves a paused projection paused and makes a failed one ready."""
    begin_and_claim(model)
    for status, after in (("paused", "paused"), ("failed", "ready")):
        model.set_status("seats", status)  # type: ignore[arg-type]
        make_shadow(model, {}, 5)
        assert model.switch(seats)
        assert model.list_progress()[0].status == after
        model.set_status("seats", "ready")


def test_a_switch_drops_tables_of_an_older_declaration(model: ReadModel, place: str) -> None:
    """I4: tables that are no longer declared are dropped with their states."""
    begin_and_claim(model, plan)
    newer = projection(
        "plan", key="stream_id", tables=[Table("others", {"k": str}, {})], state=dict
    )(keep_state)
    token = begin_and_claim(model, newer, shadow=True)
    model.commit(newer, make_step(0, 1), token=token, shadow=True)
    assert model.switch(newer)
    begin_and_claim(model, newer, shadow=True)

    assert table_names(place) == {
        "plan_others",
        "plan__state",
        "plan_others__shadow",
        "plan__state__shadow",
        "seriatim_failures",
        "seriatim_projections",
    }


def table_names(place: str) -> set[str]:
    """Return the tables of a read model."""
    if place.startswith("sqlite:"):
        connection = sqlite3.connect(sqlite_path(place))
        found = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
        connection.close()
        return {name for (name,) in found}
    with psycopg.connect(place.partition("?")[0]) as server:
        rows = server.execute("select tablename from pg_tables where schemaname = 'read'")
        return {name for (name,) in rows.fetchall()}


# -- failures


def statuses(model: ReadModel) -> dict[int, tuple[str, bool]]:
    """Return status and retry mark of failures, by position."""
    return {
        failure.failure.position: (failure.status, failure.again)
        for failure in model.failures("seats")
    }


def test_failures_of_the_shadow_replace_those_of_the_live_tables(model: ReadModel) -> None:
    """I7: a switch replaces failures by those of the shadow and keeps skipped events."""
    token = begin_and_claim(model)
    live: Any = [
        (make_failure(1), "parked"),
        (make_failure(2, "1b"), "passed"),
        (make_failure(3), "skipped"),
    ]
    model.commit(seats, make_step(0, 4, failures=live), token=token)
    shadow = begin_and_claim(model, shadow=True)
    assert model.load_exceptions("seats", shadow=True) == (frozenset(), frozenset({2}))
    fresh: Any = [(make_failure(3, reason="KeyError: 'x'"), "parked")]
    model.commit(seats, make_step(0, 4, failures=fresh), token=shadow, shadow=True)
    assert model.switch(seats)

    assert statuses(model) == {2: ("passed", False), 3: ("parked", False)}
    assert model.failures("seats")[1].failure.reason == "KeyError: 'x'"
    assert model.failures("seats", shadow=True) == []


def test_skip_during_a_rebuild_is_kept(model: ReadModel) -> None:
    """I7: an event skipped during a rebuild stays skipped, and its key is folded again."""
    token = begin_and_claim(model)
    live: Any = [(make_failure(1), "parked"), (make_failure(2, "1b"), "parked")]
    model.commit(seats, make_step(0, 4, failures=live), token=token)
    shadow = begin_and_claim(model, shadow=True)
    model.commit(seats, make_step(0, 4, failures=live[:1]), token=shadow, shadow=True)
    for position in (1, 2):
        skip(model, "seats", position)
    assert model.switch(seats)

    assert statuses(model) == {1: ("passed", True), 2: ("passed", True)}


# -- readers


def test_readers_see_old_or_new_tables(place: str, model: ReadModel) -> None:
    """I4: during many switches readers see the old or the new rows, and no error."""
    begin_and_claim(model)
    make_shadow(model, {"0": 0}, 1)
    assert model.switch(seats)
    seen: list[Any] = []
    done = threading.Event()

    def read() -> None:
        with reader_of(place) as look:
            while not done.is_set():
                try:
                    seen.append(look())
                except Exception as error:  # noqa: BLE001 - that is what is looked for
                    seen.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    rounds = 15
    for number in range(1, rounds + 1):
        make_shadow(model, {str(number): number}, number + 1)
        assert model.switch(seats)
    done.set()
    for reader in readers:
        reader.join()

    assert {repr(rows) for rows in seen} <= {repr([(str(n), n)]) for n in range(rounds + 1)}
    assert len({repr(rows) for rows in seen}) > 2, "the readers saw several switches"


def test_snapshot_is_before_or_after_a_switch(place: str, model: ReadModel) -> None:
    """I3, I4: position and rows of a snapshot come from the same side of a switch."""
    begin_and_claim(model)
    make_shadow(model, {"0": 1}, 1)
    assert model.switch(seats)
    other = open_read_model(place)
    seen: list[tuple[int, list[int]]] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            with other.snapshot() as moment:
                at = moment.progress("seats")
                time.sleep(0.005)
                rows = [row["taken"] for _, row, _ in moment.rows(seats, seats.tables[0])]
                seen.append((at.position if at else -1, rows))

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(2, 500):
        make_shadow(model, {"0": number}, number)
        assert model.switch(seats)
        if number > 16 and len({position for position, _ in seen}) > 2:
            break
    done.set()
    reader.join()
    other.close()

    assert all(rows == [position] for position, rows in seen), seen
    assert len({position for position, _ in seen}) > 2


def test_a_switch_waits_for_a_transaction_that_reads(empty_postgres_url: str) -> None:
    """I4: a switch waits for an open transaction, and other readers are not delayed."""
    place = f"{empty_postgres_url}?schema=read"
    model = open_read_model(place)
    begin_and_claim(model)
    make_shadow(model, {"0": 0}, 1)
    assert model.switch(seats)
    make_shadow(model, {"1": 1}, 2)
    with psycopg.connect(empty_postgres_url) as reading:
        query = "select stream_id from read.seats"
        assert reading.execute(query).fetchall() == [("0",)]
        switched: list[bool] = []
        switching = threading.Thread(target=lambda: switched.append(model.switch(seats)))
        switching.start()
        time.sleep(0.3)
        assert switched == []
        assert reading.execute(query).fetchall() == [("0",)]
        waited = time.monotonic()
        with psycopg.connect(empty_postgres_url) as other:
            assert other.execute(query).fetchall() == [("0",)]
        assert time.monotonic() - waited < 10
        reading.commit()
    switching.join(30)

    assert switched == [True]
    assert short_rows(model) == {"1": 1}
    model.close()


def test_switch_wait_is_bounded(empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I4: a switch that waits too long for a reader fails, retryable."""
    monkeypatch.setattr(model_module, "_SWITCH_TIMEOUT_S", 0.0)
    model = open_read_model(f"{empty_postgres_url}?schema=read")
    token = begin_and_claim(model)
    make_shadow(model, {"1": 1}, 2)
    with psycopg.connect(empty_postgres_url) as reading:
        reading.execute("select * from read.seats")
        with pytest.raises(BackendFailure, match="a long transaction reads the read model") as c:
            model.switch(seats)

    assert c.value.retryable
    assert model.switch(seats)
    assert token
    model.close()


def test_dependent_view_blocks_the_switch(empty_postgres_url: str) -> None:
    """I4: a view on a table blocks the switch, and nothing changes."""
    model = open_read_model(f"{empty_postgres_url}?schema=read")
    begin_and_claim(model)
    make_shadow(model, {"1": 1}, 2)
    with psycopg.connect(empty_postgres_url) as connection:
        connection.execute("create view mine as select * from read.seats")

    with pytest.raises(Conflict, match="because view mine would be lost"):
        model.switch(seats)
    assert short_rows(model) == {}
    assert short_rows(model, shadow=True) == {"1": 1}
    model.close()


def test_a_switch_on_sqlite_does_not_wait_for_readers(tmp_path: Path) -> None:
    """I4: on SQLite an open transaction reads the old tables, and the switch does not wait."""
    place = f"sqlite:///{tmp_path}/read.db"
    model = open_read_model(place)
    begin_and_claim(model)
    make_shadow(model, {"0": 0}, 1)
    assert model.switch(seats)
    make_shadow(model, {"1": 1}, 2)
    reading = sqlite3.connect(tmp_path / "read.db", isolation_level=None)
    reading.execute("begin")
    query = "select stream_id from seats"
    assert reading.execute(query).fetchall() == [("0",)]
    assert model.switch(seats)
    assert reading.execute(query).fetchall() == [("0",)]
    reading.execute("commit")

    assert reading.execute(query).fetchall() == [("1",)]
    reading.close()
    assert rows_of(model) == [{"stream_id": "1", "taken": 1}]
    model.close()


def test_an_older_part_does_not_replace_newer_rows(model: ReadModel) -> None:
    """I1: a part of a rebuild does not replace rows of a later position."""
    make_shadow(model, {"1a": 1}, 5)
    older = {("default", "1a"): ReadModelRow("default", 4, {"stream_id": "1a", "taken": 0})}
    model.write_shadow_part(seats, make_step(0, 0, state_rows=older), "me")

    assert short_rows(model, shadow=True) == {"1a": 1}


def test_a_task_of_an_ended_rebuild_is_refused(model: ReadModel) -> None:
    """I4: a part for the shadow of another owner, or for none, is refused."""
    begin_and_claim(model, shadow=True)
    with pytest.raises(LeaseLost, match="has ended meanwhile"):
        model.write_shadow_part(
            seats, make_step(0, 0, state_rows=seat_rows({"1a": 1}, 1)), "somebody else"
        )
    assert rows_of(model, shadow=True) == []
    model.drop(seats, shadow=True)
    with pytest.raises(LeaseLost, match="has ended meanwhile"):
        model.write_shadow_part(seats, make_step(0, 0, state_rows=seat_rows({"1a": 1}, 1)), "me")
