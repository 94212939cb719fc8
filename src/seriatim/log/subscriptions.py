"""The durable subscriptions of a log: list them, show one, retry, skip and reset."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec

from seriatim.core.canonical import decode_stored_json
from seriatim.core.errors import Conflict, NotFound
from seriatim.core.operation import ActionName, Operator, OperatorAction
from seriatim.core.query import Query, check_query
from seriatim.core.times import parse_us
from seriatim.log.arguments import check_name, check_position, invalid_argument
from seriatim.log.async_iteration import AsyncExecutor
from seriatim.log.cursors import check_cursor, reset_subscription
from seriatim.log.operator_journal import check_reason, local_operator, record_action
from seriatim.store.port import (
    BatchAttempt,
    Cursor,
    ServiceStore,
    SkippedBatch,
    Store,
    SubscriptionState,
    SubscriptionStatus,
)

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog

_PAGE_SIZE = 100


class Subscriptions:
    """The durable subscriptions of a log, as its operators see them.

    Call it to list them. `log.subscribe` opens one to receive events.

    Example:
        for status in log.subscriptions():
            print(status.name, status.status, status.lag_events, status.last_error)
    """

    def __init__(self, log: BaseLog) -> None:
        self._log = log

    def __call__(self) -> list[SubscriptionStatus]:
        """List this tenant's durable subscriptions: status, owner, cursor, lag and last error.

        Example:
            for status in log.subscriptions():
                print(status.name, status.owner, status.lag_events, status.last_error)
        """
        return list(self._iterate_statuses())

    def _iterate_statuses(self) -> Iterator[SubscriptionStatus]:
        after = ""
        while page := read_statuses(self._store, self._log.tenant_id, after, _PAGE_SIZE):
            yield from page
            if len(page) < _PAGE_SIZE:
                return
            after = page[-1].name

    @property
    def _store(self) -> ServiceStore:
        return cast("ServiceStore", self._log.store)

    def get(self, name: str) -> SubscriptionStatus:
        """Return the status of one subscription.

        Raises:
            NotFound: There is no such subscription.

        Example:
            log.subscribe("mailer")
            status = log.subscriptions.get("mailer")
            print(status.status, status.position, status.attempts, status.last_error)
        """
        check_name("name", name)
        found = read_statuses(self._store, self._log.tenant_id, "", 1, name=name)
        if not found:
            raise _not_found(name)
        return found[0]

    def skipped(self, name: str) -> list[SkippedBatch]:
        """Return the batches that a subscription has passed without handling them, by position.

        A reset forgets those after its position, since they are delivered again.

        Raises:
            NotFound: There is no such subscription.

        Example:
            log.subscribe("mailer")
            for batch in log.subscriptions.skipped("mailer"):
                print(batch.first_position, batch.last_position, batch.error)
        """
        batches = self.list_skipped(name, limit=_PAGE_SIZE)
        while page := self.list_skipped(
            name, after=batches[-1].first_position if batches else 0, limit=_PAGE_SIZE
        ):
            batches += page
        return batches

    def list_skipped(self, name: str, *, after: int = 0, limit: int) -> list[SkippedBatch]:
        """Return a page of skipped batches; see `skipped`.

        Args:
            name: The subscription.
            after: Only batches that begin after this position.
            limit: The maximum number of batches.

        Raises:
            NotFound: There is no such subscription.

        Example:
            log.subscribe("mailer")
            page = log.subscriptions.list_skipped("mailer", limit=100)
        """
        self._find_cursor(name)
        return self._store.skipped_batches(self._log.tenant_id, name, after, limit)

    def retry(self, name: str, *, reason: str = "", operator: Operator | None = None) -> bool:
        """Let a parked subscription attempt its batch again, with as many attempts as before.

        An owner that waits continues within its poll interval; otherwise the next run does.

        Args:
            name: The subscription.
            reason: Why, for the operators' journal.
            operator: Who does it; by default the user of this process.

        Returns:
            Whether the action was recorded in the operators' journal.

        Raises:
            NotFound: There is no such subscription.
            Conflict: It is not parked.

        Example:
            for status in log.subscriptions():
                if status.status == "parked":
                    log.subscriptions.retry(status.name, reason="the mail server is back")
        """
        check_reason(reason)
        cursor = self._find_cursor(name)
        attempt = cursor.attempt
        tenant_id, position = self._log.tenant_id, cursor.position
        if attempt is None or not self._store.resume_attempts(tenant_id, name, position):
            raise Conflict(f"subscription {name!r} is not parked", details={"name": name})
        target = _describe_batch(name, attempt)
        return self._record("subscription_retried", target, operator, reason)

    def skip(
        self, name: str, position: int, *, reason: str, operator: Operator | None = None
    ) -> bool:
        """Move the cursor past the failing batch, which is recorded as skipped.

        An owner that is processing the batch loses the lease, so that it cannot move the cursor.

        Args:
            name: The subscription.
            position: The first position of the failing batch, `status.attempt.first_position`.
            reason: Why, for the operators' journal.
            operator: Who does it; by default the user of this process.

        Returns:
            Whether the action was recorded in the operators' journal.

        Raises:
            NotFound: There is no such subscription.
            Conflict: The batch at this position is not the one that fails.
            LogIdentityChanged: The log was restored or replaced since the cursor was stored.

        Example:
            for status in log.subscriptions():
                if status.status == "parked":
                    position = status.attempt.first_position
                    log.subscriptions.skip(status.name, position, reason="the address is invalid")
        """
        check_position("position", position)
        if not check_reason(reason).strip():
            raise invalid_argument("reason", "is required to skip a batch")
        store, cursor = self._store, self._find_cursor(name)
        attempt = cursor.attempt
        if attempt is None or attempt.first_position != position:
            raise _wrong_batch_error(name, attempt, position)
        check_cursor(store, cursor, cursor.query)
        actor = operator or local_operator()
        moved = msgspec.structs.replace(
            cursor,
            position=attempt.last_position,
            last_event_id=store.event_id_at(attempt.last_position) or "",
            attempt=None,
        )
        skipped = SkippedBatch(
            first_position=attempt.first_position,
            last_position=attempt.last_position,
            attempts=attempt.attempts,
            error=self.get(name).last_error or "",
            skipped_by=actor.actor_id,
            reason=reason,
        )
        store.skip_batch(moved, skipped, after=cursor.position, lease=None)
        target = _describe_batch(name, attempt)
        return self._record("subscription_batch_skipped", target, actor, reason)

    def reset(
        self,
        name: str,
        position: int,
        query: Query | None = None,
        *,
        reason: str = "",
        operator: Operator | None = None,
    ) -> bool:
        """Set the cursor of a subscription to any position, and forget its attempts.

        Its owner loses the lease and continues there. This also works after a restore, when the
        subscription cannot be opened.

        Args:
            name: The subscription.
            position: The position after which it continues; 0 is the beginning.
            query: The query with which it is opened from now on; None keeps the stored one.
            reason: Why, for the operators' journal.
            operator: Who does it; by default the user of this process.

        Returns:
            Whether the action was recorded in the operators' journal.

        Raises:
            NotFound: There is no such subscription, and no query was given.
            InvalidArgument: The position is malformed or after the head.

        Example:
            log.subscribe("mailer")
            log.subscriptions.reset("mailer", 0, reason="send the mails again")
        """
        check_reason(reason)
        check_name("name", name)
        stored = self._store.cursor(self._log.tenant_id, "subscription", name)
        if query is None:
            if stored is None:
                raise _not_found(name)
            query = _parse_query(stored.query)
        check_query(query, self._log.settings.limits)
        reset_subscription(self._store, self._log.tenant_id, name, position, query)
        target = {"subscription": name, "position": position}
        if stored is not None:
            target["from_position"] = stored.position
        return self._record("subscription_reset", target, operator, reason)

    def _find_cursor(self, name: str) -> Cursor:
        check_name("name", name)
        cursor = self._store.cursor(self._log.tenant_id, "subscription", name)
        if cursor is None:
            raise _not_found(name)
        return cursor

    def _record(
        self, action: ActionName, target: dict[str, Any], operator: Operator | None, reason: str
    ) -> bool:
        entry = OperatorAction(
            action=action,
            operator=operator or local_operator(),
            tenant_id=self._log.tenant_id,
            target=target,
            reason=reason,
        )
        return record_action(self._log, entry)


def _not_found(name: str) -> NotFound:
    return NotFound("there is no such subscription", details={"name": name})


def _wrong_batch_error(name: str, attempt: BatchAttempt | None, position: int) -> Conflict:
    actual = None if attempt is None else attempt.first_position
    problem = "no batch has failed" if actual is None else f"the failing batch is at {actual}"
    msg = f"cannot skip position {position} of subscription {name!r}: {problem}"
    return Conflict(msg, details={"name": name, "expected": position, "actual": actual})


def _describe_batch(name: str, attempt: BatchAttempt) -> dict[str, Any]:
    return {
        "subscription": name,
        "position": attempt.first_position,
        "last_position": attempt.last_position,
        "attempts": attempt.attempts,
    }


# -- status and lag


def read_statuses(
    store: ServiceStore, tenant_id: str, after: str, limit: int, *, name: str | None = None
) -> list[SubscriptionStatus]:
    """Return a page of statuses by name, after the name `after`; with `name`, only this one."""
    head = store.head()
    states = store.subscriptions(tenant_id, after, limit, name=name)
    return [_make_status(store, state, head) for state in states]


def _make_status(store: ServiceStore, state: SubscriptionState, head: int) -> SubscriptionStatus:
    query = _parse_query(state.query)
    after = max(state.position, query.min_position or 0)
    events, seconds = measure_lag(store, state.tenant_id, query, after, head)
    parked = state.attempt is not None and state.attempt.parked_at is not None
    return SubscriptionStatus(
        **msgspec.structs.asdict(state),
        head=head,
        lag_events=events,
        lag_seconds=seconds,
        status="parked" if parked else "retrying" if state.failures else "ready",
    )


def _parse_query(text: str) -> Query:
    return Query.from_mapping(decode_stored_json(text)) if text else Query()


def measure_lag(
    store: Store, tenant_id: str, query: Query, after: int, head: int
) -> tuple[int, float]:
    """Return the lag of a cursor in positions and in seconds, both 0 if no event is pending.

    The positions are counted from the first pending event to the head, so there are at most as
    many pending events. The seconds are the age of that event.
    """
    pending = store.select(tenant_id, query, after, head, 1) if after < head else []
    if not pending:
        return 0, 0.0
    recorded_us = parse_us(pending[0].recorded_at) or 0
    seconds = max(0.0, time.time() - recorded_us / 1_000_000)
    return head - pending[0].position + 1, seconds


class AsyncSubscriptions:
    """`Subscriptions` for asyncio; each call runs in a thread.

    Example:
        for status in await log.aio.subscriptions():
            print(status.name, status.status)
    """

    def __init__(
        self, subscriptions: Subscriptions, executor: AsyncExecutor = asyncio.to_thread
    ) -> None:
        self._subscriptions = subscriptions
        self._execute = executor

    async def __call__(self) -> list[SubscriptionStatus]:
        """List durable subscriptions; see `Log.subscriptions`.

        Example:
            for status in await log.aio.subscriptions():
                print(status.name, status.lag_events)
        """
        return await self._execute(self._subscriptions)

    async def get(self, name: str) -> SubscriptionStatus:
        """Return the status of one subscription; see `Subscriptions.get`.

        Raises:
            NotFound: There is no such subscription.

        Example:
            log.subscribe("mailer")
            print((await log.aio.subscriptions.get("mailer")).status)
        """
        return await self._execute(self._subscriptions.get, name)

    async def skipped(self, name: str) -> list[SkippedBatch]:
        """Return the batches that a subscription has skipped; see `Subscriptions.skipped`.

        Raises:
            NotFound: There is no such subscription.

        Example:
            log.subscribe("mailer")
            for batch in await log.aio.subscriptions.skipped("mailer"):
                print(batch.first_position, batch.error)
        """
        return await self._execute(self._subscriptions.skipped, name)

    async def retry(self, name: str, *, reason: str = "", operator: Operator | None = None) -> bool:
        """Let a parked subscription attempt its batch again; see `Subscriptions.retry`.

        Raises:
            NotFound: There is no such subscription.
            Conflict: It is not parked.

        Example:
            for status in await log.aio.subscriptions():
                if status.status == "parked":
                    await log.aio.subscriptions.retry(status.name)
        """
        return await self._execute(
            self._subscriptions.retry, name, reason=reason, operator=operator
        )

    async def skip(
        self, name: str, position: int, *, reason: str, operator: Operator | None = None
    ) -> bool:
        """Move the cursor past the failing batch; see `Subscriptions.skip`.

        Raises:
            NotFound: There is no such subscription.
            Conflict: The batch at this position is not the one that fails.

        Example:
            for status in await log.aio.subscriptions():
                if status.status == "parked":
                    position = status.attempt.first_position
                    await log.aio.subscriptions.skip(status.name, position, reason="invalid")
        """
        return await self._execute(
            self._subscriptions.skip, name, position, reason=reason, operator=operator
        )

    async def reset(
        self,
        name: str,
        position: int,
        query: Query | None = None,
        *,
        reason: str = "",
        operator: Operator | None = None,
    ) -> bool:
        """Set the cursor of a subscription to any position; see `Subscriptions.reset`.

        Raises:
            NotFound: There is no such subscription, and no query was given.
            InvalidArgument: The position is malformed or after the head.

        Example:
            log.subscribe("mailer")
            await log.aio.subscriptions.reset("mailer", 0, reason="send the mails again")
        """
        return await self._execute(
            self._subscriptions.reset, name, position, query, reason=reason, operator=operator
        )
