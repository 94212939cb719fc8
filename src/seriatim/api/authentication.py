"""Authentication of bearer tokens, with a short cache and one lookup per token at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Any

from seriatim.access.rights import Caller
from seriatim.access.store import AccessStore
from seriatim.access.tokens import invalid_token_error, is_token
from seriatim.core.errors import Unauthorized

TOKEN_CACHE_S = 2.0  # a revoked token is accepted for at most this long
_REFUSED_CACHE_S = 1.0
_CACHE_MAX = 10_000
USE_WRITE_INTERVAL_S = 60.0  # between two writes of the time at which a token was last used


class Authenticator:
    """Look up tokens for one process.

    Args:
        access: The store of tokens.
        run: Runs a call of the store in a thread.
    """

    def __init__(self, access: AccessStore, run: Callable[..., Awaitable[Any]]) -> None:
        self._access = access
        self._run = run
        self._cache: dict[str, tuple[Caller, float]] = {}
        self._refused: dict[bytes, float] = {}
        self._used: dict[str, float] = {}  # time of last use by token id, until it is written
        self._written: dict[str, float] = {}  # time of the last write by token id
        self._lookups: dict[str, asyncio.Task[Caller]] = {}

    async def authenticate(self, token: str) -> Caller:
        """Return the caller that a token names.

        A string that is no token, or was refused a moment ago, is not looked up.

        Raises:
            Unauthorized: The token is unknown, revoked or expired.
        """
        cached = self._cache.get(token)
        if cached is not None and (now := time.monotonic()) < cached[1]:
            self._used[cached[0].token_id] = now
            return cached[0]
        if not is_token(token) or self._refused.get(_hash(token), 0.0) > time.monotonic():
            raise invalid_token_error()
        lookup = self._lookups.get(token)
        if lookup is None:
            lookup = self._lookups[token] = asyncio.create_task(self._look_up(token))
            lookup.add_done_callback(lambda _: self._lookups.pop(token))
        return await asyncio.shield(lookup)

    async def write_uses(self, *, all_tokens: bool = False) -> None:
        """Write the times at which tokens were last used.

        Args:
            all_tokens: Write all of them, as at shutdown; else each at most once a minute.
        """
        now = time.monotonic()
        due = {
            token_id: used
            for token_id, used in self._used.items()
            if all_tokens
            or now - self._written.get(token_id, float("-inf")) >= USE_WRITE_INTERVAL_S
        }
        if not due:
            return
        for token_id in due:
            del self._used[token_id]
        if len(self._written) >= _CACHE_MAX:
            self._written = {}
        self._written |= dict.fromkeys(due, now)
        await self._run(self._access.mark_used, {one: now - used for one, used in due.items()})

    async def _look_up(self, token: str) -> Caller:
        try:
            caller, remaining_us = await self._run(self._access.authenticate, token)
        except Unauthorized:
            if len(self._refused) >= _CACHE_MAX:
                self._refused = {}
            self._refused[_hash(token)] = time.monotonic() + _REFUSED_CACHE_S
            raise
        if len(self._cache) >= _CACHE_MAX:
            self._cache = {}
        cached_s = (
            TOKEN_CACHE_S if remaining_us is None else min(TOKEN_CACHE_S, remaining_us / 1_000_000)
        )
        now = time.monotonic()
        self._cache[token] = caller, now + cached_s
        self._used[caller.token_id] = now
        result: Caller = caller
        return result


def _hash(token: str) -> bytes:
    return sha256(token.encode()).digest()
