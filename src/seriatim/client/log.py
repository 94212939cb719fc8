"""The log of a service: operations that take one round trip instead of several."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from seriatim.client.projections import RemoteProjections
from seriatim.client.store import HttpStore
from seriatim.client.tailing import RemoteTail
from seriatim.core.query import Query, check_query
from seriatim.log.base import BaseLog, Page
from seriatim.log.projections import Projections
from seriatim.log.querying import QueryResult, Window
from seriatim.log.subscription import Tail
from seriatim.wire.records import all_incoming

if TYPE_CHECKING:
    from seriatim.core.event import EventRecord
    from seriatim.store.port import ReadSpec, SubscriptionStatus


class Remote(BaseLog):
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
        return Page(*self._service.page(spec))

    def _run_query(self, query: Query, window: Window) -> QueryResult:
        check_query(query, self.settings.limits)
        size, limit = window.check(self.settings.limits), window.limit
        records: list[EventRecord] = []
        while True:
            page = msgspec.structs.replace(window, limit=size)
            found = self._service.query(self.tenant_id, query, page)
            records += all_incoming(found.records)
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
