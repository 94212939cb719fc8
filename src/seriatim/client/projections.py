"""The projections of a service's log; the service itself waits for them."""

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

_NO_WAIT_S = 0.0
_WAIT_MIN_S = 0.05  # a shorter wait is not worth another request
_WAIT_MAX_S = 60.0  # of one request


class RemoteProjections(Projections):
    """The projections of a service's log."""

    def __init__(self, log: BaseLog, store: HttpStore) -> None:
        super().__init__(log, "")
        self._store = store

    def wait_for(self, name: str, position: int, timeout_s: float = 10.0) -> Progress:
        """Wait until a projection has reached a position; see `Projections.wait_for`."""
        left = check_timeout(timeout_s, "timeout_s")
        deadline = time.monotonic() + left
        while True:
            try:
                return self._progress(name, position, min(left, _WAIT_MAX_S))
            except ProjectionTimeout:
                left = deadline - time.monotonic()
                if left < _WAIT_MIN_S:
                    raise

    def demand(self, name: str, position: int) -> Progress:
        """Require that a projection has reached a position; see `Projections.demand`."""
        return self._progress(name, position, _NO_WAIT_S)

    def look(self, name: str) -> Progress:
        """Return the progress of a projection."""
        return self._progress(name, 0, _NO_WAIT_S)

    def _progress(self, name: str, position: int, timeout_s: float) -> Progress:
        params = {
            "name": check_name("name", name),
            "position": check_position("position", position),
            "timeout_s": timeout_s,
        }
        found: Progress = self._get("/v1/projections/wait", params, Progress, timeout_s)
        return found

    def status(self) -> list[Standing]:
        """Return the position, lag and status of every projection."""
        found: list[Standing] = self._get(
            "/v1/projections", {}, shapes.ProjectionsAnswer
        ).projections
        return found

    def failures(self, name: str) -> list[FailureRecord]:
        """Return the events that a projection could not process, and how each was resolved."""
        params = {"name": check_name("name", name)}
        found: list[FailureRecord] = self._get(
            "/v1/projections/failures", params, shapes.FailuresAnswer
        ).failures
        return found

    def _get(self, path: str, params: dict[str, Any], kind: type[Any], wait_s: float = 0.0) -> Any:
        tenant_id = self._log.tenant_id
        raw = self._store.http.get(path, params, tenant_id=tenant_id, wait_s=wait_s)
        return self._store.decoded(raw, kind)
