"""Appends to a store directly, with validated requests but without a log."""

import itertools
from collections.abc import Callable, Iterable
from typing import Any

from seriatim.core.event import AppendResult, EventRecord, NewEvent
from seriatim.core.ids import uuid7
from seriatim.core.limits import DEFAULT_LIMITS
from seriatim.core.prepare import ValidationContext, prepare
from seriatim.core.profile_rules import LOG_PROFILE, ProfileRules
from seriatim.core.request import AppendRequest, Command, check_conditions, prepare_command
from seriatim.store.port import Outcome, ReadSpec, Store


class StoreAppender:
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
        profile_rules: ProfileRules = LOG_PROFILE,
    ) -> AppendRequest:
        """Validate events with the rules of the store, as the log does."""
        rules = store.rules()
        context = ValidationContext(
            tenant_id=tenant_id, new_id=self._new_id, rules=rules, profile_rules=profile_rules
        )
        conditions = check_conditions(condition, DEFAULT_LIMITS)
        prepared_command = prepare_command(tenant_id, command, DEFAULT_LIMITS)
        prepared, size = prepare(context, events, key)
        return AppendRequest(
            tenant_id, prepared, conditions, prepared_command, "error", size, rules.version
        )

    def append(self, store: Store, *events: NewEvent, **options: Any) -> AppendResult:
        """Append and return the receipt, or raise the error of the store."""
        (outcome,) = store.append([self.request(store, events, **options)])
        return receipt_or_raise(outcome)


def receipt_or_raise(outcome: Outcome) -> AppendResult:
    """Return the receipt of an outcome, or raise its error."""
    if isinstance(outcome, AppendResult):
        return outcome
    raise outcome


def read_everything(store: Store) -> list[EventRecord]:
    """Return all events of all tenants."""
    return store.read(ReadSpec(tenant_id=None, limit=1_000_000))


def make_facts(count: int, stream: tuple[str, str] | None = None) -> list[NewEvent]:
    """Return some events."""
    return [NewEvent("noted", {"number": number}, stream=stream) for number in range(count)]
