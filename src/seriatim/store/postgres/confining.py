"""The one door for reads: what is read for a tenant runs in a transaction confined to it.

Setting and statement are sent together and are one transaction, so the wall costs no round trip.
They go through libpq itself: the driver's own pipeline would make a small read a quarter dearer.
"""

from __future__ import annotations

import re
import select
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from psycopg import pq
from psycopg.adapt import PyFormat, Transformer

from seriatim.core.errors import BackendFailure
from seriatim.store.cancellation import ReadBudget
from seriatim.store.postgres.connecting import Connection
from seriatim.store.postgres.failures import CANCELLED, ROLLED_BACK
from seriatim.store.postgres.lean import error_of
from seriatim.store.postgres.statements import statements

Rows = list[tuple[Any, ...]]

_HOLE = re.compile(r"%(?:%|s|\((\w+)\)s)")
_TRIES = 10
_LOOK_MS = 50  # between two looks whether anybody still waits
_OK = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Reader:
    """Runs statements that read one log, each as a transaction of its own."""

    def __init__(
        self,
        schema: str,
        lend: Callable[[], AbstractContextManager[Connection]],
        timeout_s: float | None = None,
    ) -> None:
        named = statements(schema)
        self._confine = named["confine" if timeout_s is None else "confine_in_time"].encode()
        self._bound = [] if timeout_s is None else [b"%d" % max(1, round(timeout_s * 1000))]
        self._timeout_s = timeout_s
        self._lend = lend

    def budget(self) -> ReadBudget:
        """Return the time of a read that takes several statements."""
        return ReadBudget(self._timeout_s)

    def rows(self, tenant_id: str | None, text: str, parameters: Any = ()) -> Rows:
        """Return a statement's rows, of one tenant; None is an operator, who may see all."""
        budget = ReadBudget()
        for attempt in range(_TRIES):
            budget.check()
            try:
                return self._rows(tenant_id, text, parameters, budget)
            except BackendFailure as error:  # a setting of the server's, not of this read
                if error.details.get("sqlstate") not in ROLLED_BACK or attempt == _TRIES - 1:
                    raise
        raise AssertionError

    def _rows(self, tenant_id: str | None, text: str, parameters: Any, budget: ReadBudget) -> Rows:
        with self._lend() as connection:
            try:
                return self._run(connection, tenant_id, text, parameters, budget)
            except BaseException:
                if connection.pgconn.pipeline_status != pq.PipelineStatus.OFF:
                    connection.close()  # answers may still be on their way
                raise

    def _run(
        self,
        connection: Connection,
        tenant_id: str | None,
        text: str,
        parameters: Any,
        budget: ReadBudget,
    ) -> Rows:
        adapted = Transformer(connection)
        query, names = _numbered(text)
        values = adapted.dump_sequence(
            [parameters[name] for name in names], [PyFormat.AUTO] * len(names)
        )
        pgconn = connection.pgconn
        pgconn.enter_pipeline_mode()
        if tenant_id is not None:
            pgconn.send_query_params(self._confine, [tenant_id.encode(), *self._bound])
        pgconn.send_query_params(query, values, adapted.types, adapted.formats, pq.Format.BINARY)
        pgconn.pipeline_sync()
        answers = collect_answers(pgconn, budget)
        pgconn.exit_pipeline_mode()
        for answer in answers:
            if answer.status not in _OK:
                error = error_of(pgconn, answer)
                if budget.cancelled and error.sqlstate == CANCELLED:
                    raise budget.error() from error
                raise error
        adapted.set_pgresult(answers[-1])
        return adapted.load_rows(0, answers[-1].ntuples, tuple)


@lru_cache(maxsize=256)
def _numbered(text: str) -> tuple[bytes, list[Any]]:
    """Turn a statement's parameters into numbered ones; return their names in that order."""
    names: list[Any] = []

    def number(hole: re.Match[str]) -> str:
        if hole[0] == "%%":
            return "%"
        name = len(names) if hole[1] is None else hole[1]
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _HOLE.sub(number, text).encode(), names


def collect_answers(
    pgconn: pq.abc.PGconn, budget: ReadBudget | None = None
) -> list[pq.abc.PGresult]:
    """Wait in this thread until every answer is there; libpq would wait with the GIL held.

    When nobody waits for them any more, the server is told to stop.
    """
    socket = select.poll()
    socket.register(pgconn.socket, select.POLLIN | select.POLLOUT)
    while pgconn.flush():
        socket.poll()
        pgconn.consume_input()
    socket.modify(pgconn.socket, select.POLLIN)
    answers: list[pq.abc.PGresult] = []
    look_ms = _LOOK_MS if budget is not None and budget.cancellable else None
    while True:
        while pgconn.is_busy():
            if not socket.poll(look_ms) and budget is not None and budget.cancelled:
                pgconn.get_cancel().cancel()
                look_ms = None  # the answer is on its way: an error, or what was just done
            pgconn.consume_input()
        answer = pgconn.get_result()  # None stands between the answers of two statements
        if answer is None and pgconn.status != pq.ConnStatus.OK:
            raise error_of(pgconn, answers[-1] if answers else None)
        if answer is None:
            continue
        if answer.status == pq.ExecStatus.PIPELINE_SYNC:
            return answers
        answers.append(answer)
