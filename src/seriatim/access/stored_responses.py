"""Stored responses: duplicates of a command that appends nothing receive the first response.

Appends do not need this: their command records are part of the log and are written in the same
transaction. Commands handled here are safe to repeat, so when a process dies while running one,
another process may run it again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from seriatim.core.errors import IdempotencyKeyReuse, LimitExceeded

RESERVATION_S = 60.0  # a reservation without a response for so long counts as abandoned
_FULL_CACHE_S = 1.0  # a tenant at its limit is not counted again for so long
_TENANTS_MAX = 10_000


class StoredResponse(msgspec.Struct, frozen=True):
    """A response as it was sent."""

    status: int
    body: str


class IdempotentCommand(msgspec.Struct, frozen=True):
    """A command whose duplicates share one response: its tenant, key and request hash."""

    tenant_id: str
    key: str
    request_hash: str


class Reservation(msgspec.Struct, frozen=True):
    """The right to run a command; `owner` distinguishes this run from a later one."""

    command_key: str
    owner: str


def is_abandoned(row: tuple[Any, ...]) -> bool:
    """Return whether a reservation has expired without a response."""
    _, status, _, expired = row
    return status is None and bool(expired)


def parse_stored_response(
    command: IdempotentCommand, row: tuple[Any, ...]
) -> StoredResponse | None:
    """Return the response in a row, or None while the command is running.

    Raises:
        IdempotencyKeyReuse: The key was used for another request.
    """
    request_hash, status, body, _ = row
    if request_hash != command.request_hash:
        raise IdempotencyKeyReuse("the Idempotency-Key was used for another request")
    return None if status is None else StoredResponse(status, body)


class ResponseAllowance:
    """Limit the stored responses of each tenant without counting them on every request.

    Each count allows a tenth of the free places to be used before the next count. Ten processes
    that count at the same moment therefore stay within the limit together.
    """

    _PROCESSES = 10

    def __init__(self) -> None:
        self._remaining: dict[str, int] = {}
        self._full_until: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, tenant_id: str, at_most: int, count: Callable[[str, int], int]) -> None:
        """Use one place of a tenant; raises `LimitExceeded` if it has none left."""
        with self._lock:
            if (remaining := self._remaining.get(tenant_id, 0)) > 0:
                self._remaining[tenant_id] = remaining - 1
                return
            if self._full_until.get(tenant_id, 0.0) > time.monotonic():
                raise _too_many_responses_error(at_most)
        # Counting queries the database: never while holding the lock.
        free = at_most - count(tenant_id, at_most)
        with self._lock:
            for cache in (self._remaining, self._full_until):
                if len(cache) >= _TENANTS_MAX:
                    cache.clear()
            if free <= 0:
                self._full_until[tenant_id] = time.monotonic() + _FULL_CACHE_S
                raise _too_many_responses_error(at_most)
            self._remaining[tenant_id] = free // self._PROCESSES


def _too_many_responses_error(limit: int) -> LimitExceeded:
    msg = (
        f"tenant_answers: {limit} responses to requests with an Idempotency-Key are stored "
        "already; wait until old ones are purged, or raise the limit"
    )
    details = {"limit": "tenant_answers", "bound": limit, "retry_after_s": 60}
    return LimitExceeded(msg, details=details, retryable=True)
