"""The fast path of appends: encode a request, send a group as one statement, read the reply.

The statement is sent through libpq, because a cursor of the driver costs more than the rest of a
small append. Sending and receiving are separate steps, so that a thread can poll the socket and an
event loop can watch it. The statement timeout is sent before the append in the same pipeline, and
both run in one transaction.
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


def send(  # noqa: PLR0913 - a statement and its parameters
    connection: Connection,
    statement: bytes,
    timeout: tuple[bytes, bytes],
    server_info: Hello,
    wait_ms: int,
    group: Sequence[Request],
) -> None:
    """Send a group of encoded appends without waiting; read the reply with `GroupReply`.

    Args:
        connection: An idle connection.
        statement: The statement `append_group`.
        timeout: The statement that limits the time of the append, and its parameter.
        server_info: The lock key and type oids of the log.
        wait_ms: How long to wait for the log's lock.
        group: The appends, all encoded for the fast path.

    """
    rows = [row for request in group for row in request.packed.rows]
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    pgconn.send_query_params(timeout[0], [timeout[1]])
    pgconn.send_query_params(
        statement,
        [
            _INT8(server_info.lock_key),
            _INT4(wait_ms),
            _INT4(group[0].rules_version),
            array_of(server_info.row_array, server_info.row_type, rows).data,
            _encode_ranks(group),
            b"\1" if any(request.packed.tagged for request in group) else b"\0",
            None if (head := group[0].packed.head) is None else _INT8(head),
        ],
        [_OID_INT8, _OID_INT4, _OID_INT4, server_info.row_array, _OID_INT4S, _OID_BOOL, _OID_INT8],
        _BINARY,
        pq.Format.BINARY,
    )
    pgconn.pipeline_sync()


def _encode_ranks(group: Sequence[Request]) -> bytes | None:
    """Encode the rank of each event among the events of its stream in this group, from 1."""
    streams = [event.stream_key for request in group for event in request.events]
    if len(set(streams)) == len(streams):
        return None  # every rank is 1
    counts: dict[bytes | None, int] = {}
    ranks: list[bytes] = []
    for stream in streams:
        counts[stream] = rank = counts.get(stream, 0) + 1
        ranks.append(b"\0\0\0\4" + _INT4(rank))
    return array_of(_OID_INT4S, _OID_INT4, ranks).data


class Reply:
    """The reply to a group, read without blocking as it arrives."""

    def __init__(self, connection: Connection) -> None:
        self._pgconn = connection.pgconn
        self._result: pq.abc.PGresult | None = None
        self._complete = False

    def whole(self) -> bool:
        """Process received results; return True when the reply is complete.

        It only calls `get_result` when libpq is not busy: otherwise libpq would block while it
        holds the GIL.
        """
        pgconn = self._pgconn
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:  # separates two results, or shows that the connection is lost
                if pgconn.status != pq.ConnStatus.OK:
                    return True
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                pgconn.exit_pipeline_mode()
                self._complete = True
                return True
            elif self._result is None or self._result.status == pq.ExecStatus.TUPLES_OK:
                self._result = result  # the last result, or the first error
        return False

    def wait(self, deadline: float | None = None) -> None:
        """Block until the reply is complete.

        Args:
            deadline: A time of `time.monotonic()`, None to wait without a limit.

        Raises:
            TimeoutError: The deadline has passed.

        """
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
        """Return the head before the group, its recorded time, and its stream sequence numbers."""
        # Rows may arrive before the commit; only the end of the pipeline confirms it.
        result = self._result if self._complete else None
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise error_of(self._pgconn, result)
        head, recorded_us, *seqs = _decode_int8_array(result.get_value(0, 0) or b"")
        assert head is not None  # noqa: S101 - for the type checker
        assert recorded_us is not None  # noqa: S101 - for the type checker
        return head, recorded_us, seqs


def _poll(socket: select.poll, deadline: float | None) -> None:
    left_ms = None if deadline is None else (deadline - time.monotonic()) * 1000
    if left_ms is not None and left_ms <= 0:
        raise TimeoutError
    socket.poll(left_ms)


def error_of(pgconn: pq.abc.PGconn, result: pq.abc.PGresult | None) -> psycopg.Error:
    """Return the driver's exception for an error result, or for a lost connection (None)."""
    if result is None or result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        return psycopg.OperationalError(pgconn.error_message.decode(errors="replace"))
    return psycopg.errors.error_from_result(result)


def _decode_int8_array(data: bytes) -> list[int | None]:
    """Decode a bigint array in binary format; it has nulls for events without a stream."""
    body = data[_ARRAY_HEADER:]
    if data[4:8] == b"\0\0\0\0":  # the flag says that the array has no nulls
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
