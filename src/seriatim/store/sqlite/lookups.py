"""Look up many keys in one statement, at a third of the cost of one statement per key."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any

import msgspec

from seriatim.store.sqlite.rows import Row
from seriatim.store.sqlite.statements import SQL

_KEYS_MAX = 128


def look_up(connection: sqlite3.Connection, name: str, keys: Sequence[Row]) -> list[Any]:
    """Run a statement on many keys and return the decoded entries of its JSON list.

    Args:
        connection: A connection.
        name: The statement; it has a `{rows}` placeholder and numbers the keys from 0.
        keys: The keys.

    """
    found: list[Any] = []
    for chunk in _split_keys([(number, *key) for number, key in enumerate(keys)]):
        text = _build_lookup(name, len(chunk), len(chunk[0]))
        (entries,) = connection.execute(text, list(chain.from_iterable(chunk))).fetchone()
        found.extend(msgspec.json.decode(entries))
    return found


def state(
    connection: sqlite3.Connection, streams: Sequence[bytes]
) -> tuple[int, int, dict[bytes, int | None]]:
    """Return the head, the version of the rules, and the last sequence number of each stream."""
    ends: dict[bytes, int | None] = {}
    for chunk in _split_keys(streams) if streams else ((),):
        text = _build_state(len(chunk))
        head, version, *numbers = connection.execute(text, chunk).fetchone()
        ends.update(zip(chunk, numbers, strict=True))
    return head, version, ends


def _split_keys(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split keys into chunks whose size is a power of two, padded with the last key.

    So only a few different statements are prepared and cached.
    """
    for start in range(0, len(keys), _KEYS_MAX):
        chunk = keys[start : start + _KEYS_MAX]
        size = 1 << (len(chunk) - 1).bit_length()
        yield [*chunk, *[chunk[-1]] * (size - len(chunk))]


@cache
def _build_lookup(name: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return SQL[name].replace("{rows}", ", ".join([row] * rows))


@cache
def _build_state(streams: int) -> str:
    return SQL["state"].replace("{ends}", f", {SQL['end']}" * streams)
