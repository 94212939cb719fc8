"""Payload predicates in SQL: the core's matcher as a function, behind a cheap search for text.

SQLite swallows what a function raises: the error waits in its thread until `raised` takes it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from seriatim.core.canonical import canonical_text, read_json
from seriatim.core.errors import SeriatimError
from seriatim.core.predicate import Document, Predicate, compile_predicate

_FRAGMENTS_MAX = 4


def register(connection: sqlite3.Connection) -> None:
    """Give a connection the function `payload_matches(predicates, payload)`."""
    connection.create_function("payload_matches", 2, payload_matches, deterministic=True)


class _Running(threading.local):
    """The read that this thread runs: what may end it, and what did."""

    check: Callable[[], None] | None = None
    error: SeriatimError | None = None


_running = _Running()


@contextmanager
def checked(check: Callable[[], None]) -> Iterator[None]:
    """Let `check` end matches of this thread by raising."""
    _running.check, _running.error = check, None
    try:
        yield
    finally:
        _running.check = None


def current_check() -> Callable[[], None] | None:
    """Return what may end the read that this thread runs."""
    return _running.check


def raised() -> SeriatimError | None:
    """Return, once, the error that ended a match of this thread."""
    error, _running.error = _running.error, None
    return error


def payload_matches(predicates: str, payload: str) -> bool:
    """Tell whether a payload satisfies one of the predicates, given as the text of their list."""
    try:
        document = Document(payload, _running.check)
        return any(want.holds(document.data, document) for want in _compiled(predicates))
    except SeriatimError as error:
        _running.error = error
        raise


@lru_cache(maxsize=64)
def _compiled(predicates: str) -> list[Predicate]:
    return [compile_predicate(want) for want in read_json(predicates)]


def condition(predicates: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """Return the SQL that keeps what matches one of the predicates, with its parameters.

    Payloads are canonical text, so a payload that lacks a predicate's own text cannot match it;
    `instr` finds that out ten times faster than parsing would.
    """
    values: dict[str, Any] = {"predicates": canonical_text(list(predicates))}
    checked = "payload_matches(:predicates, events.payload)"
    searches = [_fragments(predicate) for predicate in predicates]
    if not all(searches):
        return checked, values
    names = iter(f"fragment_{number}" for number in range(len(searches) * _FRAGMENTS_MAX))
    either: list[str] = []
    for fragments in searches:
        these = [next(names) for _ in fragments]
        values.update(zip(these, fragments, strict=True))
        both = " and ".join(f"instr(events.payload, :{name}) > 0" for name in these)
        either.append(f"({both})")
    return f"({' or '.join(either)}) and {checked}", values


def _fragments(predicate: Any) -> list[str]:
    longest_first = sorted(set(_texts(predicate)), key=lambda text: (-len(text), text))
    return longest_first[:_FRAGMENTS_MAX]


def _texts(want: Any) -> Iterator[str]:
    """Yield texts that stand in every payload that matches; numbers have several texts."""
    if isinstance(want, dict):
        for key, inner in want.items():
            name = canonical_text(key) + ":"
            yield name + canonical_text(inner) if _has_one_text(inner) else name
            yield from _texts(inner)
    elif isinstance(want, list | tuple):
        for inner in want:
            if _has_one_text(inner):
                yield canonical_text(inner)
            yield from _texts(inner)


def _has_one_text(value: Any) -> bool:
    return value is None or isinstance(value, str | bool)
