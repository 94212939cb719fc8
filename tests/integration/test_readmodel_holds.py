"""A rebuild holds a projection by a lease; an operator's pause does not expire (I4, I7)."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection

import pytest

from seriatim.core.projection import projection
from seriatim.factory import open_read_model
from seriatim.store.readmodel import operations
from seriatim.store.readmodel.model import ProjectionMoved, ReadModel
from seriatim.testing.factories import wait_for
from tests.integration.readmodel_support import (
    LOG,
    begin_and_claim,
    keep_state,
    make_step,
    plan,
    seat_rows,
    seats,
    short_rows,
)
from tests.integration.readmodel_support import stored_row as row_of


def hold_until_killed(place: str, connection: Connection) -> None:
    """Hold a projection as a verification does, until the process is killed."""
    model = open_read_model(place)
    model.create_projection(seats, "default", LOG, shadow=True)
    token = model.claim("seats", "verify", 2.0, shadow=True)
    assert token is not None
    with model.hold("seats", token):
        connection.send("held")
        signal.pause()


def test_the_hold_of_a_killed_job_expires(model: ReadModel, place: str) -> None:
    """I4, I7: the hold of a killed job expires, and commits are accepted again."""
    token = begin_and_claim(model)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    job = context.Process(target=hold_until_killed, args=(place, there))
    job.start()
    assert here.recv() == "held"
    assert job.pid is not None
    os.kill(job.pid, signal.SIGKILL)
    job.join()

    standing = operations.get_progress(model, "seats")
    assert standing.status == "ready"
    if standing.held_until is not None:
        with pytest.raises(ProjectionMoved):
            model.commit(seats, make_step(0, 1, state_rows=seat_rows({"1a": 1}, 1)), token=token)
    wait_for(lambda: operations.get_progress(model, "seats").held_until is None)
    model.commit(seats, make_step(0, 1, state_rows=seat_rows({"1a": 1}, 1)), token=token)
    assert short_rows(model) == {"1a": 1}


def test_a_hold_lasts_as_long_as_its_lease(model: ReadModel) -> None:
    """I4: a hold refuses commits until its block or its lease ends."""
    token = begin_and_claim(model)
    model.create_projection(seats, "default", LOG, shadow=True)
    shadow = model.claim("seats", "verify", 60, shadow=True)
    assert shadow is not None
    with model.hold("seats", shadow):
        assert operations.get_progress(model, "seats").held_until is not None
        assert [one.held_until is None for one in model.list_progress()] == [False, True]
        with pytest.raises(ProjectionMoved):
            model.commit(seats, make_step(0, 1), token=token)
        model.renew("seats", shadow, 0.0, shadow=True)
        assert operations.get_progress(model, "seats").held_until is None
        model.commit(seats, make_step(0, 1), token=token)
        model.renew("seats", shadow, 60, shadow=True)
    assert operations.get_progress(model, "seats").held_until is None
    model.commit(seats, make_step(1, 2), token=token)


def test_a_pause_remains_after_a_hold(model: ReadModel) -> None:
    """I7: a projection that was paused stays paused after a hold."""
    token = begin_and_claim(model)
    operations.pause(model, "seats")
    model.create_projection(seats, "default", LOG, shadow=True)
    shadow = model.claim("seats", "verify", 60, shadow=True)
    assert shadow is not None
    with model.hold("seats", shadow):
        operations.pause(model, "seats")
    assert operations.get_progress(model, "seats").status == "paused"
    with pytest.raises(ProjectionMoved):
        model.commit(seats, make_step(0, 1), token=token)


def test_other_projections_are_not_held(model: ReadModel) -> None:
    """I7: a hold of one projection does not affect others."""
    other = projection("others", key="stream_id", columns={"taken": int})(keep_state)
    token = begin_and_claim(model, other)
    begin_and_claim(model)
    shadow = begin_and_claim(model, shadow=True)
    with model.hold("seats", shadow):
        model.commit(other, make_step(0, 1), token=token)


def test_a_refold_replaces_the_rows_of_its_key(model: ReadModel) -> None:
    """I3: a refold replaces the rows written at the events of its key, and no others."""
    firsts, lasts = plan.tables
    token = begin_and_claim(model, plan)
    rows = {
        "firsts": [row_of(firsts, 1, name="a", at=1), row_of(firsts, 2, name="b", at=2)],
        "lasts": [row_of(lasts, 3, name="a", at=3), row_of(lasts, 2, name="b", at=2)],
    }
    model.commit(plan, make_step(0, 3, rows=rows), token=token)
    mended = {
        "firsts": [row_of(firsts, 1, name="a", at=10), row_of(firsts, 1, name="c", at=10)],
        "lasts": [row_of(lasts, 3, name="a", at=30)],
    }
    owner = ("default", "x")

    assert model.refold(plan, owner, make_step(3, 3, rows=mended), [1, 3], token=token)
    assert _values(model, 0) == {"a": 10, "b": 2, "c": 10}
    assert _values(model, 1) == {"a": 30, "b": 2}

    lost = {"firsts": [row_of(firsts, 3, name="a", at=99)], "lasts": mended["lasts"]}
    assert not model.refold(plan, owner, make_step(3, 3, rows=lost), [1, 3], token=token)
    assert not model.refold(plan, owner, make_step(3, 3, rows={}), [1, 3], token=token)
    assert _values(model, 0) == {"a": 10, "b": 2, "c": 10}


def _values(model: ReadModel, table: int) -> dict[str, int]:
    with model.snapshot() as moment:
        return {row["name"]: row["at"] for _, row, _ in moment.rows(plan, plan.tables[table])}
