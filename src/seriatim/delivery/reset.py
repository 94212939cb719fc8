"""Reset a handler to a restored log: delete its entries of events that the log has lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec

from seriatim.core.errors import InvalidArgument
from seriatim.core.tenants import check_tenant
from seriatim.core.times import parse_us
from seriatim.delivery.registry_database import RegistryDatabase
from seriatim.log.base import BaseLog
from seriatim.store.engine import EngineSession
from seriatim.store.port import ReadSpec, Store

_PAGE_SIZE = 500
_CLOCK_TOLERANCE_US = 5_000  # tolerance when comparing times: SQLite's clock has milliseconds
_STREAM_SEQ_TYPES = {"stream_type": "text", "stream_id": "text", "last_seq": "integer"}
_STREAM_TYPES = {"stream_type": "text", "stream_id": "text"}

StreamSeq = tuple[str, str, int]  # stream type, stream id and last settled sequence number
SourceCursor = tuple[str, str]  # a source and its cursor


class LogCursor(msgspec.Struct, frozen=True):
    """The cursor of a worker in a log; it names the event at its position."""

    log_id: str
    epoch: int
    position: int
    last_event_id: str = msgspec.field(name="tip")  # the stored name must not change


class ResetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a reset for one tenant.

    Attributes:
        handler: The handler.
        tenant_id: The tenant.
        log_id: The log that the handler is bound to now.
        epoch: Its epoch.
        position: The end of the history that registry and log share. Events after it are new to the
            handler.
        forgotten: The number of deleted entries after it, by status.
        streams: The number of streams whose progress was moved back.

    """

    handler: str
    tenant_id: str
    log_id: str
    epoch: int
    position: int
    forgotten: dict[str, int]
    streams: int


def count_forgotten(reports: Iterable[ResetReport]) -> int:
    """Return the number of deleted entries of all tenants."""
    return sum(sum(one.forgotten.values()) for one in reports)


def reset_handler(
    database: RegistryDatabase,
    handler: str,
    log: BaseLog,
    *,
    reason: str,
    tenant_id: str | None = None,
    position: int | None = None,
    dry_run: bool = False,
) -> list[ResetReport]:
    """Let a handler continue with a restored or replaced log; `Registry.reset` documents it."""
    if not reason.strip():
        msg = "say why the handler is reset: the reason is stored (--reason)"
        raise InvalidArgument(msg, details={"argument": "reason"})
    if tenant_id is not None:
        check_tenant(tenant_id)
    database.check_handler_exists(handler)
    tenants = [tenant_id] if tenant_id is not None else _list_tenants(database, handler)
    plans = [_Plan(database, log.store, handler, tenant, position) for tenant in tenants]
    if not dry_run:
        for plan in plans:
            plan.apply(reason)
    return [plan.report for plan in plans]


def _list_tenants(database: RegistryDatabase, handler: str) -> list[str]:
    return [row[0] for row in database.read("list_tenants", {"handler": handler})]


class _Plan:
    """The changes of a reset for one handler and tenant, computed before any is made."""

    def __init__(
        self,
        database: RegistryDatabase,
        store: Store,
        handler: str,
        tenant_id: str,
        position: int | None,
    ) -> None:
        self._database = database
        self._store = store
        self._values: dict[str, Any] = {"handler": handler, "tenant": tenant_id}
        self._tenant_id = tenant_id
        self._log = store.identity()
        self.position = self._find_shared_end(position)
        self._values["position"] = self.position
        self.rewound, self.removed = self._find_lost_streams()
        self.report = ResetReport(
            handler=handler,
            tenant_id=tenant_id,
            log_id=self._log.log_id,
            epoch=self._log.epoch,
            position=self.position,
            forgotten={row[0]: row[1] for row in self._read("count_lost_entries")},
            streams=len(self.rewound) + len(self.removed),
        )

    def apply(self, reason: str) -> None:
        """Make all changes in one transaction."""
        cursors = list(self._rewind_cursors())
        sql = self._database.sql
        values = self._values | {
            "log_id": self._log.log_id,
            "epoch": self._log.epoch,
            "reason": reason,
        }

        # At once: a consumer of the restored log is refused until the handler is bound to it, and
        # then finds neither entries nor progress of the lost events.
        def execute() -> None:
            with self._database.engine.transaction() as session:
                session.run(sql["rebind_log"], values)
                session.run(sql["delete_lost_entries"], values)
                self._run_rows(session, "rewind_streams", _STREAM_SEQ_TYPES, self.rewound)
                self._run_rows(session, "delete_lost_streams", _STREAM_TYPES, self.removed)
                for source, cursor in cursors:
                    session.run(sql["move_cursor"], values | {"source": source, "cursor": cursor})

        self._database.outage.run(execute)

    def _run_rows(
        self, session: EngineSession, statement: str, kinds: dict[str, str], rows: list[Any]
    ) -> None:
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            self._database.run_rows_in(session, statement, kinds, columns, self._values)

    def _read(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        with self._database.engine.transaction(write=False) as session:
            return session.run(self._database.sql[statement], self._values | values)

    # -- the shared history

    def _find_shared_end(self, position: int | None) -> int:
        """Return the end of the history that registry and log share.

        It is the given position, if nothing contradicts it. Otherwise it is the highest position
        at which an entry or a cursor has the same event as the log.
        """
        head = self._store.head()
        if position is not None:
            if not 0 <= position <= head:
                raise _invalid_position(
                    f"{position} is not a position of the log, which ends at {head}"
                )
            contradiction = self._find_contradiction(position)
            if contradiction is not None:
                raise _invalid_position(
                    f"{position} is not the end of the shared history, because at position "
                    f"{contradiction} registry and log have different events"
                )
            return position
        shared, has_entries = self._find_highest_shared()
        cursors = [cursor.position for _, cursor in self._list_cursors() if self._is_shared(cursor)]
        if (
            shared is None
            and not cursors
            and (has_entries or self._read("list_streams", **_first_page_values()))
        ):
            raise _invalid_position(
                "no entry of the registry has the same event as the log, so the end of the shared "
                "history is not known: pass the head that the log had right after the restore"
            )
        return max([shared or 0, *cursors])

    def _find_contradiction(self, position: int) -> int | None:
        """Return the highest position up to `position` at which the log has another event."""
        # One page is enough: where the latest entries agree, the histories below them agree.
        page = self._read("list_latest_entries", before=position + 1, limit=_PAGE_SIZE)
        return next((row[1] for row in page if self._compare(row) == "other"), None)

    def _find_highest_shared(self) -> tuple[int | None, bool]:
        """Return the highest position with the same event, and whether there are any entries.

        Pages are read from the highest position down. A page without a difference ends the
        search, because the histories are equal below it.
        """
        before, shared, has_entries = 2**62, None, False  # above every position
        while page := self._read("list_latest_entries", before=before, limit=_PAGE_SIZE):
            has_entries = True
            comparisons = [self._compare(row) for row in page]
            if "newer" in comparisons:
                position = page[comparisons.index("newer")][1]
                raise _invalid_position(
                    f"the event at position {position} was recorded after the handler had handled "
                    "an event with its id, so ids do not tell which events are new: pass the head "
                    "that the log had right after the restore"
                )
            if "other" not in comparisons:
                return (page[0][1] if shared is None else shared), True
            last = max(
                index for index, comparison in enumerate(comparisons) if comparison == "other"
            )
            shared = page[last + 1][1] if last + 1 < len(page) else None
            before = page[-1][1]
        return shared, has_entries

    def _compare(self, row: tuple[Any, ...]) -> Literal["same", "newer", "other"]:
        """Compare an entry with the log's event at its position."""
        event_id, position, first_us = row
        spec = ReadSpec(tenant_id=self._tenant_id, after=position - 1, until=position, limit=1)
        for event in self._store.read(spec):
            if event.event_id == event_id:
                recorded_us = parse_us(event.recorded_at) or 0
                return "newer" if recorded_us > first_us + _CLOCK_TOLERANCE_US else "same"
        return "other"

    def _is_shared(self, cursor: LogCursor) -> bool:
        """Return whether the log has the event that a cursor was stored at."""
        if cursor.log_id != self._log.log_id or not cursor.position:
            return False
        return self._store.event_id_at(cursor.position) == cursor.last_event_id

    # -- streams and cursors after the shared history

    def _find_lost_streams(self) -> tuple[list[StreamSeq], list[tuple[str, str]]]:
        """Return streams whose progress is after the shared history, and those not in it at all."""
        rewound: list[StreamSeq] = []
        removed: list[tuple[str, str]] = []
        after = _first_page_values()
        while page := self._read("list_streams", **after):
            for stream_type, stream_id, last_seq in page:
                last_shared = self._find_last_shared_seq((stream_type, stream_id))
                if last_shared is None:
                    removed.append((stream_type, stream_id))
                elif last_seq > last_shared:
                    rewound.append((stream_type, stream_id, last_shared))
            after = _first_page_values() | {"type": page[-1][0], "id": page[-1][1]}
        return rewound, removed

    def _find_last_shared_seq(self, stream: tuple[str, str]) -> int | None:
        """Return the last sequence number of a stream in the shared history, or None."""
        spec = ReadSpec(tenant_id=self._tenant_id, stream=stream, after=self.position, limit=1)
        for later in self._store.read(spec):
            earlier = ReadSpec(
                tenant_id=self._tenant_id, stream=stream, until=self.position, limit=1
            )
            exists = bool(self._store.read(earlier))
            return (later.stream_seq or 0) - 1 if exists else None
        last = self._store.last_of_stream(self._tenant_id, stream)
        return None if last is None else last.stream_seq

    def _list_cursors(self) -> Iterator[tuple[str, LogCursor]]:
        """Yield the cursors of workers that read this log for this tenant or for all tenants."""
        # The names of `seriatim.delivery.log_source.LogSource`.
        names = {f"log:{self._log.log_id}:{tenant}" for tenant in (self._tenant_id, "*")}
        for source, cursor in self._read("list_source_cursors"):
            if source in names:
                yield source, msgspec.json.decode(cursor, type=LogCursor)

    def _rewind_cursors(self) -> Iterator[SourceCursor]:
        """Yield the cursors, moved back to the end of the shared history."""
        for source, cursor in self._list_cursors():
            position = min(cursor.position, self.position)
            last_event_id = (self._store.event_id_at(position) or "") if position else ""
            rewound_cursor = LogCursor(self._log.log_id, self._log.epoch, position, last_event_id)
            yield source, msgspec.json.encode(rewound_cursor).decode()


def _first_page_values() -> dict[str, Any]:
    """Return the parameters of the first page of streams."""
    return {"type": "", "id": "", "limit": _PAGE_SIZE}


def _invalid_position(problem: str) -> InvalidArgument:
    return InvalidArgument(f"position: {problem} (--position)", details={"argument": "position"})
