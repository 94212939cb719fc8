"""The fast path for large groups: the client ranks events per stream, the server adds the offsets.

Like the statement for small groups it is one query through libpq. The lock is taken and released
within it, so no client holds it while it waits for the GIL (decision 0005).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from psycopg import pq

from seriatim.core.request import AppendRequest
from seriatim.store.postgres.binary_format import encode_array, encode_uuid_array
from seriatim.store.postgres.connection import Connection, ServerInfo
from seriatim.store.postgres.fast_path import GroupStatement, make_driver_error
from seriatim.store.postgres.reader import collect_results

_OID_BOOL, _OID_INT4, _OID_INT8, _OID_INT4S, _OID_INT8S, _OID_UUIDS = 16, 23, 20, 1007, 1016, 2951
_INT4 = struct.Struct("!i").pack
_INT8 = struct.Struct("!q")
_SIZED_INT4 = struct.Struct("!ii").pack
_SIZED_INT8 = struct.Struct("!iq").pack
BATCH_OIDS = (
    *(_OID_INT8, _OID_INT4, _OID_INT4, None),
    *(_OID_UUIDS, _OID_INT8S, _OID_INT4S, _OID_INT4S, _OID_BOOL),
)
_ARRAY_HEADER = 20  # dimensions, null flag, element type, length, lower bound


class _StreamRanks:
    """The stream of each row of a group, and the rank of the row in that stream.

    Rows with a required sequence number use neither, and need no look-up of their streams.
    """

    def __init__(self, requests: Sequence[AppendRequest]) -> None:
        self.streams: dict[bytes, int] = {}  # key and index, from 1 as in Postgres arrays
        self.first_seqs: list[int] = []
        self.stream_indexes: list[int] = []
        self.ranks: list[int] = []
        self._required_seqs: list[int | None] = []
        counts: dict[bytes, int] = {}
        for request in requests:
            for event, first_seq in zip(request.events, request.encoded.first_seqs, strict=True):
                index = rank = 0
                if (key := event.stream_key) is not None:
                    counts[key] = rank = counts.get(key, 0) + 1
                    if event.requested_seq is None:
                        index = self._index_stream(key, first_seq)
                self.stream_indexes.append(index)
                self.ranks.append(rank)
                self._required_seqs.append(event.requested_seq)

    def _index_stream(self, key: bytes, first_seq: int) -> int:
        index = self.streams.get(key)
        if index is None:
            self.first_seqs.append(first_seq)
            index = self.streams[key] = len(self.first_seqs)
        return index

    def compute_seqs(self, ends: Sequence[int]) -> list[int | None]:
        """Return the sequence number of each row.

        Args:
            ends: The last number of each stream before the group; empty if no stream was looked up.

        """
        if not ends:
            return self._required_seqs
        return [
            ends[index - 1] + rank if index else required_seq
            for index, rank, required_seq in zip(
                self.stream_indexes, self.ranks, self._required_seqs, strict=True
            )
        ]


def append_batch(
    connection: Connection,
    statement: GroupStatement,
    server_info: ServerInfo,
    wait_ms: int,
    requests: Sequence[AppendRequest],
) -> tuple[int, int, list[int | None]]:
    """Append a large group of encoded requests and wait for the result.

    Args:
        connection: An idle connection.
        statement: The statement `append_batch`.
        server_info: The lock key and type oids of the log.
        wait_ms: How long to wait for the log's lock.
        requests: The appends, all encoded for the fast path.

    Returns:
        The head before the group, its recorded time, and its stream sequence numbers.

    Raises:
        psycopg.Error: The server refused the group, or the connection was lost.

    """
    ranks = _StreamRanks(requests)
    rows = [row for request in requests for row in request.encoded.rows]
    tagged = any(request.encoded.has_index_keys for request in requests)
    statement.send(
        connection,
        server_info,
        [
            _INT8.pack(server_info.lock_key),
            _INT4(wait_ms),
            _INT4(requests[0].rules_version),
            encode_array(server_info.row_array, server_info.row_type, rows).data,
            encode_uuid_array(ranks.streams).data,
            encode_array(
                _OID_INT8S, _OID_INT8, [_SIZED_INT8(8, seq) for seq in ranks.first_seqs]
            ).data,
            # Not needed if no stream is looked up: all events are facts or have required numbers.
            _encode_int4_array(ranks.stream_indexes if ranks.streams else ()),
            _encode_int4_array(ranks.ranks if ranks.streams else ()),
            b"\1" if tagged else b"\0",
        ],
    )
    pgconn = connection.pgconn
    try:
        results = collect_results(pgconn)
    except BaseException:
        connection.close()  # late results must not be taken for those of the next statement
        raise
    pgconn.exit_pipeline_mode()
    for result in results:  # that of the time limit is first, if it was sent
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise make_driver_error(pgconn, result)
    head, recorded_us, ends = (results[-1].get_value(0, column) or b"" for column in range(3))
    seqs = ranks.compute_seqs(_decode_int8_array(ends))
    return _INT8.unpack(head)[0], _INT8.unpack(recorded_us)[0], seqs


def _encode_int4_array(values: Iterable[int]) -> bytes:
    return encode_array(_OID_INT4S, _OID_INT4, [_SIZED_INT4(4, value) for value in values]).data


def _decode_int8_array(data: bytes) -> list[int]:
    """Decode a bigint array without nulls."""
    return [number for _, number in struct.iter_unpack("!iq", data[_ARRAY_HEADER:])]
