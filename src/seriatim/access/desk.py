"""The place of tokens, quotas and answers: a file or a schema beside the log."""

from __future__ import annotations

import secrets
import threading
from typing import Any

from seriatim.store.engine import Engine, Purpose, statements

PURPOSE = Purpose(
    what="the access store",
    option="--access",
    last_table="seriatim_token_uses",
    remake="open it again, which makes what is missing",
)
_CREATE = (
    "create_tokens",
    "create_quotas",
    "create_answers",
    "create_answers_age",
    "create_answers_whose",
    "create_secrets",
    "create_token_uses",
)


class Desk:
    """What all acts on the access store share."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._second: Engine | None = None
        self._opening = threading.Lock()
        self._sql = statements(__package__, engine)
        if not engine.ready():
            engine.prepare([self._sql[name] for name in _CREATE])

    def _run(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement that writes."""
        with self._engine.at_once() as session:
            return session.run(self._sql[statement], values)

    def _look(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Run a statement that only reads."""
        with self._engine.transaction(write=False) as session:
            return session.run(self._sql[statement], values)

    def _apart(self) -> Engine:
        """Return a connection for what takes time: who calls is looked up on the first one."""
        with self._opening:
            if self._second is None:
                self._second = self._engine.another()
            return self._second

    def secret(self, name: str) -> bytes:
        """Return a secret of this log's services, the same in all of them."""
        if not (found := self._look("secret", name=name)):
            self._run("add_secret", name=name, value=secrets.token_hex(32))
            found = self._look("secret", name=name)
        return bytes.fromhex(found[0][0])

    def close(self) -> None:
        """Let go of the database."""
        for engine in (self._engine, self._second):
            if engine is not None:
                engine.close()
