"""What all acts on the registry share: its database, its statements, its manners in an outage."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from seriatim.config.delivery import Registering
from seriatim.core.handling import Handler
from seriatim.delivery.outage import Outage
from seriatim.store.engine import Engine, Purpose, Session, statements

PURPOSE = Purpose(
    what="the registry",
    option="--registry",
    last_table="seriatim_handled",
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
)


class Acts:
    """A registry's database; every act is one transaction of it."""

    def __init__(self, engine: Engine, settings: Registering | None = None) -> None:
        self.engine = engine
        self.settings = settings or Registering()
        self.owner = self.settings.owner or _owner()
        self.outage = Outage(self.settings.on_outage)
        self.sql = statements(__package__, engine)
        for name in ("claim", "look"):
            self.sql[name] = self.sql[name].replace("{judged}", self.sql["judged"])
        self._calls = count(1)
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


def _owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
