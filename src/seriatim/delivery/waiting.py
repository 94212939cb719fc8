"""What cannot be handled yet waits in the registry, and what is passed over holds up nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from seriatim.core.event import LogIdentity
from seriatim.core.handling import Delivery, Handler
from seriatim.delivery.acts import Acts
from seriatim.delivery.claims import DELIVERED, Line, Passed, delivered

_BODY = {**DELIVERED, "event": "text"}
_PASSED = {
    "tenant_id": "text",
    "stream_type": "text",
    "stream_id": "text",
    "first_seq": "integer",
    "from_seq": "integer",
    "to_seq": "integer",
}


class Waiting(Acts):
    """The part of the registry that remembers what is left open."""

    def keep(self, handler: Handler, deliveries: Sequence[Delivery]) -> None:
        """Keep events that cannot be handled yet, so that their consumer may read on."""
        if deliveries:
            columns = [*delivered(deliveries), [one.body for one in deliveries]]
            self._rows("keep", _BODY, columns, self._values(handler), then="wait")

    def pass_over(self, handler: Handler, deliveries: Iterable[Delivery]) -> None:
        """Say which events the handler's own filter passes over, so that none waits for them.

        Raise `LogIdentityChanged` if they are of another log than those handled before.
        """
        deliveries = self.identified(deliveries)
        lines: dict[Line, list[Delivery]] = {}
        for one in deliveries:
            if one.line:
                lines.setdefault(one.line, []).append(one)
        if not lines or handler.mode != "strict":
            return
        self.admit(handler, deliveries)
        runs = {line: _first_run(line, passed) for line, passed in lines.items()}
        moved = self.pass_ranges(handler, list(runs.values()))
        # What does not follow what is settled is remembered until it does.
        ahead = [
            one
            for line, passed in lines.items()
            for one in passed
            if line not in moved or (one.stream_seq or 0) > runs[line].to_seq
        ]
        if ahead:
            columns = delivered(ahead)
            self._rows("pass_ahead", DELIVERED, columns, self._values(handler), then="wait")

    def pass_ranges(self, handler: Handler, ranges: Sequence[Passed]) -> set[Line]:
        """Say which numbers of streams are passed over, and tell which streams moved.

        What is open before them still holds.
        """
        if not ranges:
            return set()
        columns: list[list[Any]] = [
            [one.line[0] for one in ranges],
            [one.line[1] for one in ranges],
            [one.line[2] for one in ranges],
            [one.first_seq for one in ranges],
            [one.from_seq for one in ranges],
            [one.to_seq for one in ranges],
        ]
        return {
            (row[0], row[1], row[2])
            for row in self._rows("pass", _PASSED, columns, self._values(handler))
        }

    def due(self, handler: Handler, limit: int = 1000) -> list[Delivery]:
        """Return kept events whose time has come, each stream's in order."""
        values = self._values(handler) | {"limit": limit}
        self.outage.through(lambda: self._tidy(handler, values))
        found = self._look("due", values)
        found += self._look("lines", values) if len(found) < limit else []
        return [_kept(row) for row in found]

    def keeps(self, handler: Handler) -> bool:
        """Tell whether events are kept that may be due: cheaper than asking which."""
        return bool(self._look("open", {"handler": handler.name}))

    def _tidy(self, handler: Handler, values: dict[str, Any]) -> None:
        with self.engine.transaction() as session:
            if handler.at_most_once:
                session.run(self.sql["lapse"], values)
            session.run(self.sql["clear_begin"], values)
            session.run(self.sql["advance"], values)
            session.run(self.sql["clear"], values)

    def outdated(self, handler: Handler, deliveries: Sequence[Delivery]) -> None:
        """End kept events that have become stale."""
        if deliveries:
            self._rows("outdated", DELIVERED, delivered(deliveries), self._values(handler))

    # -- how far a source was read

    def cursor(self, handler: Handler, source: str) -> str | None:
        """Return where a handler's consumers are in a source."""
        found = self._look("cursor", {"handler": handler.name, "source": source})
        return found[0][0] if found else None

    def move_cursor(self, handler: Handler, source: str, cursor: str) -> None:
        """Remember where they are."""
        self._run("move_cursor", {"handler": handler.name, "source": source, "cursor": cursor})


def _first_run(line: Line, passed: Sequence[Delivery]) -> Passed:
    """Return the lowest unbroken run of numbers among events of one stream."""
    numbers = sorted({one.stream_seq for one in passed if one.stream_seq is not None})
    end = numbers[0]
    for number in numbers[1:]:
        if number != end + 1:
            break
        end = number
    return Passed(line, passed[0].first_seq, numbers[0], end)


def _kept(row: tuple[Any, ...]) -> Delivery:
    tenant_id, event_id, event_type, position, stream_type, stream_id, seq, first, event, *log = row
    return Delivery(
        tenant_id=tenant_id,
        event_id=event_id,
        event_type=event_type,
        position=position,
        stream=None if stream_type is None else (stream_type, stream_id),
        stream_seq=seq,
        first_seq=first,
        event=msgspec.Raw(event.encode()),
        log=None if log[0] is None else LogIdentity(*log),
    )
