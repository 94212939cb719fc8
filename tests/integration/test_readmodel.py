"""A read model on SQLite and Postgres: cursors, rows, failures and leases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from seriatim.core.errors import (
    BackendFailure,
    Conflict,
    InvalidArgument,
    LeaseLost,
    NotFound,
)
from seriatim.core.event import LogIdentity
from seriatim.core.projection import Table, projection
from seriatim.factory import open_read_model
from seriatim.store.readmodel import tables
from seriatim.store.readmodel.model import ProjectionMoved, ReadModel
from seriatim.store.readmodel.operations import pause, resume, retry, skip
from tests.integration.readmodel_support import (
    LOG,
    SeatCount,
    begin_and_claim,
    keep_state,
    make_failure,
    make_step,
    plan,
    rows_of,
    seat_rows,
    seats,
    short_rows,
    stored_row,
    sums,
)


def run_concurrently(count: int, act: Callable[[int], Any]) -> list[Any]:
    """Run a function in several threads at the same moment."""
    barrier = threading.Barrier(count)

    def one(number: int) -> Any:
        barrier.wait()
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


# -- creation


def test_a_new_projection_is_at_position_0(model: ReadModel) -> None:
    """I2: a new projection has a cursor at position 0."""
    made = model.create_projection(seats, "default", LOG)

    assert (made.position, made.last_event_id, made.status, made.owner, made.token) == (
        0,
        "",
        "ready",
        "",
        0,
    )
    assert (made.log_id, made.epoch, made.declaration) == (LOG.log_id, 1, seats.declaration)
    assert model.progress("seats") == made
    assert model.progress("seats", shadow=True) is None
    assert model.list_progress() == [made]


def test_creating_a_projection_again_changes_nothing(model: ReadModel) -> None:
    """I2: creating a known projection keeps its position, declaration and log."""
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 5, state_rows=seat_rows({"1a": 1}, 5)), token=token)
    changed = msgspec.structs.replace(seats, version=2)
    again = model.create_projection(changed, "default", LogIdentity("other", 9))

    assert (again.position, again.declaration, again.log_id) == (5, seats.declaration, LOG.log_id)
    assert short_rows(model) == {"1a": 1}


@pytest.fixture
def slow_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delay the creation of tables, so that concurrent runners overlap."""
    create = tables.build_create_statement

    def slowly(*args: Any, **options: Any) -> str:
        time.sleep(0.2)
        return create(*args, **options)

    monkeypatch.setattr(tables, "build_create_statement", slowly)


@pytest.mark.usefixtures("slow_tables")
def test_concurrent_creations_of_a_projection(place: str) -> None:
    """I8: runners that create a projection concurrently all find it at position 0."""

    def begin(_: int) -> int:
        model = open_read_model(place)
        try:
            return model.create_projection(plan, "default", LOG).position
        finally:
            model.close()

    assert run_concurrently(6, begin) == [0] * 6


def test_tenants_do_not_share_a_read_model(model: ReadModel) -> None:
    """K1: a read model belongs to one tenant; another one gets a conflict."""
    model.create_projection(seats, "default", LOG)

    for made in (seats, plan):
        with pytest.raises(Conflict, match="belongs to tenant 'default', not 'other'"):
            model.create_projection(made, "other", LOG)
    assert [one.name for one in model.list_progress()] == ["seats"]


@pytest.mark.usefixtures("slow_tables")
def test_concurrent_creations_by_two_tenants(place: str) -> None:
    """K1: of two tenants that create a read model concurrently one gets a conflict."""

    def begin(number: int) -> str:
        model = open_read_model(place)
        try:
            return model.create_projection((seats, plan)[number], f"t{number}", LOG).tenant_id
        except Conflict as error:
            return error.code
        finally:
            model.close()

    assert sorted(run_concurrently(2, begin)) in (["conflict", "t0"], ["conflict", "t1"])


def test_projections_do_not_share_a_table(model: ReadModel) -> None:
    """I4: a projection whose table name another projection uses is refused."""
    maps = [Table("map", {"row": str}, {})]
    first = projection("seats", key="stream_id", tables=maps, state=SeatCount)(keep_state)
    second = projection("seats_map", key="stream_id", columns={"taken": int})(keep_state)
    model.create_projection(first, "default", LOG)

    with pytest.raises(Conflict, match="projection seats already has a table seats_map"):
        model.create_projection(second, "default", LOG)
    assert rows_of(model, first) == []


@pytest.mark.parametrize("words", [("select", "group"), ("order", "user"), ("table", "end")])
def test_sql_keywords_are_valid_names(model: ReadModel, words: tuple[str, str]) -> None:
    """I1: SQL keywords are valid names of tables and columns."""
    name, column = words
    made = projection(
        name,
        key="payload.from",
        columns={column: int, "rowid": int, "oid": int, "excluded": str, "t": str, "o": str},
    )(keep_state)
    token = begin_and_claim(model, made)
    row = {"key": "a", column: 1, "rowid": 5, "oid": 6, "excluded": "x", "t": "y", "o": "z"}
    rows = {("default", "a"): stored_row(made.tables[0], 1, **row)}
    model.commit(made, make_step(0, 1, state_rows=rows), token=token)
    model.commit(made, make_step(1, 2, state_rows=rows), token=token)

    assert rows_of(model, made) == [row]
    assert model.load_states(made, [("default", "a")]) == {("default", "a"): row}
    shadow = begin_and_claim(model, made, shadow=True)
    model.commit(made, make_step(0, 2, state_rows=rows), token=shadow, shadow=True)
    assert model.switch(made)
    assert rows_of(model, made) == [row]


# -- committing


def test_rows_and_cursor_move_together(model: ReadModel) -> None:
    """I2: a commit stores rows, position and last event id."""
    token = begin_and_claim(model)
    before = model.progress("seats")
    model.commit(seats, make_step(0, 3, state_rows=seat_rows({"1a": 1, "1b": 2}, 3)), token=token)
    after = model.progress("seats")

    assert before is not None
    assert after is not None
    assert (after.position, after.last_event_id, after.status) == (3, "e3", "ready")
    assert after.updated_at >= before.updated_at
    assert short_rows(model) == {"1a": 1, "1b": 2}


def test_rows_are_replaced_and_deleted(model: ReadModel) -> None:
    """I1: a row is replaced, or deleted if the fold returns None."""
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 3, state_rows=seat_rows({"1a": 1, "1b": 2}, 3)), token=token)
    model.commit(
        seats,
        make_step(3, 6, state_rows=seat_rows({"1a": None, "1b": 7, "1c": None}, 6)),
        token=token,
    )

    assert short_rows(model) == {"1b": 7}


def test_a_batch_without_rows_moves_the_cursor(model: ReadModel) -> None:
    """I2: a step without rows moves the cursor."""
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 9), token=token)

    assert [one.position for one in model.list_progress()] == [9]


def refused_step(after: int) -> Any:
    """Make a step whose last part the database refuses."""
    bad = (make_failure(7), "nonsense")
    return make_step(
        after, 7, state_rows=seat_rows({"1a": None, "1b": 9, "1d": 4}, 7), failures=[bad]
    )


def test_a_commit_is_all_or_nothing(model: ReadModel) -> None:
    """I2: an error at the end of a commit rolls back rows, failures and cursor."""
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 3, state_rows=seat_rows({"1a": 1, "1b": 2}, 3)), token=token)

    with pytest.raises(BackendFailure):
        model.commit(seats, refused_step(3), token=token)
    assert short_rows(model) == {"1a": 1, "1b": 2}
    assert [one.position for one in model.list_progress()] == [3]
    assert model.failures("seats") == []
    model.commit(seats, make_step(3, 7, state_rows=seat_rows({"1a": 5}, 7)), token=token)
    assert short_rows(model) == {"1a": 5, "1b": 2}


def test_a_commit_from_another_position_changes_nothing(model: ReadModel) -> None:
    """I2: a step that does not start at the cursor is refused."""
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 3, state_rows=seat_rows({"1a": 1}, 3)), token=token)

    for after in (0, 2, 4):
        with pytest.raises(ProjectionMoved):
            model.commit(
                seats, make_step(after, 8, state_rows=seat_rows({"1a": 2}, 8)), token=token
            )
    assert short_rows(model) == {"1a": 1}
    assert [one.position for one in model.list_progress()] == [3]


def test_a_paused_projection_takes_no_step(model: ReadModel) -> None:
    """I7: a commit to a paused projection is refused, and accepted after it is resumed."""
    token = begin_and_claim(model)
    model.set_status("seats", "paused")
    with pytest.raises(ProjectionMoved):
        model.commit(seats, make_step(0, 3, state_rows=seat_rows({"1a": 1}, 3)), token=token)
    assert short_rows(model) == {}
    model.set_status("seats", "ready")
    model.commit(seats, make_step(0, 3, state_rows=seat_rows({"1a": 1}, 3)), token=token)
    assert short_rows(model) == {"1a": 1}


@pytest.mark.parametrize("off", [-1, 1])
def test_a_commit_by_another_runner_changes_nothing(model: ReadModel, off: int) -> None:
    """I8: a commit with another fencing token than the current one is refused."""
    token = begin_and_claim(model)

    with pytest.raises(LeaseLost, match="another runner has claimed projection seats") as caught:
        model.commit(seats, make_step(0, 3, state_rows=seat_rows({"1a": 1}, 3)), token=token + off)
    assert caught.value.details == {"projection": "seats"}
    assert (short_rows(model), model.list_progress()[0].position) == ({}, 0)


def test_commit_to_a_missing_projection_is_refused(model: ReadModel) -> None:
    """I8: a commit to a projection that was never created is refused."""
    with pytest.raises(LeaseLost):
        model.commit(seats, make_step(0, 3), token=0)


def test_one_of_several_concurrent_commits_succeeds(place: str, model: ReadModel) -> None:
    """I2: of concurrent commits of one step exactly one is applied."""
    token = begin_and_claim(model)

    def commit(number: int) -> str:
        mine = open_read_model(place)
        try:
            mine.commit(
                seats, make_step(0, 3, state_rows=seat_rows({"1a": number}, 3)), token=token
            )
        except ProjectionMoved:
            return "moved"
        finally:
            mine.close()
        return "done"

    assert sorted(run_concurrently(4, commit)) == ["done", "moved", "moved", "moved"]


def test_a_commit_stores_the_status(model: ReadModel) -> None:
    """I7: the status of a stopped projection is stored with its last step."""
    token = begin_and_claim(model)
    record_failures = [(make_failure(4), "stopped")]
    model.commit(seats, make_step(0, 3, failures=record_failures), token=token, status="failed")

    assert [one.status for one in model.list_progress()] == ["failed"]
    assert [failure.status for failure in model.failures("seats")] == ["stopped"]


def test_states_are_returned_as_stored(model: ReadModel) -> None:
    """I3: a stored state is returned unchanged."""
    token = begin_and_claim(model, plan)
    states = {("default", "a"): (3, '{"count":1}'), ("default", "ü'\"\\"): (2, '{"count":2}')}
    model.commit(plan, make_step(0, 3, states=states), token=token)
    wanted = [("default", "a"), ("default", "ü'\"\\"), ("default", "b"), ("other", "a")]

    assert model.load_states(plan, wanted) == {owner: text for owner, (_, text) in states.items()}
    assert model.load_states(plan, []) == {}
    model.commit(plan, make_step(3, 4, states={wanted[0]: (4, '{"count":5}')}), token=token)
    assert model.load_states(plan, wanted[:1]) == {wanted[0]: '{"count":5}'}


def test_rows_as_states(model: ReadModel) -> None:
    """I3: a row that is a state is found by key and tenant."""
    token = begin_and_claim(model)
    both = seat_rows({"1a": 1, "1b": 2}, 3) | seat_rows({"1a": 5}, 3, "other")
    model.commit(seats, make_step(0, 3, state_rows=both), token=token)

    assert model.load_states(seats, [("default", "1a"), ("other", "1a"), ("default", "9")]) == {
        ("default", "1a"): {"stream_id": "1a", "taken": 1},
        ("other", "1a"): {"stream_id": "1a", "taken": 5},
    }


def test_tables_keep_the_first_or_the_last_row(model: ReadModel) -> None:
    """I1: a table keeps the first or last row by position, in whichever order steps arrive."""
    token = begin_and_claim(model, plan)
    firsts, lasts = plan.tables
    for after, position in ((0, 5), (1, 3), (2, 9), (3, 9)):
        rows = {
            table.name: [stored_row(table, position, name="x", at=position * 10 + after)]
            for table in (firsts, lasts)
        }
        model.commit(plan, make_step(after, after + 1, rows=rows), token=token)

    assert rows_of(model, plan, 0) == [{"name": "x", "at": 31}]
    assert rows_of(model, plan, 1) == [{"name": "x", "at": 93}]


def test_partial_results_are_merged(model: ReadModel) -> None:
    """I1: partial results are merged by sum, minimum and maximum; NULL is ignored."""
    token = begin_and_claim(model, sums)
    (table,) = sums.tables
    parts: list[tuple[Any, Any, Any]] = [
        (None, None, None),
        (5, 3, 1.5),
        (None, None, None),
        (-2, 7, -1.0),
        (10, -4, 2.5),
    ]
    for number, (total, least, most) in enumerate(parts):
        row = stored_row(table, 9 - number, kind="k", total=total, least=least, most=most)
        model.commit(sums, make_step(number, number + 1, rows={"sums": [row]}), token=token)

    assert rows_of(model, sums) == [{"kind": "k", "total": 13, "least": -4, "most": 2.5}]
    with model.snapshot() as moment:
        assert [position for *_, position in moment.rows(sums, table)] == [9]


def test_a_sum_beyond_64_bits_is_refused(model: ReadModel) -> None:
    """I2: a sum over 64 bits fails the commit and leaves rows and cursor."""
    token = begin_and_claim(model, sums)
    (table,) = sums.tables
    big = stored_row(table, 1, kind="k", total=(1 << 63) - 1, least=None, most=None)
    model.commit(sums, make_step(0, 1, rows={"sums": [big]}), token=token)

    with pytest.raises(BackendFailure):
        model.commit(sums, make_step(1, 2, rows={"sums": [big]}), token=token)
    assert rows_of(model, sums)[0]["total"] == (1 << 63) - 1
    assert model.list_progress()[0].position == 1


def test_a_part_of_a_rebuild_may_be_stored_twice(model: ReadModel) -> None:
    """I4: storing a part of a rebuild twice does not change its sums."""
    begin_and_claim(model, sums, shadow=True)
    row = stored_row(sums.tables[0], 4, kind="k", total=3, least=1, most=2.0)
    for _ in range(2):
        model.write_shadow_part(sums, make_step(0, 0, rows={"sums": [row]}), "me")

    assert rows_of(model, sums, shadow=True) == [{"kind": "k", "total": 3, "least": 1, "most": 2.0}]


def test_a_step_of_fifty_thousand_rows(model: ReadModel) -> None:
    """I2: a step with 50,000 rows is committed in one transaction."""
    token = begin_and_claim(model)
    rows = seat_rows({f"k{number:05}": number for number in range(50_000)}, 1)
    began = time.monotonic()
    model.commit(seats, make_step(0, 1, state_rows=rows), token=token)

    assert time.monotonic() - began < 30
    with model.snapshot() as moment:
        digest = moment.compute_digest(seats)
    assert digest.count == 50_000
    owners = [("default", f"k{number:05}") for number in range(0, 60_000, 2)]
    assert len(model.load_states(seats, owners)) == 25_000
    gone = seat_rows({f"k{number:05}": None for number in range(49_999)}, 2)
    model.commit(seats, make_step(1, 2, state_rows=gone), token=token)
    assert short_rows(model) == {"k49999": 49_999}


# -- snapshots


def test_snapshot_is_consistent(place: str, model: ReadModel) -> None:
    """I3: rows, digest and position of a snapshot stay the same during writes."""
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 1, state_rows=seat_rows({"1a": 1}, 1)), token=token)
    writer = open_read_model(place)
    with model.snapshot() as moment:
        assert (at := moment.progress("seats")) is not None
        before = moment.compute_digest(seats)
        writer.commit(
            seats, make_step(1, 2, state_rows=seat_rows({"1a": 2, "1b": 3}, 2)), token=token
        )
        after = moment.compute_digest(seats)
        still = moment.progress("seats")
        assert moment.progress("other") is None
    writer.close()

    assert (before.text(), before.count, at.position) == (after.text(), 1, 1)
    assert still == at
    with model.snapshot() as moment:
        assert moment.compute_digest(seats).text() != before.text()


def test_digests_depend_on_rows_only(model: ReadModel) -> None:
    """I3: equal rows have equal digests, however they were written; other rows differ."""
    token = begin_and_claim(model)
    shadow = begin_and_claim(model, shadow=True)
    model.commit(seats, make_step(0, 1, state_rows=seat_rows({"1a": 1}, 1)), token=token)
    model.commit(seats, make_step(1, 2, state_rows=seat_rows({"1a": 3, "1b": 2}, 2)), token=token)
    model.write_shadow_part(
        seats, make_step(0, 0, state_rows=seat_rows({"1b": 2, "1a": 3}, 9)), "me"
    )
    with model.snapshot() as moment:
        pair = moment.compute_digest(seats).text(), moment.compute_digest(seats, shadow=True).text()
    model.commit(
        seats, make_step(0, 1, state_rows=seat_rows({"1b": 4}, 1)), token=shadow, shadow=True
    )
    with model.snapshot() as moment:
        newer = moment.compute_digest(seats, shadow=True).text()

    assert pair[0] == pair[1]
    assert newer == pair[0], "an older row does not replace a newer one"
    model.commit(
        seats, make_step(1, 20, state_rows=seat_rows({"1b": 4}, 20)), token=shadow, shadow=True
    )
    with model.snapshot() as moment:
        assert moment.compute_digest(seats, shadow=True).text() != pair[0]


def test_rows_are_ordered_by_key(model: ReadModel) -> None:
    """I3: rows are ordered by the code points of their key on both databases."""
    token = begin_and_claim(model)
    keys = ["Z", "a", "ä", "B", "_", "é", "zz", "\U0001f30d", "\ufffd", "10", "9", "a b"]
    model.commit(
        seats, make_step(0, 1, state_rows=seat_rows(dict.fromkeys(keys, 1), 1)), token=token
    )

    assert list(short_rows(model)) == sorted(keys)


# -- failures


def record_failures(model: ReadModel) -> int:
    """Record a failure of each kind."""
    token = begin_and_claim(model)
    made = [
        (make_failure(2), "parked"),
        (make_failure(3, "1b"), "skipped"),
        (make_failure(4, "1c"), "passed"),
    ]
    model.commit(seats, make_step(0, 5, failures=made), token=token)
    return token


def test_failures_are_stored(model: ReadModel) -> None:
    """I7: a failure is stored with event, key, reason, time and status."""
    record_failures(model)
    first, second, third = model.failures("seats")

    assert (first.failure, first.status, first.again) == (make_failure(2), "parked", False)
    assert [one.status for one in (second, third)] == ["skipped", "passed"]
    assert first.failed_at.endswith("Z")
    assert model.load_exceptions("seats") == (frozenset({("default", "1a")}), frozenset({4}))
    assert model.failures("other") == []
    assert model.load_exceptions("seats", shadow=True) == (frozenset(), frozenset())


def test_operators_retry_or_skip_failures(model: ReadModel) -> None:
    """I7: retry marks keys to be folded again, skip omits the event permanently."""
    record_failures(model)

    assert retry(model, "seats") == 2
    assert [failure.again for failure in model.failures("seats")] == [True, True, False]
    skip(model, "seats", 3)
    assert [(failure.status, failure.again) for failure in model.failures("seats")][1] == (
        "passed",
        True,
    )
    for act in (retry, skip):
        with pytest.raises(NotFound, match="projection seats has no failure at position 99"):
            act(model, "seats", 99)
        with pytest.raises(NotFound, match="there is no projection 'other'"):
            act(model, "other", 2)
    with pytest.raises(NotFound, match="has no failure at position 99"):
        model.set_failure_status("seats", 99, "passed", again=False)


def test_resolving_a_failure_makes_the_projection_ready(model: ReadModel) -> None:
    """I7: a stopped projection is ready after its failure is retried or skipped."""
    token = begin_and_claim(model)
    for position, act in ((4, retry), (8, skip)):
        stopped = [(make_failure(position), "stopped")]
        after = model.list_progress()[0].position
        model.commit(
            seats, make_step(after, position - 1, failures=stopped), token=token, status="failed"
        )
        act(model, "seats", position)
        assert model.list_progress()[0].status == "ready"

    assert [
        (failure.failure.position, failure.status, failure.again)
        for failure in model.failures("seats")
    ] == [(8, "passed", False)]


def test_pause_and_resume(model: ReadModel) -> None:
    """I7: pausing and resuming a failed projection leaves it failed."""
    token = begin_and_claim(model)
    pause(model, "seats")
    pause(model, "seats")
    assert model.list_progress()[0].status == "paused"
    resume(model, "seats")
    assert model.list_progress()[0].status == "ready"
    model.commit(seats, make_step(0, 1), token=token, status="failed")
    pause(model, "seats")
    resume(model, "seats")

    assert model.list_progress()[0].status == "failed"


def test_refold_replaces_rows_and_failures(model: ReadModel) -> None:
    """I7: a refold replaces the key's rows and failures, and keeps skipped events."""
    token = record_failures(model)
    model.commit(seats, make_step(5, 6, state_rows=seat_rows({"1a": 1, "1b": 2}, 6)), token=token)
    model.set_failure_status("seats", 2, "parked", again=True)
    model.refold(
        seats,
        ("default", "1a"),
        make_step(6, 6, state_rows=seat_rows({"1a": 9}, 6)),
        [],
        token=token,
    )
    model.refold(seats, ("default", "1c"), make_step(6, 6), [], token=token)

    assert short_rows(model) == {"1a": 9, "1b": 2}
    assert [failure.failure.position for failure in model.failures("seats")] == [3, 4]
    assert model.list_progress()[0].position == 6
    model.refold(
        seats,
        ("default", "1b"),
        make_step(
            6,
            6,
            state_rows=seat_rows({"1b": None}, 6),
            failures=[(make_failure(3, "1b"), "parked")],
        ),
        [],
        token=token,
    )
    assert short_rows(model) == {"1a": 9}
    assert [failure.status for failure in model.failures("seats")] == ["parked", "passed"]


def test_refold_requires_the_current_cursor_and_token(model: ReadModel) -> None:
    """I2, I8: a refold at another position or with another token is refused."""
    token = record_failures(model)
    model.commit(seats, make_step(5, 6, state_rows=seat_rows({"1a": 1}, 6)), token=token)

    for wrong in ({"token": token, "until": 5}, {"token": token + 1, "until": 6}):
        until = wrong["until"]
        with pytest.raises(ProjectionMoved):
            model.refold(
                seats,
                ("default", "1a"),
                make_step(until, until, state_rows=seat_rows({"1a": 9}, until)),
                [],
                token=wrong["token"],
            )
    assert short_rows(model) == {"1a": 1}


# -- leases


def test_one_of_several_concurrent_claims_succeeds(place: str, model: ReadModel) -> None:
    """I8: of concurrent claims of one projection exactly one succeeds."""
    model.create_projection(seats, "default", LOG)

    def claim(number: int) -> int | None:
        mine = open_read_model(place)
        try:
            return mine.claim("seats", f"runner {number}", 60)
        finally:
            mine.close()

    assert sorted(run_concurrently(6, claim), key=str) == [1, None, None, None, None, None]


def test_an_expired_lease_can_be_claimed(model: ReadModel) -> None:
    """I8: an expired lease can be claimed with a higher token; the old one is refused."""
    model.create_projection(seats, "default", LOG)
    first = model.claim("seats", "one", 0.3)
    assert first == 1
    assert model.claim("seats", "two", 60) is None
    assert model.list_progress()[0].owner == "one"
    time.sleep(0.35)
    assert model.list_progress()[0].owner == ""
    second = model.claim("seats", "two", 60)

    assert second == 2
    assert model.renew("seats", first, 60) is False
    assert model.list_progress()[0].owner == "two"
    with pytest.raises(LeaseLost):
        model.commit(seats, make_step(0, 1), token=first)


def test_a_lease_is_renewed_and_released(model: ReadModel) -> None:
    """I8: a renewed lease cannot be claimed; one renewed for 0 s can."""
    model.create_projection(seats, "default", LOG)
    token = model.claim("seats", "one", 0.3)
    assert token is not None
    assert model.renew("seats", token, 60)
    time.sleep(0.35)
    assert model.claim("seats", "two", 60) is None
    assert model.renew("seats", token, 0)

    assert model.claim("seats", "two", 60) == token + 1


def test_a_runner_may_claim_again(model: ReadModel) -> None:
    """I8: a runner that claims again gets a higher token."""
    model.create_projection(seats, "default", LOG)
    first, second = (model.claim("seats", "one", 60) for _ in range(2))

    assert (first, second) == (1, 2)
    assert model.claim("other", "one", 60) is None
    assert model.claim("seats", "one", 60, shadow=True) is None


# -- locations


def test_a_read_model_is_reopened(place: str, model: ReadModel) -> None:
    """I2: rows are there when a read model is opened again."""
    token = begin_and_claim(model)
    model.commit(seats, make_step(0, 3, state_rows=seat_rows({"1a": 1}, 3)), token=token)
    model.close()
    again = open_read_model(place)

    assert short_rows(again) == {"1a": 1}
    again.close()


def test_a_dropped_projection_leaves_nothing(model: ReadModel) -> None:
    """I4: dropping a projection removes all its tables, also those of an older declaration."""
    token = begin_and_claim(model, plan)
    firsts = plan.tables[0]
    rows = {"firsts": [stored_row(firsts, 1, name="x", at=1)]}
    noted_ = [(make_failure(1), "skipped")]
    model.commit(plan, make_step(0, 1, rows=rows, failures=noted_), token=token)
    newer = projection("plan", key="stream_id", columns={"a": int})(keep_state)
    model.drop(newer, shadow=False)

    assert (model.list_progress(), model.failures("plan")) == ([], [])
    begin_and_claim(model, plan)
    assert rows_of(model, plan) == []


def test_a_read_model_in_memory_is_refused() -> None:
    """I1: a read model needs a database."""
    with pytest.raises(InvalidArgument, match="the read model must be in a database"):
        open_read_model("memory:")


def test_long_names(model: ReadModel) -> None:
    """I4: projections, tables and columns with the longest names can be rebuilt."""
    made = projection(
        "p" * 40,
        key="stream_id",
        tables=[Table("t" * 14, {"k" * 40: str}, {"c" * 40: int})],
        state=SeatCount,
    )(keep_state)
    row = {"k" * 40: "a", "c" * 40: 1}
    token = begin_and_claim(model, made)
    shadow = begin_and_claim(model, made, shadow=True)
    rows = {"t" * 14: [stored_row(made.tables[0], 1, **row)]}
    model.commit(made, make_step(0, 1, rows=rows), token=token)

    assert rows_of(model, made, shadow=True) == []
    model.commit(made, make_step(0, 1), token=shadow, shadow=True)
    assert model.switch(made)
    assert rows_of(model, made) == []
