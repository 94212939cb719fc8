"""The log of a service: operations that take one round trip instead of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from seriatim.client.remote_tail import RemoteTail
from seriatim.client.store import HttpStore
from seriatim.core.query import Query, check_query
from seriatim.log.base import BaseLog
from seriatim.log.batches import Page
from seriatim.log.projections import Projections
from seriatim.log.query_execution import QueryRange, QueryResult
from seriatim.log.subscription import Tail
from seriatim.wire.records import from_wire_records

if TYPE_CHECKING:
    from seriatim.core.event import EventRecord
    from seriatim.store.port import ReadSpec, SubscriptionStatus
import time
from typing import TYPE_CHECKING, Any

from seriatim.core.errors import ProjectionTimeout
from seriatim.log.arguments import check_name, check_position, check_timeout
from seriatim.store.readmodel.port import FailureRecord, Progress, ProjectionStanding
from seriatim.wire import messages

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

    def get_progress(self, name: str) -> Progress:
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

    def status(self) -> list[ProjectionStanding]:
        """Return the position, lag and status of every projection."""
        found: list[ProjectionStanding] = self._get(
            "/v1/projections", {}, messages.ProjectionsResponse
        ).projections
        return found

    def failures(self, name: str) -> list[FailureRecord]:
        """Return the events that a projection could not process, and how each was resolved."""
        params = {"name": check_name("name", name)}
        found: list[FailureRecord] = self._get(
            "/v1/projections/failures", params, messages.FailuresResponse
        ).failures
        return found

    def _get(self, path: str, params: dict[str, Any], kind: type[Any], wait_s: float = 0.0) -> Any:
        tenant_id = self._log.tenant_id
        raw = self._store.http.get(path, params, tenant_id=tenant_id, wait_s=wait_s)
        return self._store.decode(raw, kind)


class RemoteBaseLog(BaseLog):
    """Run reads, queries and status calls as one request to the service each."""

    @property
    def _service(self) -> HttpStore:
        return cast("HttpStore", self.store)

    @property
    def _tail_class(self) -> type[Tail]:
        # A store that wraps the HTTP store is read through its own methods.
        return RemoteTail if isinstance(self.store, HttpStore) else Tail

    @property
    def projections(self) -> Projections:
        """The projections of the service's log."""
        return RemoteProjections(self, self._service)

    def subscriptions(self) -> list[SubscriptionStatus]:
        """List the tenant's durable subscriptions, with the lag that the service reports."""
        return list(self._service.subscription_statuses(self.tenant_id))

    def _scan_page(self, spec: ReadSpec) -> Page:
        return Page(*self._service.read_page(spec))

    def _run_query(self, query: Query, window: QueryRange) -> QueryResult:
        check_query(query, self.settings.limits)
        size, limit = window.check(self.settings.limits), window.limit
        records: list[EventRecord] = []
        while True:
            page = msgspec.structs.replace(window, limit=size)
            found = self._service.query(self.tenant_id, query, page)
            records += from_wire_records(found.records)
            if not found.more or len(records) == limit:
                break
            start = {"after": records[-1].position}
            if window.newest_first:
                start = {"until": records[-1].position - 1}
            # The head of the first page keeps all pages in one snapshot.
            window = msgspec.structs.replace(window, head=found.head, **start)
            size = size if limit is None else limit - len(records)
        last = records[-1].position if records else None
        return QueryResult(records, last, found.context_version, found.head, found.more)
