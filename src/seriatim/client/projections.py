"""The projections of a log in a service, which does the waiting itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from seriatim.core.errors import ProjectionTimeout
from seriatim.log.arguments import check_name, check_position, check_timeout
from seriatim.log.projections import Projections
from seriatim.store.readmodel.port import FailureRecord, Progress, Standing
from seriatim.wire import shapes

if TYPE_CHECKING:
    from seriatim.client.store import HttpStore
    from seriatim.log.base import BaseLog

_AT_ONCE_S = 0.0
_WORTH_WAITING_S = 0.05
_WAIT_MAX_S = 60.0  # of one request


class RemoteProjections(Projections):
    """The projections beside the log that a service serves."""

    def __init__(self, log: BaseLog, store: HttpStore) -> None:
        super().__init__(log, "")
        self._store = store

    def wait_for(self, name: str, position: int, timeout_s: float = 10.0) -> Progress:
        """Wait until a projection has passed a position of the log, and return how far it is."""
        left = check_timeout(timeout_s, "timeout_s")
        until = time.monotonic() + left
        while True:
            try:
                return self._progress(name, position, min(left, _WAIT_MAX_S))
            except ProjectionTimeout:
                left = until - time.monotonic()
                if left < _WORTH_WAITING_S:
                    raise

    def demand(self, name: str, position: int) -> Progress:
        """Return how far a projection is, or raise at once unless it has passed a position."""
        return self._progress(name, position, _AT_ONCE_S)

    def look(self, name: str) -> Progress:
        """Return how far a projection of this log has come."""
        return self._progress(name, 0, _AT_ONCE_S)

    def _progress(self, name: str, position: int, timeout_s: float) -> Progress:
        params = {
            "name": check_name("name", name),
            "position": check_position("position", position),
            "timeout_s": timeout_s,
        }
        found: Progress = self._ask("/v1/projections/wait", params, Progress, timeout_s)
        return found

    def status(self) -> list[Standing]:
        """Return where every projection stands."""
        found: list[Standing] = self._ask(
            "/v1/projections", {}, shapes.ProjectionsAnswer
        ).projections
        return found

    def failures(self, name: str) -> list[FailureRecord]:
        """Return what a projection could not take, and what became of it."""
        params = {"name": check_name("name", name)}
        found: list[FailureRecord] = self._ask(
            "/v1/projections/failures", params, shapes.FailuresAnswer
        ).failures
        return found

    def _ask(self, path: str, params: dict[str, Any], kind: type[Any], wait_s: float = 0.0) -> Any:
        tenant_id = self._log.tenant_id
        raw = self._store.http.get(path, params, tenant_id=tenant_id, wait_s=wait_s)
        return self._store.decoded(raw, kind)
