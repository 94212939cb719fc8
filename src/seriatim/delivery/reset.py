"""Resetting a handler to a restored log: what it knows of events that are gone is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from seriatim.core.errors import InvalidArgument
from seriatim.core.tenants import check_tenant
from seriatim.core.times import instant_us
from seriatim.delivery.acts import Acts
from seriatim.log.base import BaseLog
from seriatim.store.engine import Session
from seriatim.store.port import ReadSpec, Store

_PAGE = 500
_CLOCK_US = 5_000  # SQLite's clock counts milliseconds
_LAST_SEQS = {"stream_type": "text", "stream_id": "text", "last_seq": "integer"}
_STREAMS = {"stream_type": "text", "stream_id": "text"}

Settled = tuple[str, str, int]  # a stream, and its highest settled number
Moved = tuple[str, str]  # a source, and its cursor


class LogCursor(msgspec.Struct, frozen=True):
    """How far a log was read, and by which event it is known again."""

    log_id: str
    epoch: int
    position: int
    tip: str


class Reset(msgspec.Struct, frozen=True, kw_only=True):
    """What a reset did for one tenant.

    `position` is the end of the history that registry and log share: events after it are new to the
    handler. `forgotten` counts the entries after it by their status.
    """

    handler: str
    tenant_id: str
    log_id: str
    epoch: int
    position: int
    forgotten: dict[str, int]
    streams: int  # whose numbers were lowered


class Resetting(Acts):
    """The part of the registry that accepts another log or epoch."""

    def reset(  # noqa: PLR0913 - whom, to what, and why
        self,
        handler: str,
        log: BaseLog,
        *,
        reason: str,
        tenant_id: str | None = None,
        position: int | None = None,
        dry_run: bool = False,
    ) -> list[Reset]:
        """Let a handler go on with a log that was restored or replaced; return what was forgotten.

        Entries of events that the log does not hold any more are deleted, the numbers of their
        streams are lowered, and cursors of workers move back, so that new events at these places
        are handled as new. Entries of the shared history stay: their effects are not repeated.
        `position` is the head of the log right after the restore; without it, the highest position
        at which registry and log hold the same event. `dry_run` only reports.
        """
        if not reason.strip():
            msg = "say why the handler is reset: the reason is kept"
            raise InvalidArgument(msg, details={"argument": "reason"})
        if tenant_id is not None:
            check_tenant(tenant_id)
        self.check_known(handler)
        tenants = [tenant_id] if tenant_id is not None else self._tenants(handler)
        plans = [_Plan(self, log.store, handler, tenant, position) for tenant in tenants]
        if not dry_run:
            for plan in plans:
                plan.apply(reason)
        return [plan.report for plan in plans]

    def _tenants(self, handler: str) -> list[str]:
        return [row[0] for row in self._look("tenants", {"handler": handler})]


class _Plan:
    """What a reset changes for one handler and tenant, found out before anything is changed."""

    def __init__(
        self, acts: Acts, store: Store, handler: str, tenant_id: str, position: int | None
    ) -> None:
        self._acts = acts
        self._store = store
        self._values: dict[str, Any] = {"handler": handler, "tenant": tenant_id}
        self._tenant_id = tenant_id
        self._log = store.identity()
        self.position = self._shared(position)
        self._values["position"] = self.position
        self.lowered, self.gone = self._streams()
        self.report = Reset(
            handler=handler,
            tenant_id=tenant_id,
            log_id=self._log.log_id,
            epoch=self._log.epoch,
            position=self.position,
            forgotten={row[0]: row[1] for row in self._look("lost")},
            streams=len(self.lowered) + len(self.gone),
        )

    def apply(self, reason: str) -> None:
        """Make the changes, all or none."""
        moved = list(self._moved())
        sql = self._acts.sql
        values = self._values | {
            "log_id": self._log.log_id,
            "epoch": self._log.epoch,
            "reason": reason,
        }

        def act() -> None:
            with self._acts.engine.transaction() as session:
                session.run(sql["keep_to"], values)
                session.run(sql["forget"], values)
                self._given(session, "lower", _LAST_SEQS, self.lowered)
                self._given(session, "forget_streams", _STREAMS, self.gone)
                for source, cursor in moved:
                    session.run(sql["move_cursor"], values | {"source": source, "cursor": cursor})

        self._acts.outage.through(act)

    def _given(
        self, session: Session, statement: str, kinds: dict[str, str], rows: list[Any]
    ) -> None:
        if rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            named = {"of_handler": "text", **kinds}
            given = [[self._values["handler"]] * len(rows), *columns]
            session.given(self._acts.sql[statement], named, given, self._values)

    def _look(self, statement: str, **more: Any) -> list[tuple[Any, ...]]:
        with self._acts.engine.transaction(write=False) as session:
            return session.run(self._acts.sql[statement], self._values | more)

    # -- the shared history

    def _shared(self, given: int | None) -> int:
        """Return the end of the history that the registry's entries and the log share."""
        head = self._store.head()
        if given is not None:
            if not 0 <= given <= head:
                raise _bad(f"position {given} is not within the log, which ends at {head}")
            contradicted = self._contradicted(given)
            if contradicted is not None:
                raise _bad(
                    f"at position {contradicted} the registry knows another event than the log, so "
                    f"{given} is not the end of their shared history"
                )
            return given
        held, seen = self._highest_held()
        cursors = [one.position for _, one in self._cursors() if self._is_held(one)]
        if held is None and not cursors and (seen or self._look("streams", **_first())):
            raise _bad(
                "no entry shows up to where the log is the one that the handler knows: name the "
                "head of the log right after the restore"
            )
        return max([held or 0, *cursors])

    def _contradicted(self, position: int) -> int | None:
        """Return the highest position up to this one at which the log holds another event."""
        page = self._look("latest", before=position + 1, limit=_PAGE)
        return next((row[1] for row in page if self._compared(row) == "other"), None)

    def _highest_held(self) -> tuple[int | None, bool]:
        """Return the highest position whose entry the log holds, and whether there are entries.

        A page without a difference ends the search: below it the histories are one.
        """
        before, held, seen = 2**62, None, False
        while page := self._look("latest", before=before, limit=_PAGE):
            seen = True
            found = [self._compared(row) for row in page]
            if "newer" in found:
                position = page[found.index("newer")][1]
                raise _bad(
                    f"the event at position {position} was recorded after the handler had one of "
                    "its id, so ids do not show which events are new: name the head of the log "
                    "right after the restore"
                )
            if "other" not in found:
                return (page[0][1] if held is None else held), True
            last = max(nth for nth, one in enumerate(found) if one == "other")
            held = page[last + 1][1] if last + 1 < len(page) else None
            before = page[-1][1]
        return held, seen

    def _compared(self, row: tuple[Any, ...]) -> Literal["same", "newer", "other"]:
        """Compare an entry with the event that the log holds at its position."""
        event_id, position, first_us = row
        spec = ReadSpec(tenant_id=self._tenant_id, after=position - 1, until=position, limit=1)
        for event in self._store.read(spec):
            if event.event_id == event_id:
                recorded_us = instant_us(event.recorded_at) or 0
                return "newer" if recorded_us > first_us + _CLOCK_US else "same"
        return "other"

    def _is_held(self, cursor: LogCursor) -> bool:
        if cursor.log_id != self._log.log_id or not cursor.position:
            return False
        return self._store.event_id_at(cursor.position) == cursor.tip

    # -- what follows from it

    def _streams(self) -> tuple[list[Settled], list[tuple[str, str]]]:
        """Return streams whose number is beyond the shared history, and those not in it."""
        lowered: list[Settled] = []
        gone: list[tuple[str, str]] = []
        after = _first()
        while page := self._look("streams", **after):
            for stream_type, stream_id, last_seq in page:
                reached = self._reached((stream_type, stream_id))
                if reached is None:
                    gone.append((stream_type, stream_id))
                elif last_seq > reached:
                    lowered.append((stream_type, stream_id, reached))
            after = _first() | {"type": page[-1][0], "id": page[-1][1]}
        return lowered, gone

    def _reached(self, stream: tuple[str, str]) -> int | None:
        """Return the last number of a stream in the shared history, None if it is not in there."""
        spec = ReadSpec(tenant_id=self._tenant_id, stream=stream, after=self.position, limit=1)
        for later in self._store.read(spec):
            begun = ReadSpec(tenant_id=self._tenant_id, stream=stream, until=self.position, limit=1)
            known = bool(self._store.read(begun))
            return (later.stream_seq or 0) - 1 if known else None
        last = self._store.last_of_stream(self._tenant_id, stream)
        return None if last is None else last.stream_seq

    def _cursors(self) -> Iterator[tuple[str, LogCursor]]:
        """Yield the cursors of workers that read this log for this tenant, or for all."""
        names = {f"log:{self._log.log_id}:{whose}" for whose in (self._tenant_id, "*")}
        for source, cursor in self._look("sources"):
            if source in names:
                yield source, msgspec.json.decode(cursor, type=LogCursor)

    def _moved(self) -> Iterator[Moved]:
        for source, cursor in self._cursors():
            position = min(cursor.position, self.position)
            tip = (self._store.event_id_at(position) or "") if position else ""
            made = LogCursor(self._log.log_id, self._log.epoch, position, tip)
            yield source, msgspec.json.encode(made).decode()


def _first() -> dict[str, Any]:
    return {"type": "", "id": "", "limit": _PAGE}


def _bad(problem: str) -> InvalidArgument:
    return InvalidArgument(f"position: {problem} (--position)", details={"argument": "position"})
