"""What a log in a service does in one round trip where a store takes several."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from seriatim.client.projections import RemoteProjections
from seriatim.client.store import HttpStore
from seriatim.client.tailing import RemoteTail
from seriatim.core.query import Query, check_query
from seriatim.log.arguments import check_position
from seriatim.log.base import BaseLog, Page
from seriatim.log.projections import Projections
from seriatim.log.querying import QueryResult
from seriatim.log.subscription import Tail
from seriatim.wire.records import all_incoming

if TYPE_CHECKING:
    from seriatim.core.event import EventRecord
    from seriatim.store.port import ReadSpec


class Remote(BaseLog):
    """The part of a log that is asked of a service as a whole."""

    @property
    def _service(self) -> HttpStore:
        return cast("HttpStore", self.store)

    @property
    def _follow(self) -> type[Tail]:
        # A store that is wrapped is followed by the acts of its wrapping.
        return RemoteTail if isinstance(self.store, HttpStore) else Tail

    @property
    def projections(self) -> Projections:
        """The projections beside the log that the service serves."""
        return RemoteProjections(self, self._service)

    def _scanned(self, spec: ReadSpec) -> Page:
        return Page(*self._service.page(spec))

    def _found(
        self, query: Query, limit: int | None, after: int | None, head: int | None
    ) -> QueryResult:
        check_query(query, self.settings.limits)
        size = self.settings.limits.page
        if limit is not None:
            size = self.settings.limits.check_page("limit", limit)
        for name, value in (("after", after), ("head", head)):
            if value is not None:
                check_position(name, value)
        records: list[EventRecord] = []
        while True:
            found = self._service.query(self.tenant_id, query, size, after, head)
            records += all_incoming(found.records)
            if not found.more or len(records) == limit:
                break
            after, head = records[-1].position, found.head
            size = size if limit is None else limit - len(records)
        last = records[-1].position if records else None
        return QueryResult(records, last, found.context_version, found.head, found.more)
