"""The registry's database: its tables, its statements, and its behaviour in an outage."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

from seriatim.config.delivery import OnOutage, RegistrySettings
from seriatim.core.backoff import Backoff
from seriatim.core.errors import BackendFailure, LogIdentityChanged, NotFound
from seriatim.core.event import EventRecord, LogIdentity
from seriatim.core.handler import Delivery, Handler
from seriatim.store.engine import Engine, EnginePurpose, EngineSession, load_engine_statements

logger = logging.getLogger("seriatim")

T = TypeVar("T")

# A restart of the database takes seconds; afterwards consumers continue within 5 s.
_BACKOFF = Backoff(first_s=0.1, cap_s=5.0)


_END_CHECK_S = 0.2  # how often a wait checks whether it must end


def _never() -> bool:
    return False


def _do_nothing() -> None:
    pass


class OutageRetry:
    """Runs operations on the registry and, with the policy `pause`, retries them in an outage.

    `since` is the monotonic time at which the current outage began, or None.
    """

    def __init__(self, policy: OnOutage) -> None:
        self.policy: OnOutage = policy
        self.since: float | None = None
        self._stopped = threading.Event()
        self._ended: Callable[[], bool] = _never
        self._on_failure: Callable[[], None] = _do_nothing

    def stop(self) -> None:
        """Stop waiting: from now on the next failure is raised."""
        self._stopped.set()

    def run(self, operation: Callable[[], T], retry: Callable[[], T] | None = None) -> T:
        """Run an operation and return its result; retry it with backoff during an outage.

        Args:
            operation: The operation.
            retry: Runs instead of the operation after the first failure, for operations that may
                have been committed although their response was lost.

        Raises:
            BackendFailure: The policy is not `pause`, the failure is not retryable, or the waiting
                was ended.

        """
        for attempt in count(1):
            try:
                result = operation()
            except BackendFailure as error:
                if self.policy != "pause" or not error.retryable or self._stopped.is_set():
                    raise
                self._note_failure(error)
                if not self._wait(_BACKOFF.delay_s(attempt)):
                    raise
            else:
                self._note_success()
                return result
            operation = retry or operation
        raise AssertionError  # the attempts never end

    @contextmanager
    def bounded(self, ended: Callable[[], bool], on_failure: Callable[[], None]) -> Iterator[None]:
        """End the waiting in a block as soon as a function returns true.

        Args:
            ended: Ends the waiting when it returns true; the failure is then raised.
            on_failure: Called with each failure.

        """
        self._ended, self._on_failure = ended, on_failure
        try:
            yield
        finally:
            self._ended, self._on_failure = _never, _do_nothing

    def _wait(self, seconds: float) -> bool:
        """Wait, and return whether to try again."""
        deadline = time.monotonic() + seconds
        while (remaining := deadline - time.monotonic()) > 0 and not self._ended():
            # After `stop` there is one more attempt, whose failure is raised.
            if self._stopped.wait(min(_END_CHECK_S, remaining)):
                return True
        return not self._ended()

    def _note_failure(self, error: BackendFailure) -> None:
        """Report a failure, and log the beginning of an outage, once."""
        self._on_failure()
        if self.since is None:
            self.since = time.monotonic()
            logger.warning("the registry cannot be reached, consumers pause: %s", error.message)

    def _note_success(self) -> None:
        """Log the end of an outage, if there was one."""
        if self.since is not None:
            duration_s = time.monotonic() - self.since
            self.since = None
            logger.warning("the registry is back after %.1f s, consumers continue", duration_s)


REGISTRY_PURPOSE = EnginePurpose(
    label="the registry",
    target_option="--registry",
    last_table="seriatim_logs",
    recreate_hint="open the registry again, which creates missing tables",
)
# The columns that a statement returns, for the statement that follows it (`{rows}`).
RETURNED_COLUMNS = (
    "tenant_id",
    "event_id",
    "stream_type",
    "stream_id",
    "stream_seq",
    "first_seq",
    "status",
)
_CREATE = (
    "create_handlers",
    "create_cursors",
    "create_streams",
    "create_waiting_index",
    "create_handled",
    "create_unfinished_index",
    "create_stream_index",
    "create_logs",
)
# The last table of registries that were created before they stored the identity of logs.
OLDEST_TABLE = "seriatim_handled"

_Rows = list[tuple[Any, ...]]


class RegistryDatabase:
    """Runs the registry's statements, each in one transaction and through the outage policy.

    Attributes:
        engine: The database.
        settings: Leases, heartbeats and the outage policy.
        outage: Runs operations, and retries them while the database is unreachable.
        sql: The statements by name.

    """

    def __init__(self, engine: Engine, settings: RegistrySettings | None = None) -> None:
        """Load the statements, and create missing tables."""
        self.engine = engine
        self.settings = settings or RegistrySettings()
        self.outage = OutageRetry(self.settings.on_outage)
        self.sql = load_engine_statements(__package__, engine)
        for name in ("claim_events", "list_refusals"):
            self.sql[name] = self.sql[name].replace("{verdicts}", self.sql["select_verdicts"])
        self._owner, self._pid = "", 0
        self._calls = count(1)
        if not engine.is_ready():
            engine.create_tables([self.sql[name] for name in _CREATE])

    def close(self) -> None:
        """Stop waiting for an unreachable database, and close the connection."""
        self.outage.stop()
        self.engine.close()

    def run_rows(
        self,
        statement: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        values: Mapping[str, Any],
        then: str | None = None,
    ) -> _Rows:
        """Run a statement on given rows in a transaction of its own; see `run_rows_in`."""

        def execute() -> _Rows:
            with self.engine.autocommit() as session:
                return self.run_rows_in(session, statement, kinds, columns, values, then)

        return self.outage.run(execute)

    def run_rows_in(
        self,
        session: EngineSession,
        statement: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        values: Mapping[str, Any],
        then: str | None = None,
    ) -> _Rows:
        """Run a statement on given rows in a session.

        Args:
            session: The transaction.
            statement: The name of the statement.
            kinds: The columns of the given rows and their types.
            columns: The values of the rows by column.
            values: The parameters; `handler` is also added to each row.
            then: The name of a second statement, which runs on the rows that the first returned.

        Returns:
            The rows that the first statement returned.

        """
        typed = {"of_handler": "text", **kinds}
        with_handler = [[values["handler"]] * len(columns[0]), *columns]
        sql = self.sql[statement]
        if then is None:
            return session.run_with_rows(sql, typed, with_handler, values)
        return session.run_with_rows_then(
            sql, self.sql[then], typed, with_handler, RETURNED_COLUMNS, values
        )

    def run(self, statement: str, values: Mapping[str, Any]) -> _Rows:
        """Run a statement that writes."""

        def execute() -> _Rows:
            with self.engine.autocommit() as session:
                return session.run(self.sql[statement], values)

        return self.outage.run(execute)

    def read(self, statement: str, values: Mapping[str, Any]) -> _Rows:
        """Run a statement that only reads."""

        def execute() -> _Rows:
            with self.engine.transaction(write=False) as session:
                return session.run(self.sql[statement], values)

        return self.outage.run(execute)

    def check_handler_exists(self, handler: str) -> None:
        """Raise `NotFound` for a handler that was never declared and has no entries."""
        values = {"handler": handler}
        if not self.read("select_handler", values) and not self.read("list_tenants", values):
            raise unknown_handler_error(handler)

    def handler_values(self, handler: Handler) -> dict[str, Any]:
        """Return the parameters of statements that describe a handler."""
        return {
            "handler": handler.name,
            "strict": int(handler.mode == "strict"),
            "attempts": handler.retry.attempts,
            "at_most_once": int(handler.at_most_once),
            "skip": int(handler.on_poison == "skip"),
            "lease_us": int(self.settings.lease_s * 1_000_000),
        }

    def new_call_owner(self) -> str:
        """Return an owner name for one call: its claims are found by it if the response is lost."""
        return f"{self.owner}:{next(self._calls)}"

    @property
    def owner(self) -> str:
        """The owner name of this registry's claims, different in every process."""
        # A forked child inherits this object, and must not find its parent's claims by their owner.
        if self._pid != os.getpid():
            self._pid, self._calls = os.getpid(), count(1)
            name = self.settings.owner or f"{socket.gethostname()}:{self._pid}"
            self._owner = f"{name}:{secrets.token_hex(4)}"
        return self._owner


def unknown_handler_error(handler: str) -> NotFound:
    """Build the error for a handler that is not in the registry."""
    msg = (
        f"the registry has no handler {handler!r:.80}: see seriatim registry status for its "
        "handlers"
    )
    return NotFound(msg, details={"handler": handler})


def is_record(delivery: Delivery) -> bool:
    """Return whether a delivery contains a record of a log."""
    return isinstance(delivery.event, EventRecord)


def identity_changed_error(
    handler: str, tenant_id: str, bound: LogIdentity, actual: LogIdentity | None
) -> LogIdentityChanged:
    """Build the error for events of a log other than the one that a handler is bound to."""
    if actual is None:
        difference = "this event does not name its log"
    elif actual.log_id != bound.log_id:
        difference = f"this event is from log {actual.log_id}"
    else:
        difference = f"this event is from epoch {actual.epoch}"
    msg = (
        f"handler {handler} has handled events of tenant {tenant_id} from log {bound.log_id}, "
        f"epoch {bound.epoch}, but {difference}: the log was restored or replaced. Compare the "
        f"effects with the log, then run seriatim registry reset {handler} --reason …"
    )
    return LogIdentityChanged(msg, details={"handler": handler, "tenant_id": tenant_id})
