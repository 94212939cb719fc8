"""What all acts on the registry share: its database, its statements, its manners in an outage."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from seriatim.config.delivery import Registering
from seriatim.core.errors import InvalidArgument, LogIdentityChanged, NotFound
from seriatim.core.event import EventRecord, LogIdentity
from seriatim.core.handling import Delivery, Handler
from seriatim.core.tenants import check_tenant
from seriatim.delivery.claims import READ_FROM, read_from
from seriatim.delivery.origin import LogOrigin
from seriatim.delivery.outage import Outage
from seriatim.store.engine import Engine, Purpose, Session, statements

PURPOSE = Purpose(
    what="the registry",
    option="--registry",
    last_table="seriatim_logs",
    remake="open the registry again, which makes what is missing",
)
# The columns that a statement returns of the rows it touched, for the one that follows it.
TOUCHED = (
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
    "create_waiting",
    "create_handled",
    "create_unfinished",
    "create_lines",
    "create_logs",
)
# The last table of registries that were made before they kept the identity of logs.
OLDEST_TABLE = "seriatim_handled"


_WHICH_LOG = (
    "the registry must know of which log a record is: open_registry(url, log=log), or "
    "Delivery.of(record, log=log.identity())"
)


class Acts:
    """A registry's database; every act is one transaction of it."""

    def __init__(
        self,
        engine: Engine,
        settings: Registering | None = None,
        origin: LogOrigin | None = None,
    ) -> None:
        self.engine = engine
        self.origin = origin
        self.settings = settings or Registering()
        self._owner, self._pid = "", 0
        self.outage = Outage(self.settings.on_outage)
        self.sql = statements(__package__, engine)
        for name in ("claim", "look"):
            self.sql[name] = self.sql[name].replace("{judged}", self.sql["judged"])
        self._calls = count(1)
        self._declared: set[tuple[str, str]] = set()
        if not engine.ready():
            engine.prepare([self.sql[name] for name in _CREATE])

    def close(self) -> None:
        """Let go of the database."""
        self.outage.end()
        self.engine.close()

    def _rows(
        self,
        statement: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        values: Mapping[str, Any],
        then: str | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a statement on rows, and another one on what it touched, as one transaction."""

        def act() -> list[tuple[Any, ...]]:
            with self.engine.at_once() as session:
                return self._rows_in(session, statement, kinds, columns, values, then)

        return self.outage.through(act)

    def _rows_in(  # noqa: PLR0913 - a statement and what it is about
        self,
        session: Session,
        statement: str,
        kinds: Mapping[str, str],
        columns: Sequence[list[Any]],
        values: Mapping[str, Any],
        then: str | None = None,
    ) -> list[tuple[Any, ...]]:
        """Do so in a session; every row carries the handler's name."""
        named = {"of_handler": "text", **kinds}
        given = [[values["handler"]] * len(columns[0]), *columns]
        sql = self.sql[statement]
        if then is None:
            return session.given(sql, named, given, values)
        return session.given_then(sql, self.sql[then], named, given, TOUCHED, values)

    def _run(self, statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement that writes."""

        def act() -> list[tuple[Any, ...]]:
            with self.engine.at_once() as session:
                return session.run(self.sql[statement], values)

        return self.outage.through(act)

    def _look(self, statement: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement that only reads."""

        def act() -> list[tuple[Any, ...]]:
            with self.engine.transaction(write=False) as session:
                return session.run(self.sql[statement], values)

        return self.outage.through(act)

    def check_known(self, handler: str) -> None:
        """Raise `NotFound` for a handler that was never declared and has handled nothing."""
        values = {"handler": handler}
        if not self._look("handler", values) and not self._look("tenants", values):
            raise unknown_handler(handler)

    # -- of which log events are

    def identified(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Return deliveries of which each record names its log; that of the registry if any."""
        known = list(deliveries)
        for tenant_id in {one.tenant_id for one in known}:
            check_tenant(tenant_id)
        if all(one.log is not None or not is_record(one) for one in known):
            return known
        if self.origin is None:
            raise InvalidArgument(_WHICH_LOG, details={"argument": "log"})
        log = self.origin.identity()
        return [
            self.origin.delivery(one.event, log) if one.log is None and is_record(one) else one
            for one in known
        ]

    def admit(self, handler: Handler, deliveries: Iterable[Delivery]) -> None:
        """Raise `LogIdentityChanged` for events of another log or epoch than those before.

        The first log that a handler meets for a tenant is the one it keeps to.
        """
        columns = read_from(deliveries)
        values = {"handler": handler.name}
        for _ in range(2):  # what is adopted at the same time by another consumer is compared
            found = self._rows("foreign", READ_FROM, columns, values)
            for tenant_id, log_id, epoch, known_id, known_epoch in found:
                if known_id is not None:
                    given = None if log_id is None else LogIdentity(log_id, epoch)
                    known = LogIdentity(known_id, known_epoch)
                    raise identity_changed(handler.name, tenant_id, known, given)
            if not found:
                return
            new = {row[0]: row for row in found}.values()
            self._rows("adopt", READ_FROM, [[row[nth] for row in new] for nth in range(3)], values)

    def check_origin(self, handler: Handler) -> None:
        """Raise `LogIdentityChanged` if the handler keeps to another log than this registry's."""
        if self.origin is None:
            return
        log = self.origin.identity()
        values = {"handler": handler.name, "log_id": log.log_id, "epoch": log.epoch}
        for tenant_id, log_id, epoch in self._look("other_logs", values):
            raise identity_changed(handler.name, tenant_id, LogIdentity(log_id, epoch), log)

    def _values(self, handler: Handler) -> dict[str, Any]:
        """Return what statements must know of a handler."""
        return {
            "handler": handler.name,
            "strict": int(handler.mode == "strict"),
            "attempts": handler.retry.attempts,
            "at_most_once": int(handler.at_most_once),
            "skip": int(handler.on_poison == "skip"),
            "lease_us": int(self.settings.lease_s * 1_000_000),
        }

    def _call(self) -> str:
        """Return an owner's name for one call: if its answer is lost, its claims can be found."""
        return f"{self.owner}:{next(self._calls)}"

    @property
    def owner(self) -> str:
        """The name of this registry's claims, which no other process has, not even a fork."""
        if self._pid != os.getpid():
            self._pid, self._calls = os.getpid(), count(1)
            name = self.settings.owner or f"{socket.gethostname()}:{self._pid}"
            self._owner = f"{name}:{secrets.token_hex(4)}"
        return self._owner


def unknown_handler(handler: str) -> NotFound:
    """Make the error for a handler that the registry does not know."""
    msg = f"the registry knows no handler {handler!r:.80}"
    return NotFound(msg, details={"handler": handler})


def is_record(delivery: Delivery) -> bool:
    """Tell whether a delivery holds a record of a log."""
    return isinstance(delivery.event, EventRecord)


def identity_changed(
    handler: str, tenant_id: str, known: LogIdentity, given: LogIdentity | None
) -> LogIdentityChanged:
    """Make the error for events of another log than those that a handler has handled."""
    if given is None:
        came = "an event came that does not say of which log it is"
    elif given.log_id != known.log_id:
        came = f"an event came from log {given.log_id}"
    else:
        came = f"an event came from epoch {given.epoch}"
    msg = (
        f"handler {handler} has handled events of tenant {tenant_id} from log {known.log_id}, "
        f"epoch {known.epoch}; {came}: the log was restored or replaced. Compare the effects with "
        f"the log, then run seriatim registry reset {handler} --reason …"
    )
    return LogIdentityChanged(msg, details={"handler": handler, "tenant_id": tenant_id})
