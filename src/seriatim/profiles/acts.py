"""How a profile's acts run: each written once, then called or awaited, in the profile's words."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import cached_property, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from seriatim.core.errors import (
    ConditionalAppendConflict,
    IdempotencyConflict,
    InvalidArgument,
    InvalidEvent,
    PiiPolicyViolation,
    SchemaViolation,
    SeriatimError,
)
from seriatim.core.event import AppendResult
from seriatim.log.aio import AsyncLog, in_threads
from seriatim.log.appending import Draft
from seriatim.log.base import BaseLog
from seriatim.log.followed import followed

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")

# Errors that name the caller's fields; the others speak of the log, or share one object.
_NAMING_FIELDS = (
    IdempotencyConflict,
    InvalidArgument,
    InvalidEvent,
    PiiPolicyViolation,
    SchemaViolation,
)


class Words:
    """The log's names for fields, and what one profile calls them."""

    def __init__(self, names: Mapping[str, str], *, prose: Mapping[str, str] | None = None) -> None:
        """Take names of fields; `prose` are those that messages hold too (those with a _)."""
        self._names = names
        told = {name: names[name] for name in names if "_" in name} if prose is None else prose
        self._told = told
        self._pattern = re.compile(rf"\b({'|'.join(map(re.escape, told))})\b")

    def translated(self, error: SeriatimError) -> SeriatimError:
        """Return the error as the profile tells it, the same one when nothing changes."""
        message = self._pattern.sub(lambda found: self._told[found[1]], error.message)
        details = {name: self._detail(name, value) for name, value in error.details.items()}
        if message == error.message and details == error.details:
            return error
        return type(error)(message, details=details, retryable=error.retryable)

    def _detail(self, name: str, value: Any) -> Any:
        if name in {"argument", "field", "path"} and isinstance(value, str):
            return self._names.get(value, value)
        if name == "fields" and isinstance(value, list):
            return [self._names.get(one, one) for one in value]
        return value

    @contextmanager
    def spoken(self) -> Iterator[None]:
        """Translate the errors of what happens inside."""
        try:
            yield
        except _NAMING_FIELDS as error:
            told = self.translated(error)
            if told is error:
                raise
            raise told from None


class Appending(Generic[T]):
    """One append of a profile, ready to be called or awaited, and what its receipt becomes."""

    def __init__(  # noqa: PLR0913 - an append, its manners and its two endings
        self,
        log: BaseLog,
        draft: Draft,
        finish: Callable[[AppendResult], T],
        words: Words,
        *,
        conflict: Callable[[ConditionalAppendConflict], T] | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> None:
        self._log = log
        self._draft = draft
        self._finish = finish
        self._words = words
        self._conflict = conflict
        self._manners = {"timeout": timeout, "connection": connection}

    def run(self) -> T:
        """Append, waiting for the receipt."""
        try:
            with self._words.spoken():
                return self._finish(self._log.append_draft(self._draft, **self._manners))
        except ConditionalAppendConflict as error:
            return self._refused(error)

    async def awaited(self) -> T:
        """Append, awaiting the receipt."""
        try:
            with self._words.spoken():
                receipt = await AsyncLog(self._log).append_draft(self._draft, **self._manners)
                return self._finish(receipt)
        except ConditionalAppendConflict as error:
            return self._refused(error)

    def _refused(self, error: ConditionalAppendConflict) -> T:
        if self._conflict is None:
            raise error
        return self._conflict(error)


def appends(
    act: Callable[Concatenate[S, P], Appending[T]],
) -> Callable[Concatenate[S, P], T]:
    """Make a method that plans an append into one that runs it; `aio` awaits it instead."""

    @wraps(act)
    def run(profile: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return act(profile, *args, **kwargs).run()

    run.plan = act  # type: ignore[attr-defined] # where Awaited finds it
    return run


def streams(act: Callable[P, T]) -> Callable[P, T]:
    """Mark a method that gives an iterator; `aio` gives an async one."""
    act.streams = True  # type: ignore[attr-defined] # where Awaited finds it
    return act


class Profile:
    """What every profile has: a log, a tenant's view of it, and its own acts awaited."""

    def __init__(self, log: BaseLog) -> None:
        self._log = log

    @cached_property
    def aio(self) -> Awaited:
        """The same acts for asyncio: coroutines, and async iterators where these iterate."""
        return Awaited(self)

    def _within(self, tenant_id: str | None) -> BaseLog:
        return self._log if tenant_id is None else self._log.for_tenant(tenant_id)


class Awaited:
    """A profile for asyncio: appends await their receipt, everything else runs in a thread."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile

    def __getattr__(self, name: str) -> Any:
        """Return an act of the profile, awaited."""
        act = None if name.startswith("_") else getattr(type(self._profile), name, None)
        if not callable(act):
            msg = f"{type(self._profile).__name__}.aio has no act {name!r}"
            raise AttributeError(msg)  # noqa: TRY004 - the protocol of __getattr__
        if hasattr(act, "plan"):
            return _bound(self._profile, act.plan, _append)
        return _bound(self._profile, act, _iterate if hasattr(act, "streams") else _in_a_thread)

    def __dir__(self) -> list[str]:
        """List the profile's acts."""
        kind = type(self._profile)
        names = (name for name in dir(kind) if not name.startswith("_"))
        return [name for name in names if callable(getattr(kind, name))]


def _bound(
    profile: Profile, act: Callable[..., Any], drive: Callable[[Callable[[], Any]], Any]
) -> Callable[..., Any]:
    @wraps(act)
    def call(*args: Any, **kwargs: Any) -> Any:
        return drive(lambda: act(profile, *args, **kwargs))

    return call


async def _append(plan: Callable[[], Appending[T]]) -> T:
    return await plan().awaited()


def _in_a_thread(act: Callable[[], T]) -> Awaitable[T]:
    return asyncio.to_thread(act)


async def _iterate(act: Callable[[], Any]) -> AsyncIterator[Any]:
    source = await asyncio.to_thread(act)
    stop = getattr(source, "stop", None)
    steps = in_threads(iter(source)) if stop is None else followed(iter(source), stop)
    async with aclosing(steps):
        async for item in steps:
            yield item
