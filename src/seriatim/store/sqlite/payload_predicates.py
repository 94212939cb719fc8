"""Payload predicates in SQL: the matcher of `core` as a SQL function, after a cheap text search.

SQLite discards the exception of a function, so it is kept per thread until `take_error` returns it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from seriatim.core.canonical import canonical_text, decode_stored_json
from seriatim.core.errors import SeriatimError
from seriatim.core.predicate import PayloadDocument, Predicate, compile_predicate

_FRAGMENTS_MAX = 4


def register_function(connection: sqlite3.Connection) -> None:
    """Register the SQL function `payload_matches(predicates, payload)` on a connection."""
    connection.create_function("payload_matches", 2, payload_matches, deterministic=True)


class _CurrentRead(threading.local):
    """The read that runs in this thread: its cancellation check, and the error of a match."""

    check: Callable[[], None] | None = None
    error: SeriatimError | None = None


_current = _CurrentRead()


@contextmanager
def check_matches_with(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` during matches of this thread; it raises to cancel them."""
    _current.check, _current.error = check, None
    try:
        yield
    finally:
        _current.check = None


def get_current_check() -> Callable[[], None] | None:
    """Return the cancellation check of the read in this thread, None if there is none."""
    return _current.check


def take_error() -> SeriatimError | None:
    """Return and clear the error that ended a match of this thread."""
    error, _current.error = _current.error, None
    return error


def payload_matches(predicates: str, payload: str) -> bool:
    """Return True if a payload satisfies one of the predicates, given as a JSON list."""
    try:
        document = PayloadDocument(payload, _current.check)
        return any(predicate.matches(document.data, document) for predicate in _compile(predicates))
    except SeriatimError as error:
        _current.error = error
        raise


@lru_cache(maxsize=64)
def _compile(predicates: str) -> list[Predicate]:
    return [compile_predicate(predicate) for predicate in decode_stored_json(predicates)]


def build_condition(predicates: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """Return the SQL condition that a payload matches one of the predicates, and its parameters.

    Payloads are canonical JSON, so a payload without the text of a predicate cannot match it.
    `instr` detects that ten times faster than parsing.
    """
    values: dict[str, Any] = {"predicates": canonical_text(list(predicates))}
    match = "payload_matches(:predicates, events.payload)"
    searches = [_select_fragments(predicate) for predicate in predicates]
    if not all(searches):
        return match, values
    names = iter(f"fragment_{number}" for number in range(len(searches) * _FRAGMENTS_MAX))
    alternatives: list[str] = []
    for fragments in searches:
        parameters = [next(names) for _ in fragments]
        values.update(zip(parameters, fragments, strict=True))
        contains_all = " and ".join(f"instr(events.payload, :{name}) > 0" for name in parameters)
        alternatives.append(f"({contains_all})")
    return f"({' or '.join(alternatives)}) and {match}", values


def _select_fragments(predicate: Any) -> list[str]:
    """Return the longest fixed texts of a predicate."""
    longest_first = sorted(set(_find_texts(predicate)), key=lambda text: (-len(text), text))
    return longest_first[:_FRAGMENTS_MAX]


def _find_texts(predicate: Any) -> Iterator[str]:
    """Yield texts that every matching payload contains; numbers have several forms."""
    if isinstance(predicate, dict):
        for key, inner in predicate.items():
            name = canonical_text(key) + ":"
            yield name + canonical_text(inner) if _has_single_form(inner) else name
            yield from _find_texts(inner)
    elif isinstance(predicate, list | tuple):
        for inner in predicate:
            if _has_single_form(inner):
                yield canonical_text(inner)
            yield from _find_texts(inner)


def _has_single_form(value: object) -> bool:
    """Return True if canonical JSON writes all values that match this one in the same way."""
    return value is None or isinstance(value, str | bool)
