"""The lean statement, sent through libpq itself: a whole group for the price of one short call.

The driver's cursors are made for any query and cost more than the rest of a small append. This is
one query with seven parameters of known types, sent and answered in steps, so that whoever sends it
may wait for the answer in its own way: a thread by polling, an event loop by watching the socket.
The bound on its time goes before it in the same message, and both are one transaction.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence

import psycopg
from psycopg import pq

from seriatim.core.request import Request
from seriatim.store.postgres.connecting import Connection, Hello
from seriatim.store.postgres.packing import array_of

_OID_BOOL, _OID_INT4, _OID_INT8, _OID_INT4S = 16, 23, 20, 1007
_INT4 = struct.Struct("!i").pack
_INT8 = struct.Struct("!q").pack
_BINARY = [pq.Format.BINARY] * 7
_ARRAY_HEADER = 20  # dimensions, null flag, element type, length, lower bound
_ELEMENTS = struct.Struct("!iq")
_NULL = -1


def send(  # noqa: PLR0913 - a statement and all it needs
    connection: Connection,
    statement: bytes,
    limit: tuple[bytes, bytes],
    hello: Hello,
    wait_ms: int,
    group: Sequence[Request],
) -> None:
    """Send a group of packed appends; `flush` and `is_busy` of libpq tell how it goes on.

    `limit` is a statement with its one value that bounds the time of the append.
    """
    rows = [row for request in group for row in request.packed.rows]
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    pgconn.send_query_params(limit[0], [limit[1]])
    pgconn.send_query_params(
        statement,
        [
            _INT8(hello.lock_key),
            _INT4(wait_ms),
            _INT4(group[0].rules_version),
            array_of(hello.row_array, hello.row_type, rows).data,
            _ranks(group),
            b"\1" if any(request.packed.tagged for request in group) else b"\0",
            None if (head := group[0].packed.head) is None else _INT8(head),
        ],
        [_OID_INT8, _OID_INT4, _OID_INT4, hello.row_array, _OID_INT4S, _OID_BOOL, _OID_INT8],
        _BINARY,
        pq.Format.BINARY,
    )
    pgconn.pipeline_sync()


def _ranks(group: Sequence[Request]) -> bytes | None:
    """Count, for each event, which of its stream's events in this group it is."""
    streams = [event.stream_key for request in group for event in request.events]
    if len(set(streams)) == len(streams):
        return None  # each is the first
    counts: dict[bytes | None, int] = {}
    ranks: list[bytes] = []
    for stream in streams:
        counts[stream] = rank = counts.get(stream, 0) + 1
        ranks.append(b"\0\0\0\4" + _INT4(rank))
    return array_of(_OID_INT4S, _OID_INT4, ranks).data


class Reply:
    """The answer to a group, as it comes in."""

    def __init__(self, connection: Connection) -> None:
        self._pgconn = connection.pgconn
        self._result: pq.abc.PGresult | None = None
        self._complete = False

    def whole(self) -> bool:
        """Take in what libpq has; never wait, which it would do with the GIL held."""
        pgconn = self._pgconn
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:  # it stands between two answers, unless the server is lost
                if pgconn.status != pq.ConnStatus.OK:
                    return True
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                pgconn.exit_pipeline_mode()
                self._complete = True
                return True
            elif self._result is None or self._result.status == pq.ExecStatus.TUPLES_OK:
                self._result = result  # the last answer, or the first that is an error
        return False

    def wait(self, deadline: float | None = None) -> None:
        """Wait in this thread until the answer is whole."""
        pgconn = self._pgconn
        socket = select.poll()
        socket.register(pgconn.socket, select.POLLIN)
        while pgconn.flush():
            socket.modify(pgconn.socket, select.POLLIN | select.POLLOUT)
            _poll(socket, deadline)
            pgconn.consume_input()
        socket.modify(pgconn.socket, select.POLLIN)
        while not self.whole():
            _poll(socket, deadline)
            pgconn.consume_input()

    def numbers(self) -> tuple[int, int, list[int | None]]:
        """Return the head before the group, its time, and its stream numbers."""
        # Rows may arrive before the commit: only the end of the answer confirms it.
        result = self._result if self._complete else None
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise error_of(self._pgconn, result)
        head, now, *seqs = _numbers(result.get_value(0, 0) or b"")
        assert head is not None and now is not None  # noqa: S101, PT018 - for the type checker
        return head, now, seqs


def _poll(socket: select.poll, deadline: float | None) -> None:
    left_ms = None if deadline is None else (deadline - time.monotonic()) * 1000
    if left_ms is not None and left_ms <= 0:
        raise TimeoutError
    socket.poll(left_ms)


def error_of(pgconn: pq.abc.PGconn, result: pq.abc.PGresult | None) -> psycopg.Error:
    """Return the exception for an answer that is an error, or for a broken connection."""
    if result is None or result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        return psycopg.OperationalError(pgconn.error_message.decode(errors="replace"))
    return psycopg.errors.error_from_result(result)


def _numbers(data: bytes) -> list[int | None]:
    """Read a bigint array, in which the numbers of events without a stream are null."""
    body = data[_ARRAY_HEADER:]
    if data[4:8] == b"\0\0\0\0":  # it holds no null
        return [number for _, number in _ELEMENTS.iter_unpack(body)]
    numbers: list[int | None] = []
    at = 0
    while at < len(body):
        (length,) = struct.unpack_from("!i", body, at)
        if length == _NULL:
            numbers.append(None)
            at += 4
        else:
            numbers.append(_ELEMENTS.unpack_from(body, at)[1])
            at += 12
    return numbers
