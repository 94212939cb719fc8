"""The function `append_group` checks the rows that it stores; so are rows inserted another way."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import NewEvent
from seriatim.core.ids import stream_key
from seriatim.log.verification import verify
from tests.integration.postgres.conftest import as_role, declare_orders, insert_by_hand, role_of

Row = tuple[tuple[str, str] | None, int | None, str]


@pytest.fixture
def filled(postgres_url: str) -> str:
    """A log with declared orders: `order/1` is closed, `order/2` is open; its head is 3."""
    with seriatim.open(postgres_url) as log:
        declare_orders(log)
        log.append([NewEvent("order.opened", stream=("order", "1"))])
        log.append([NewEvent("order.closed", stream=("order", "1"))])
        log.append([NewEvent("order.opened", stream=("order", "2"))])
    return postgres_url


def call(url: str, rows: Sequence[Row], ranks: list[int] | None = None) -> list[int | None]:
    """Call the function as a program with its own idea of ranks and numbers would.

    Returns:
        The stream numbers that the function has assigned.

    """
    columns = "(0, %s::bigint, 1, null, 1, %s::uuid, %s::uuid, null, %s::bytea, null, 'default', "
    columns += "null, %s, %s, %s" + ", null" * 13 + ", '{}', null)::seriatim.new_event"
    values: list[Any] = []
    for stream, seq, event_type in rows:
        key = stream_key("default", *stream).hex() if stream else None
        stream_type, stream_id = stream or (None, None)
        values += [seq, uuid.uuid4(), key, bytes(32), stream_type, stream_id, event_type]
    array = ", ".join([f"row{columns}"] * len(rows))
    with psycopg.connect(url) as connection:
        [(version,)] = connection.execute("select max(version) from seriatim.declarations")
        [(placed,)] = connection.execute(
            f"select seriatim.append_group(1, 1000, %s, array[{array}], %s, false, null)".encode(),
            [version, *values, ranks],
        )
    numbers: list[int | None] = placed[2:]
    return numbers


@pytest.mark.parametrize(
    ("rows", "ranks"),
    [
        ([(("order", "1"), None, "order.changed")], None),  # after the closing event
        ([(("order", "3"), None, "order.changed")], None),  # the stream must open
        ([(("order", "2"), None, "order.opened")], None),  # and opens once
        ([(("order", "2"), None, "parcel.sent")], None),  # not in the closed catalogue
        ([(("order", "2"), 3, "order.changed")], None),  # the next number is 2
        ([(("free", "1"), 0, "made")], None),  # the first number is 1
        ([(("trace", "t"), 1, "TraceStarted")], None),  # and that of traces is 0
        ([(("free", "1"), None, "made")], [2]),  # no event has rank 1
        ([(("free", "1"), None, "made")], [0]),
        ([(("free", "1"), None, "made"), (("free", "1"), None, "made")], [1, 3]),
        (
            [(("order", "2"), None, "order.closed"), (("order", "2"), None, "order.changed")],
            [1, 2],
        ),
    ],
)
@pytest.mark.parametrize("beside", [[], [(None, None, "fact")]], ids=["alone", "beside another"])
def test_function_refuses_broken_streams(
    filled: str, rows: list[Row], ranks: list[int] | None, beside: list[Row]
) -> None:
    """F2: the function itself refuses numbers, ranks and types that the stream does not allow."""
    with pytest.raises(psycopg.Error) as refused:
        call(filled, [*rows, *beside], ranks and [*ranks, *(1 for _ in beside)])

    assert refused.value.sqlstate == "SQ001"


def test_function_refuses_equal_ranks(filled: str) -> None:
    """F2: two events of a stream with the same rank violate the unique index."""
    with pytest.raises(psycopg.errors.UniqueViolation):
        call(filled, [(("free", "1"), None, "a"), (("free", "1"), None, "b")])


def test_function_numbers_sound_groups(filled: str) -> None:
    """F2, B5: the function continues existing streams and begins new ones."""
    rows: list[Row] = [
        (("order", "2"), 2, "order.changed"),
        (("free", "1"), None, "made"),
        (None, None, "fact"),
        (("order", "2"), None, "order.closed"),
        (("trace", "t"), 0, "TraceStarted"),
    ]

    assert call(filled, rows, [1, 1, 1, 2, 1]) == [2, 1, None, 3, 0]
    with seriatim.open(filled) as log:
        assert log.head() == 8
        assert [event.position for event in log.read_stream(("order", "2"))] == [3, 4, 7]


@pytest.mark.parametrize(
    ("row", "number"),
    [
        ((("order", "2"), 2, "order.changed"), 2),
        ((("order", "2"), None, "order.closed"), 2),
        ((("free", "1"), None, "made"), 1),
        ((("trace", "t"), 0, "TraceStarted"), 0),
        ((None, None, "fact"), None),
    ],
)
def test_function_numbers_single_events(filled: str, row: Row, number: int | None) -> None:
    """F2, B5: a single event continues its stream or begins a new one, as in a group."""
    assert call(filled, [row]) == [number]
    with seriatim.open(filled) as log:
        assert [event.stream_seq for event in log.read(after=3)] == [number]


def test_setting_does_not_vouch_for_rows_of_a_role(filled: str, app_url: str) -> None:
    """F2: a role that sets `seriatim.checked` itself does not escape the trigger."""
    with psycopg.connect(app_url) as connection:
        connection.execute("set seriatim.checked = on")
        with pytest.raises(psycopg.Error) as refused:
            insert_by_hand(connection, 9)

    assert refused.value.sqlstate == "SQ001"


def test_function_requires_the_privilege_to_insert(
    filled: str, make_role: Callable[..., str]
) -> None:
    """F2: a role that may read, or that switched to such a role, cannot append by the function."""
    reader = make_role()
    with psycopg.connect(filled, autocommit=True) as connection:
        for grant in ("usage on schema seriatim", "select on all tables in schema seriatim"):
            connection.execute(f"grant {grant} to {reader}".encode())

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        call(as_role(filled, reader), [(None, None, "fact")])
    with psycopg.connect(filled) as connection:
        connection.execute(f"set role {reader}".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(
                "select seriatim.append_group(1, 1, 0, '{}'::seriatim.new_event[], null, false, 0)"
            )


def test_member_of_the_role_appends_after_set_role(
    postgres_url: str, app_url: str, make_role: Callable[..., str]
) -> None:
    """F9: a login that has its privileges only by SET ROLE appends."""
    login, app = make_role(), role_of(app_url)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"grant {app} to {login}".encode())
        connection.execute(f"alter role {login} noinherit".encode())
        connection.execute(f"alter role {login} set role = {app}".encode())

    with seriatim.open(as_role(postgres_url, login)) as log:
        log.append([NewEvent("fact")])
        assert log.head() == 1
        assert verify(log.store).ok
