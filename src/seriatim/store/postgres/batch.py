"""The lean statement for a large group: its client counts along its streams, the server only adds.

Like its sibling for small groups it is one query through libpq: the lock is taken and given back
within it, and no turn of the client, who may stand in line for the GIL, comes between.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from psycopg import pq

from seriatim.core.request import Request
from seriatim.store.postgres.confining import collect_answers
from seriatim.store.postgres.connecting import Connection, Hello
from seriatim.store.postgres.lean import error_of
from seriatim.store.postgres.packing import array_of, uuid_array

_OID_BOOL, _OID_INT4, _OID_INT8, _OID_INT4S, _OID_INT8S, _OID_UUIDS = 16, 23, 20, 1007, 1016, 2951
_INT4 = struct.Struct("!i").pack
_INT8 = struct.Struct("!q")
_SIZED_INT4 = struct.Struct("!ii").pack
_SIZED_INT8 = struct.Struct("!iq").pack
_BINARY = [pq.Format.BINARY] * 9
_ARRAY_HEADER = 20  # dimensions, null flag, element type, length, lower bound


class _Count:
    """Which stream each row of a group is of, and the how manieth of that stream.

    A row whose caller gave it its number needs neither, and its stream no look-up.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        self.streams: dict[bytes, int] = {}  # each with its place, from 1 as arrays have it
        self.first_seqs: list[int] = []
        self.places: list[int] = []
        self.nths: list[int] = []
        self._given: list[int | None] = []
        counts: dict[bytes, int] = {}
        for request in requests:
            for event, first_seq in zip(request.events, request.packed.first_seqs, strict=True):
                place = nth = 0
                if (key := event.stream_key) is not None:
                    counts[key] = nth = counts.get(key, 0) + 1
                    if event.given_seq is None:
                        place = self._place(key, first_seq)
                self.places.append(place)
                self.nths.append(nth)
                self._given.append(event.given_seq)

    def _place(self, key: bytes, first_seq: int) -> int:
        place = self.streams.get(key)
        if place is None:
            self.first_seqs.append(first_seq)
            place = self.streams[key] = len(self.first_seqs)
        return place

    def numbers(self, ends: Sequence[int]) -> list[int | None]:
        """Return the number of each row in its stream, given where the streams ended."""
        if not ends:
            return self._given
        return [
            ends[place - 1] + nth if place else given
            for place, nth, given in zip(self.places, self.nths, self._given, strict=True)
        ]


def append_batch(  # noqa: PLR0913 - a statement and all it needs
    connection: Connection,
    statement: bytes,
    limit: tuple[bytes, bytes],
    hello: Hello,
    wait_ms: int,
    requests: Sequence[Request],
) -> tuple[int, int, list[int | None]]:
    """Append packed rows; return the head before them, their time and their stream numbers.

    `limit` is a statement with its one value that bounds the time of the append; both are sent
    together and are one transaction.
    """
    count = _Count(requests)
    rows = [row for request in requests for row in request.packed.rows]
    tagged = any(request.packed.tagged for request in requests)
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    pgconn.send_query_params(limit[0], [limit[1]])
    pgconn.send_query_params(
        statement,
        [
            _INT8.pack(hello.lock_key),
            _INT4(wait_ms),
            _INT4(requests[0].rules_version),
            array_of(hello.row_array, hello.row_type, rows).data,
            uuid_array(count.streams).data,
            array_of(_OID_INT8S, _OID_INT8, [_SIZED_INT8(8, seq) for seq in count.first_seqs]).data,
            _int4_array(count.places if count.streams else ()),
            _int4_array(count.nths if count.streams else ()),
            b"\1" if tagged else b"\0",
        ],
        [
            *(_OID_INT8, _OID_INT4, _OID_INT4, hello.row_array),
            *(_OID_UUIDS, _OID_INT8S, _OID_INT4S, _OID_INT4S, _OID_BOOL),
        ],
        _BINARY,
        pq.Format.BINARY,
    )
    pgconn.pipeline_sync()
    try:
        *limited, result = collect_answers(pgconn)
    except BaseException:
        connection.close()  # answers may still be on their way
        raise
    pgconn.exit_pipeline_mode()
    for answer in (*limited, result):
        if answer.status != pq.ExecStatus.TUPLES_OK:
            raise error_of(pgconn, answer)
    head, recorded_us, ends = (result.get_value(0, column) or b"" for column in range(3))
    numbers = count.numbers(_read_int8s(ends))
    return _INT8.unpack(head)[0], _INT8.unpack(recorded_us)[0], numbers


def _int4_array(values: Iterable[int]) -> bytes:
    return array_of(_OID_INT4S, _OID_INT4, [_SIZED_INT4(4, value) for value in values]).data


def _read_int8s(data: bytes) -> list[int]:
    """Read a bigint array without nulls."""
    return [number for _, number in struct.iter_unpack("!iq", data[_ARRAY_HEADER:])]
