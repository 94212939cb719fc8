"""The lean statement, sent through libpq itself: a whole group for the price of one short call.

The driver's cursors are made for any query and cost more than the rest of a small append. This is
one query with five parameters of known types; libpq waits for its answer without holding the GIL.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import psycopg
from psycopg import pq

from seriatim.store.postgres.connecting import Connection, Hello
from seriatim.store.postgres.packing import array_of

_OID_BOOL, _OID_INT4, _OID_INT8 = 16, 23, 20
_INT4 = struct.Struct("!i").pack
_INT8 = struct.Struct("!q")
_BINARY = [pq.Format.BINARY] * 5
_ARRAY_HEADER = 20  # dimensions, null flag, element type, length, lower bound
_NULL = -1


def append_group(  # noqa: PLR0913 - the statement's parameters
    connection: Connection,
    statement: bytes,
    hello: Hello,
    *,
    wait_ms: int,
    rules_version: int,
    rows: Sequence[bytes],
    tagged: bool,
) -> tuple[int, int, list[int | None]]:
    """Append packed rows; return the head before them, their time and their stream numbers."""
    result = connection.pgconn.exec_params(
        statement,
        [
            _INT8.pack(hello.lock_key),
            _INT4(wait_ms),
            _INT4(rules_version),
            array_of(hello.row_array, hello.row_type, rows).data,
            b"\1" if tagged else b"\0",
        ],
        [_OID_INT8, _OID_INT4, _OID_INT4, hello.row_array, _OID_BOOL],
        _BINARY,
        pq.Format.BINARY,
    )
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise _error(connection, result)
    values = [result.get_value(0, column) or b"" for column in range(3)]
    return _INT8.unpack(values[0])[0], _INT8.unpack(values[1])[0], _numbers(values[2], len(rows))


def _error(connection: Connection, result: pq.abc.PGresult) -> psycopg.Error:
    if result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        return psycopg.OperationalError(connection.pgconn.error_message.decode(errors="replace"))
    return psycopg.errors.error_from_result(result)


def _numbers(data: bytes, count: int) -> list[int | None]:
    """Read a bigint array, in which events without a stream are null."""
    numbers: list[int | None] = []
    at = _ARRAY_HEADER
    for _ in range(count):
        (length,) = struct.unpack_from("!i", data, at)
        at += 4
        if length == _NULL:
            numbers.append(None)
        else:
            numbers.append(_INT8.unpack_from(data, at)[0])
            at += 8
    return numbers
