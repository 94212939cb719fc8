"""The base of profiles: appends written once for sync and async callers, and field names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import wraps
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
from seriatim.log.appender import Draft
from seriatim.log.async_iteration import iterate_in_own_thread
from seriatim.log.async_log import BaseAsyncLog, iterate_in_threads
from seriatim.log.base import BaseLog

T = TypeVar("T")
ProfileS = TypeVar("ProfileS")
ProfileT = TypeVar("ProfileT", bound="Profile")
P = ParamSpec("P")

# Errors that name fields of the caller. Other errors do not, and a `BackendFailure` may be one
# object that all appends of a group share, so it must not be changed.
_FIELD_ERRORS = (
    IdempotencyConflict,
    InvalidArgument,
    InvalidEvent,
    PiiPolicyViolation,
    SchemaViolation,
)


# The details that name the field or argument that an error is about.
_SUBJECT_DETAILS = ("argument", "field", "path")


class FieldNames:
    """The field names of one profile, by the log's name of each field."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def translate(self, error: SeriatimError) -> SeriatimError:
        """Return the error with the profile's field names; the same error if nothing changes."""
        details = {name: self._rename_detail(name, value) for name, value in error.details.items()}
        subject = next(
            (error.details[name] for name in _SUBJECT_DETAILS if name in error.details), None
        )
        message = self._rename_words(error.message, subject)
        if message == error.message and details == error.details:
            return error
        return type(error)(message, details=details, retryable=error.retryable)

    def _rename_words(self, message: str, subject: Any) -> str:
        """Rename the subject of a message, and every other name that cannot be prose.

        A name with an underscore is always a name. Any other, such as `stream` or `after`, is also
        an English word: it is a name only as the first mention of the error's subject.
        """
        words = message.split(" ")
        for index, word in enumerate(words):
            name = word.rstrip(":,;")
            if name in self._names and (name == subject or "_" in name):
                words[index] = self._names[name] + word[len(name) :]
                subject = None if name == subject else subject
        return " ".join(words)

    def _rename_detail(self, name: str, value: Any) -> Any:
        if name in _SUBJECT_DETAILS and isinstance(value, str):
            return self._names.get(value, value)
        if name == "fields" and isinstance(value, list):
            return [self._names.get(field, field) for field in value]
        return value

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate the field names of errors that are raised in the block."""
        try:
            yield
        except _FIELD_ERRORS as error:
            translated = self.translate(error)
            if translated is error:
                raise
            raise translated from None  # the original has names that the caller does not know


class PlannedAppend(Generic[T]):
    """One append of a profile that is ready to run, for sync and async callers."""

    def __init__(
        self,
        log: BaseLog,
        draft: Draft,
        finish: Callable[[AppendResult], T],
        field_names: FieldNames,
        *,
        conflict: Callable[[ConditionalAppendConflict], T] | None = None,
        timeout: float | None = None,
        connection: Any = None,
    ) -> None:
        """Plan an append.

        Args:
            log: The log to append to.
            draft: The append.
            finish: Converts the receipt to the profile's result.
            field_names: The profile's names for errors.
            conflict: Converts a conflict to a result; without it the conflict is raised.
            timeout: The timeout of the append in seconds; None for the log's.
            connection: A database connection of the caller to append in.
        """
        self._log = log
        self._draft = draft
        self._finish = finish
        self._field_names = field_names
        self._conflict = conflict
        self._timeout = timeout
        self._connection = connection

    def run(self) -> T:
        """Append, and block until the result is known."""
        try:
            with self._field_names.translate_errors():
                receipt = self._log.append_draft(
                    self._draft, timeout=self._timeout, connection=self._connection
                )
                return self._finish(receipt)
        except ConditionalAppendConflict as error:
            return self._handle_conflict(error)

    async def run_async(self) -> T:
        """Append, and await the result."""
        try:
            with self._field_names.translate_errors():
                receipt = await BaseAsyncLog(self._log).append_draft(
                    self._draft, timeout=self._timeout, connection=self._connection
                )
                return self._finish(receipt)
        except ConditionalAppendConflict as error:
            return self._handle_conflict(error)

    def _handle_conflict(self, error: ConditionalAppendConflict) -> T:
        if self._conflict is None:
            raise error
        return self._conflict(error)


# The method that plans the append of each method that `append_method` made.
_PLANNING_METHODS: dict[Callable[..., Any], Callable[..., PlannedAppend[Any]]] = {}


def append_method(
    method: Callable[Concatenate[ProfileS, P], PlannedAppend[T]],
) -> Callable[Concatenate[ProfileS, P], T]:
    """Turn a method that plans an append into one that runs it.

    The planning method stays available to `AsyncProfile`, which awaits the plan instead.
    """

    @wraps(method)
    def run(profile: ProfileS, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(profile, *args, **kwargs).run()

    _PLANNING_METHODS[run] = method
    return run


class Profile:
    """The base class of profiles: a facade over a log; each has `aio`, the same for asyncio."""

    def __init__(self, log: BaseLog) -> None:
        self._log = log

    def _for_tenant(self, tenant_id: str | None) -> BaseLog:
        """Return the log of a tenant; None means the tenant of this profile's log."""
        return self._log if tenant_id is None else self._log.for_tenant(tenant_id)


class AsyncProfile(Generic[ProfileT]):
    """The base class of profiles for asyncio.

    Appends are awaited on the event loop; all other methods run in a worker thread.
    """

    def __init__(self, profile: ProfileT) -> None:
        self._profile = profile

    async def _append(
        self,
        method: Callable[Concatenate[ProfileT, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Await an append; `method` is one that `append_method` made."""
        plan: PlannedAppend[T] = _PLANNING_METHODS[method](self._profile, *args, **kwargs)
        return await plan.run_async()


async def iterate_async(
    method: Callable[P, Iterable[T]], *args: P.args, **kwargs: P.kwargs
) -> AsyncGenerator[T, None]:
    """Call a method in a worker thread, and iterate over its result in worker threads."""
    source = await asyncio.to_thread(method, *args, **kwargs)
    # An iterator with `stop` follows the log and can wait for a long time; the others end.
    stop = getattr(source, "stop", None)
    steps = (
        iterate_in_threads(iter(source))
        if stop is None
        else iterate_in_own_thread(iter(source), stop)
    )
    async with aclosing(steps):
        async for item in steps:
            yield item
