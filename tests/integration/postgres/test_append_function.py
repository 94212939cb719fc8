"""The function `append_events` checks the rows that it stores; so are rows inserted another way."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

import seriatim
from seriatim import ExpectedContext, ExpectedSeq, Filter, NewEvent, Query
from seriatim.core.ids import stream_key
from seriatim.core.request import Condition
from seriatim.log.verification import verify
from tests.integration.postgres.conftest import as_role, declare_orders, insert_by_hand, role_of

Row = tuple[tuple[str, str] | None, int | None, str]
PARAMETERS = ("keys", "types", "counts", "indexes", "ranks")  # of the streams, in their order


@pytest.fixture
def filled(postgres_url: str) -> str:
    """A log with declared orders: `order/1` is closed, `order/2` is open; its head is 3."""
    with seriatim.open(postgres_url) as log:
        declare_orders(log)
        log.append([NewEvent("order.opened", stream=("order", "1"))])
        log.append([NewEvent("order.closed", stream=("order", "1"))])
        log.append([NewEvent("order.opened", stream=("order", "2"))])
    return postgres_url


def call(url: str, rows: Sequence[Row], **lies: list[Any] | None) -> list[int | None]:
    """Call the function as a program with its own idea of streams and numbers would.

    Args:
        url: The URL of the log.
        rows: The events.
        lies: Parameters about the streams that differ from what the rows say.

    Returns:
        The stream number that the program computes for each event.

    """
    columns = "(0, %s::bigint, 1, null, 1, %s::uuid, %s::uuid, null, %s::bytea, null, 'default', "
    columns += "null, %s, %s, %s" + ", null" * 13 + ", '{}', null)::seriatim.new_event"
    values: list[Any] = []
    streams: list[tuple[str, str]] = []
    said: dict[str, list[Any] | None] = {"indexes": [], "ranks": []}
    for stream, seq, event_type in rows:
        key = stream_key("default", *stream).hex() if stream else None
        stream_type, stream_id = stream or (None, None)
        values += [seq, uuid.uuid4(), key, bytes(32), stream_type, stream_id, event_type]
        if stream and stream not in streams:
            streams.append(stream)
        said["indexes"] += [streams.index(stream) + 1 if stream else 0]  # type: ignore[operator]
        said["ranks"] += [sum(of == stream for of, _, _ in rows[: len(values) // 7])]  # type: ignore[operator]
    said |= {
        "keys": [stream_key("default", *stream).hex() for stream in streams],
        "types": [stream_type for stream_type, _ in streams],
        "counts": [sum(of == stream for of, _, _ in rows) for stream in streams],
        **lies,
    }
    array = ", ".join([f"row{columns}"] * len(rows))
    with psycopg.connect(url) as connection:
        [(version,)] = connection.execute("select max(version) from seriatim.declarations")
        [((_, _, *ends),)] = connection.execute(
            f"select seriatim.append_events(1, 1000, %s, null, null, false, array[{array}], "
            "%s::uuid[], %s, %s, %s, %s)".encode(),
            [version, *values, *(said[name] for name in PARAMETERS)],
        )
    indexes, ranks = said["indexes"] or [], said["ranks"] or []
    return [
        ends[index - 1] + rank if index else None
        for index, rank in zip(indexes, ranks, strict=True)
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [(("order", "1"), None, "order.changed")],  # after the closing event
        [(("order", "3"), None, "order.changed")],  # the stream must open
        [(("order", "2"), None, "order.opened")],  # and opens once
        [(("order", "2"), None, "parcel.sent")],  # not in the closed catalogue
        [(("order", "2"), 3, "order.changed")],  # the next number is 2
        [(("free", "1"), 0, "made")],  # the first number is 1
        [(("trace", "t"), 1, "TraceStarted")],  # and that of traces is 0
        [(("order", "2"), None, "order.closed"), (("order", "2"), None, "order.changed")],
        [(("free", "1"), None, "made"), (("free", "1"), 1, "made")],  # its number is 2
    ],
)
@pytest.mark.parametrize("beside", [0, 1, 40], ids=["alone", "beside another", "in a large group"])
def test_function_refuses_broken_streams(filled: str, rows: list[Row], beside: int) -> None:
    """F2: the function itself refuses numbers and types that the stream does not allow."""
    others: list[Row] = [(("free", f"{n % 7}"), None, "fact") for n in range(2, beside + 2)]
    with pytest.raises(psycopg.Error) as refused:
        call(filled, [*rows, *others])

    assert refused.value.sqlstate == "SQ001"


MADE: list[Row] = [(("free", "1"), None, "made"), (("free", "1"), None, "made")]


@pytest.mark.parametrize(
    ("rows", "lies"),
    [
        (MADE, {"ranks": [1, 3]}),
        (MADE, {"ranks": [0, 1]}),
        (MADE, {"ranks": [2, 3]}),
        (MADE, {"ranks": [2, 3], "counts": [3]}),  # more events than there are
        ([*MADE, (("free", "2"), None, "made")], {"ranks": [2, 3, 1], "counts": [3, 0]}),
        ([*MADE, (("free", "2"), None, "made")], {"ranks": [3, 4, 1], "counts": [4, -1]}),
        (MADE, {"ranks": [1, None]}),
        (MADE, {"indexes": [1, 2]}),  # there is no second stream
        (MADE, {"indexes": [1, 0]}),
        (MADE, {"indexes": None, "keys": None, "types": None, "counts": None, "ranks": None}),
        # order/1 is closed, whatever type the program gives it
        (
            [(("order", "1"), None, "made"), (("order", "1"), None, "made")],
            {"types": ["free"]},
        ),
    ],
)
def test_function_does_not_believe_its_caller(
    filled: str, rows: list[Row], lies: dict[str, list[Any] | None]
) -> None:
    """F2: ranks, counts and types that do not fit the events leave no gap in a stream."""
    with pytest.raises(psycopg.Error) as refused:
        call(filled, rows, **lies)

    assert refused.value.sqlstate == "SQ001"


@pytest.mark.parametrize(
    "lies",
    [
        {"ranks": [1, 1]},
        # the same stream twice
        {
            "keys": [stream_key("default", "free", "1").hex()] * 2,
            "types": ["free"] * 2,
            "counts": [1, 1],
            "indexes": [1, 2],
            "ranks": [1, 1],
        },
    ],
)
def test_function_refuses_equal_ranks(filled: str, lies: dict[str, list[Any] | None]) -> None:
    """F2: two events of a stream with the same number violate the unique index."""
    with pytest.raises(psycopg.errors.UniqueViolation):
        call(filled, MADE, **lies)


def test_function_refuses_facts_with_a_stream(filled: str) -> None:
    """F2: an event without a stream id cannot be counted among those of a stream."""
    rows: list[Row] = [(("free", "1"), None, "made"), (None, None, "fact")]
    with pytest.raises(psycopg.errors.CheckViolation):
        call(filled, rows, indexes=[1, 1], ranks=[1, 2], counts=[2])


def test_function_numbers_sound_groups(filled: str) -> None:
    """F2, B5: the function continues existing streams and begins new ones."""
    rows: list[Row] = [
        (("order", "2"), 2, "order.changed"),
        (("free", "1"), None, "made"),
        (None, None, "fact"),
        (("order", "2"), None, "order.closed"),
        (("trace", "t"), 0, "TraceStarted"),
    ]

    assert call(filled, rows) == [2, 1, None, 3, 0]
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


@pytest.mark.parametrize("path", ["fast", "large", "validated", "own transaction"])
def test_appends_are_checked_once(postgres_url: str, path: str) -> None:
    """F2: the function checks the appends of every path, and the trigger all other rows."""
    validated: list[Condition] = [
        ExpectedContext(Query([Filter(types=["none"])]), None),
        ExpectedSeq(("order", "9"), None),
    ]
    with seriatim.open(postgres_url) as log, psycopg.connect(postgres_url) as connection:
        connection.execute(
            "create or replace function seriatim.check_group() returns trigger language plpgsql as "
            "$$ begin raise exception using errcode = 'SQ009'; end $$"
        )
        connection.commit()
        event = NewEvent("placed", stream=("order", "1"), tags=("red",))
        if path == "own transaction":
            log.append([event, event], connection=connection)
        else:
            events = [event] * (100 if path == "large" else 2)
            log.append(events, validated if path == "validated" else None)
        connection.commit()
        with pytest.raises(psycopg.Error) as by_hand:
            insert_by_hand(connection, 200)

        assert by_hand.value.sqlstate == "SQ009"
        stored = log.query(Query([Filter(tags=["red"])])).records
        assert {record.stream_seq for record in stored} >= {1, 2}


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
                "select seriatim.append_events(1, 1, 0, 0, null, false, "
                "'{}'::seriatim.new_event[], null, null, null, null, null)"
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
