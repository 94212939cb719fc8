"""The fast path of appends: encode a request, send a group as one statement, read the reply.

The statement is sent through libpq, because a cursor of the driver costs more than the rest of a
small append. Sending and receiving are separate steps, so that a thread can poll the socket and an
event loop can watch it.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
import psycopg
from psycopg import pq

from seriatim.config import Settings
from seriatim.core.kinds import Rules
from seriatim.core.query import Query
from seriatim.core.request import (
    AppendRequest,
    ExpectedContext,
    ExpectedSeq,
    PreparedEvent,
)
from seriatim.store.append_group import place_in_order
from seriatim.store.contexts import ContextKey, EvaluatedContext, collect_contexts, make_context_key
from seriatim.store.port import Deferred, Outcome, make_unanswered_error
from seriatim.store.postgres.binary_format import encode_array, encode_event
from seriatim.store.postgres.connection import Connection, ServerInfo, make_lock_timeout_error
from seriatim.store.postgres.failures import (
    CANCELLED,
    LOCK_BUSY,
    NEEDS_VALIDATED_PATH,
    translate_error,
)
from seriatim.store.postgres.group_streams import GroupStreams


class PostgresExchange:
    """A group in flight on a connection that it owns until the reply has arrived."""

    def __init__(
        self,
        connection: Connection,
        reply: GroupReply,
        group: Sequence[AppendRequest],
        release: Callable[[], None],
        settings: Settings,
    ) -> None:
        self._connection = connection
        self._socket = connection.pgconn.socket  # libpq forgets it when the connection is lost
        self._reply = reply
        self._group = group
        self._release = release
        self._settings = settings

    def fileno(self) -> int:
        """Return the file descriptor of the socket to watch."""
        return self._socket

    def flush(self) -> bool:
        """Send buffered bytes without blocking; return True when all are sent."""
        try:
            return self._connection.pgconn.flush() == 0
        except psycopg.Error:
            return True  # reading the reply reports the error

    def receive(self) -> bool:
        """Read available bytes without blocking; return True when the reply is complete."""
        try:
            self._connection.pgconn.consume_input()
            return self._reply.is_complete()
        except psycopg.Error:
            return True  # the connection is lost; `outcomes` reports it

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each request, and release the connection.

        Raises:
            Deferred: Nothing was stored: the group needs the validated path, or the lock was busy.

        """
        try:
            head, recorded_us, seqs = self._reply.read_numbers()
        except psycopg.Error as error:
            if error.sqlstate in NEEDS_VALIDATED_PATH:
                raise Deferred([_use_validated_path(request) for request in self._group]) from error
            if error.sqlstate == LOCK_BUSY:
                raise Deferred(self._group) from error
            if error.sqlstate == CANCELLED:
                return [make_lock_timeout_error(self._settings)] * len(self._group)
            return [translate_error(error, "appending", sent=True)] * len(self._group)
        finally:
            self._release()
        return build_receipts(self._group, head, recorded_us, seqs)

    def wait(self, timeout: float) -> list[Outcome]:
        """Block until the reply is complete and return the outcomes.

        Args:
            timeout: Seconds to wait.

        Raises:
            BackendFailure: There was no reply in time; the append may be stored.
            Deferred: Nothing was stored: the group needs the validated path, or the lock was busy.

        """
        try:
            self._reply.wait(time.monotonic() + timeout)
        except psycopg.Error:
            pass  # `outcomes` reports the error
        except BaseException as error:
            # A late reply must not be taken for that of the next group on this connection.
            self._connection.close()
            self._release()
            if isinstance(error, TimeoutError):
                raise make_unanswered_error() from None
            raise
        return self.outcomes()

    def abandon(self) -> None:
        """Close the connection; the outcomes will not be read."""
        self._connection.close()


def build_receipts(
    group: Sequence[AppendRequest], head: int, recorded_us: int, seqs: list[int | None]
) -> list[Outcome]:
    """Build the receipts of a committed group."""
    return [place.build_receipt(recorded_us) for place in place_in_order(group, head + 1, seqs)]


def _use_validated_path(request: AppendRequest) -> AppendRequest:
    """Return the append without encoded rows, so that it uses the validated path."""
    encoded = EncodedAppend(
        has_index_keys=request.encoded.has_index_keys, contexts=request.encoded.contexts
    )
    return msgspec.structs.replace(request, encoded=encoded)


# Larger appends are sent by a writer thread: an event loop would be held up by their bytes.
DIRECT_EVENTS_MAX = 31


EvaluateContexts = Callable[
    [str, Mapping[ContextKey, Query]], Mapping[ContextKey, EvaluatedContext]
]


class EncodedAppend(msgspec.Struct, frozen=True, gc=False):
    """An append in Postgres's binary format.

    `rows` is empty if the append needs the validated path: it has a command, a context that does
    not hold, or a kind whose rules the constraints of the database cannot check.
    """

    rows: tuple[bytes, ...] = ()
    has_index_keys: bool = False
    contexts: Mapping[ContextKey, EvaluatedContext] = {}
    # The head at which the contexts were evaluated. They hold only while the log ends there, and
    # one statement checks one head, so such an append is sent alone.
    required_head: int | None = None


def is_fast_path(request: AppendRequest) -> bool:
    """Return True if an append can use the fast path without a writer thread."""
    return 0 < len(request.encoded.rows) <= DIRECT_EVENTS_MAX


def is_groupable(request: AppendRequest) -> bool:
    """Return True if an append can use the fast path together with others."""
    return request.encoded.required_head is None and is_fast_path(request)


def encode_append(
    request: AppendRequest, rules: Rules, evaluate: EvaluateContexts
) -> EncodedAppend:
    """Encode an append and evaluate its contexts, before any lock is taken.

    Args:
        request: The append.
        rules: The rules under which it was checked.
        evaluate: Evaluates contexts at the current head.

    Returns:
        The encoded append; without rows if it needs the validated path.

    """
    events = request.events
    if len(events) == 1 and not request.conditions and request.command is None:
        return _encode_single(request, rules)
    tagged = any(event.tags or event.term_keys for event in events)
    contexts = collect_contexts((request,))
    evaluated = evaluate(request.tenant_id, contexts) if contexts else {}
    # An append whose contexts do not hold is validated: `decide` finds the error, or a replay,
    # which precedes conditions.
    if (
        request.command is not None
        or _needs_validated_path(request, rules)
        or not _contexts_hold(request, evaluated)
    ):
        return EncodedAppend(has_index_keys=tagged, contexts=evaluated)
    expected = {
        condition.stream: condition.seq
        for condition in request.conditions
        if isinstance(condition, ExpectedSeq)
    }
    rows: list[bytes] = []
    for offset, event in enumerate(events):
        seq = event.requested_seq
        if seq is None and event.stream in expected:
            # An expected last number becomes required numbers of the events: the database refuses
            # them if the stream has moved on.
            last = expected[event.stream]
            seq = rules.kind_of(event.stream[0]).first_seq if last is None else last + 1
            expected[event.stream] = seq
        rows.append(encode_event(event, offset, seq))
    head = min([context.head for context in evaluated.values()], default=None)
    return EncodedAppend(tuple(rows), tagged, evaluated, head)


def _encode_single(request: AppendRequest, rules: Rules) -> EncodedAppend:
    """Encode the most common append, one event without conditions, with the fewest steps."""
    [event] = request.events
    tagged = bool(event.tags or event.term_keys)
    if (
        rules.requires_expected_seq
        and event.stream_type is not None
        and rules.kind_of(event.stream_type).expected_seq_required
    ):
        return EncodedAppend(has_index_keys=tagged)
    return EncodedAppend((encode_event(event, 0, event.requested_seq),), tagged)


def _contexts_hold(
    request: AppendRequest, evaluated: Mapping[ContextKey, EvaluatedContext]
) -> bool:
    """Return True if all expected contexts hold at the evaluated head."""
    for condition in request.conditions:
        if isinstance(condition, ExpectedContext):
            context = evaluated[make_context_key(request.tenant_id, condition.query)]
            if not condition.is_reachable(context.head) or not condition.holds(context.version):
                return False
    return True


def _needs_validated_path(request: AppendRequest, rules: Rules) -> bool:
    """Return True if constraints of the database cannot check the append's conditions."""
    if not request.conditions and not rules.requires_expected_seq:
        return False
    streams = {event.stream for event in request.events}
    for condition in request.conditions:
        if isinstance(condition, ExpectedContext):
            continue
        if condition.stream not in streams:
            return True
        first_seq = rules.kind_of(condition.stream[0]).first_seq
        # Expecting a number below the first is different from expecting that no stream exists.
        if condition.seq is not None and condition.seq < first_seq:
            return True
        streams.discard(condition.stream)  # a second condition on a stream is not supported here
    if any(event.requested_seq is not None for event in request.events) and request.conditions:
        return True
    return any(
        event.stream_type is not None and rules.kind_of(event.stream_type).expected_seq_required
        for event in request.events
    )


# The oids of Postgres's own types never change. With explicit oids the server infers no types, and
# with binary values it parses no text.
_OID_BOOL, _OID_INT4, _OID_INT8 = 16, 23, 20
_OID_INT4S, _OID_TEXTS, _OID_UUIDS = 1007, 1009, 2951
_INT4 = struct.Struct("!i").pack
_INT8 = struct.Struct("!q").pack
# A one-dimensional array in binary format: a header, then each element as its length and its bytes.
_ARRAY_HEADER = 20  # dimensions, null flag, element type, length, lower bound: 4 bytes each
_ELEMENT = struct.Struct("!iq")


class GroupStatement(msgspec.Struct, frozen=True):
    """A statement that appends a group, with the time limit of the server for it.

    On a direct connection it is prepared, and the limit set, when the connection is opened. Behind
    a pooler the session may be another one at each append: then both are sent each time.
    """

    name: bytes  # of the prepared statement
    text: bytes
    oids: tuple[int | None, ...]  # of the parameters; None: that of the row array
    set_timeout: bytes
    timeout_ms: int

    def prepare(self, connection: Connection, server_info: ServerInfo) -> None:
        """Prepare the statement and set its time limit for a new, direct connection.

        Raises:
            psycopg.Error: The server refused it, or the connection was lost.

        """
        pgconn = connection.pgconn
        for result in (
            pgconn.exec_params(self.set_timeout, [b"%d" % self.timeout_ms, b"f"]),
            pgconn.prepare(self.name, self.text, self._find_oids(server_info)),
        ):
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                raise make_driver_error(pgconn, result)

    def send(
        self, connection: Connection, server_info: ServerInfo, values: Sequence[bytes | None]
    ) -> None:
        """Send the statement as a pipeline without waiting; the sync commits it."""
        pgconn = connection.pgconn
        formats = [pq.Format.BINARY] * len(values)
        # A pipeline without BEGIN is one implicit transaction: a timeout is local to it, and it
        # commits at the sync. All is sent at once, so no round trip passes while the lock is held.
        pgconn.enter_pipeline_mode()
        if server_info.is_direct:
            pgconn.send_query_prepared(self.name, values, formats, pq.Format.BINARY)
        else:
            pgconn.send_query_params(self.set_timeout, [b"%d" % self.timeout_ms, b"t"])
            pgconn.send_query_params(
                self.text, values, self._find_oids(server_info), formats, pq.Format.BINARY
            )
        pgconn.pipeline_sync()

    def _find_oids(self, server_info: ServerInfo) -> list[int]:
        return [server_info.row_array if oid is None else oid for oid in self.oids]


APPEND_OIDS = (
    *(_OID_INT8, _OID_INT4, _OID_INT4, _OID_INT8, _OID_INT8, _OID_BOOL, None),
    *(_OID_UUIDS, _OID_TEXTS, _OID_INT4S, _OID_INT4S, _OID_INT4S),
)


def send_group(
    connection: Connection,
    statement: GroupStatement,
    server_info: ServerInfo,
    wait_ms: int,
    group: Sequence[AppendRequest],
) -> GroupReply:
    """Send a group of encoded appends without waiting, and return the reply that will arrive.

    Args:
        connection: An idle connection.
        statement: The statement `append_events`.
        server_info: The lock key and type oids of the log.
        wait_ms: How long to wait for the log's lock.
        group: The appends, all encoded for the fast path.

    """
    rows: list[bytes] = []
    events: list[PreparedEvent] = []
    has_index_keys = False
    for request in group:
        rows += request.encoded.rows
        events += request.events
        has_index_keys = has_index_keys or request.encoded.has_index_keys
    streams = GroupStreams(events)
    values = [
        _INT8(server_info.lock_key),
        _INT4(wait_ms),
        _INT4(group[0].rules_version),
        None if (head := group[0].encoded.required_head) is None else _INT8(head),
        None,  # the time of the server
        b"\1" if has_index_keys else b"\0",
        encode_array(server_info.row_array, server_info.row_type, rows).data,
        *[None if array is None else array.data for array in streams.encode()],
    ]
    statement.send(connection, server_info, values)
    return GroupReply(connection, streams)


class GroupReply:
    """The reply to a group, read without blocking as it arrives."""

    def __init__(self, connection: Connection, streams: GroupStreams) -> None:
        self._pgconn = connection.pgconn
        self._streams = streams
        self._result: pq.abc.PGresult | None = None
        self._complete = False

    def is_complete(self) -> bool:
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
        # Read while sending: a server whose own send buffer is full reads nothing until we do.
        while pgconn.flush():
            socket.modify(pgconn.socket, select.POLLIN | select.POLLOUT)
            _poll(socket, deadline)
            pgconn.consume_input()
        socket.modify(pgconn.socket, select.POLLIN)
        while not self.is_complete():
            _poll(socket, deadline)
            pgconn.consume_input()

    def read_numbers(self) -> tuple[int, int, list[int | None]]:
        """Return the head before the group, its recorded time, and its stream sequence numbers.

        Raises:
            psycopg.Error: The server refused the group, or the connection was lost.

        """
        # Rows may arrive before the commit; only the end of the pipeline confirms it.
        result = self._result if self._complete else None
        if result is None or result.status != pq.ExecStatus.TUPLES_OK:
            raise make_driver_error(self._pgconn, result)
        # `append_events` returns one array: head, time, and the last number of each stream.
        data = result.get_value(0, 0) or b""
        head, recorded_us, *ends = [n for _, n in _ELEMENT.iter_unpack(data[_ARRAY_HEADER:])]
        return head, recorded_us, self._streams.compute_seqs(ends)


def _poll(socket: select.poll, deadline: float | None) -> None:
    """Wait until the socket is ready; raise `TimeoutError` if the deadline has passed."""
    remaining_ms = None if deadline is None else (deadline - time.monotonic()) * 1000
    if remaining_ms is not None and remaining_ms <= 0:
        raise TimeoutError
    socket.poll(remaining_ms)


def make_driver_error(pgconn: pq.abc.PGconn, result: pq.abc.PGresult | None) -> psycopg.Error:
    """Return the driver's exception for an error result, or for a lost connection (None)."""
    if result is None or result.error_field(pq.DiagnosticField.SQLSTATE) is None:
        return psycopg.OperationalError(pgconn.error_message.decode(errors="replace"))
    return psycopg.errors.error_from_result(result)
