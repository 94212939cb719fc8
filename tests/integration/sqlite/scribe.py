"""Appends to a store directly, with validated requests but without a log."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from seriatim.core.doors import LOG, Door
from seriatim.core.event import AppendResult, EventRecord, NewEvent
from seriatim.core.ids import uuid7
from seriatim.core.limits import DEFAULT_LIMITS
from seriatim.core.prepare import Desk, prepare
from seriatim.core.request import Command, Request, check_conditions, prepare_command
from seriatim.store.port import Outcome, ReadSpec, Store


class Scribe:
    """Prepares requests for stores; one instance gives two stores the same event ids."""

    def __init__(self, new_id: Callable[[], str] | None = None) -> None:
        numbers = itertools.count()
        self._new_id = new_id or (lambda: uuid7(1_700_000_000_000, next(numbers)))

    def request(
        self,
        store: Store,
        events: Iterable[NewEvent],
        condition: Any = None,
        *,
        key: str | None = None,
        command: Command | None = None,
        tenant_id: str = "default",
        door: Door = LOG,
    ) -> Request:
        """Validate events with the rules of the store, as the log does."""
        rules = store.rules()
        desk = Desk(tenant_id=tenant_id, new_id=self._new_id, rules=rules, door=door)
        conditions = check_conditions(condition, DEFAULT_LIMITS)
        prepared_command = prepare_command(tenant_id, command, DEFAULT_LIMITS)
        prepared, size = prepare(desk, events, key)
        return Request(
            tenant_id, prepared, conditions, prepared_command, "error", size, rules.version
        )

    def append(self, store: Store, *events: NewEvent, **options: Any) -> AppendResult:
        """Append and return the receipt, or raise the error of the store."""
        (outcome,) = store.append([self.request(store, events, **options)])
        return receipt(outcome)


def receipt(outcome: Outcome) -> AppendResult:
    """Return the receipt of an outcome, or raise its error."""
    if isinstance(outcome, AppendResult):
        return outcome
    raise outcome


def everything(store: Store) -> list[EventRecord]:
    """Return all events of all tenants."""
    return store.read(ReadSpec(tenant_id=None, limit=1_000_000))


def facts(count: int, stream: tuple[str, str] | None = None) -> list[NewEvent]:
    """Return some events."""
    return [NewEvent("noted", {"number": number}, stream=stream) for number in range(count)]
