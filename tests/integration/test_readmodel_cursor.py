"""Rows and cursor of a projection are committed in one transaction."""

from __future__ import annotations

from typing import Any

import pytest

from seriatim.core.errors import BackendFailure
from seriatim.store.readmodel.model import ReadModel
from tests.integration.readmodel_support import (
    begin_and_claim,
    make_failure,
    make_step,
    seat_rows,
    seats,
    short_rows,
)


def step_with_refused_cursor(**parts: object) -> Any:
    """Make a step with valid rows and a cursor that violates a constraint."""
    made: Any = make_step(3, 7, state_rows=seat_rows({"1a": None, "1b": 9, "1c": 4}, 7), **parts)
    made.last_event_id = None
    return made


@pytest.mark.parametrize("shadow", [False, True])
def test_rows_are_rolled_back_with_their_cursor(model: ReadModel, shadow: bool) -> None:
    """I2: a step whose cursor is refused leaves no row, failure or status."""
    token = begin_and_claim(model, shadow=shadow)
    first = make_step(0, 3, state_rows=seat_rows({"1a": 1, "1b": 2}, 3))
    model.commit(seats, first, token=token, shadow=shadow)
    refused = step_with_refused_cursor(failures=[(make_failure(7), "parked")])

    with pytest.raises(BackendFailure):
        model.commit(seats, refused, token=token, shadow=shadow, status="failed")

    assert short_rows(model, shadow=shadow) == {"1a": 1, "1b": 2}
    assert [(one.position, one.status) for one in model.list_progress()] == [(3, "ready")]
    assert model.failures("seats", shadow=shadow) == []


def test_a_repeated_step_is_done_once(model: ReadModel) -> None:
    """I2: a step that is repeated after its cursor was refused is applied once."""
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 3, state_rows=seat_rows({"1a": 1}, 3)), token=token)
    with pytest.raises(BackendFailure):
        model.commit(seats, step_with_refused_cursor(), token=token)
    again = step_with_refused_cursor()
    again.last_event_id = "e7"
    model.commit(seats, again, token=token)

    assert short_rows(model) == {"1b": 9, "1c": 4}
    assert [(one.position, one.last_event_id) for one in model.list_progress()] == [(7, "e7")]
