"""Declared payload indexes: paths into payloads, and the index keys of the scalars there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from seriatim.core.canonical import decode_stored_json
from seriatim.core.errors import InvalidArgument
from seriatim.core.ids import encode_parts, id_problem, tag_key, text_problem
from seriatim.core.patterns import WILDCARD

# Keys of objects; None means any element of an array.
PathSteps = tuple[str | None, ...]

_STEP = re.compile(r'\[\]|\[("(?:[^"\\]|\\.)*")\]|(\.?)([^.\[\]"]+)')
_is_unquoted = re.compile(r'[^.\[\]"]+').fullmatch


class PayloadIndex(msgspec.Struct, frozen=True):
    """A declared index on the scalars at one path in the payloads of one event type.

    Examples of paths: `seat`, `order.customer`, `items[].sku`, `labels["odd.key"]`.
    """

    event_type: str
    path: str


class StoredIndex(PayloadIndex, frozen=True):
    """A stored index; it contains the events after position `since`, the head at declaration."""

    since: int = 0

    @property
    def declaration(self) -> PayloadIndex:
        """The index as the user declared it."""
        return PayloadIndex(self.event_type, self.path)


class IndexedPath(msgspec.Struct, frozen=True):
    """One indexed path of an event type, parsed for lookups."""

    steps: PathSteps
    text: str
    since: int  # the index contains the events after this position


def check_payload_index(index: PayloadIndex) -> None:
    """Raise `InvalidArgument` for an index with an invalid event type or path."""
    if problem := id_problem(index.event_type):
        raise _argument_error("event_type", problem)
    if WILDCARD in index.event_type:  # queries by pattern do not use payload indexes
        raise _argument_error(
            "event_type", "must be one type without *: declare an index for each type"
        )
    if problem := text_problem(index.path):
        raise _argument_error("path", problem)
    parse_path(index.path)


def _argument_error(field: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"{field} {problem}", details={"argument": field})


def parse_path(path: str) -> PathSteps:
    """Parse a path into its steps, or raise `InvalidArgument`."""
    steps: list[str | None] = []
    offset = 0
    while offset < len(path) or not steps:
        match = _STEP.match(path, offset)
        if match is None or (match[3] and bool(match[2]) == (offset == 0)):
            raise _argument_error("path", 'must look like a.b, items[].sku or ["odd.key"]')
        steps.append(_parse_step(match))
        offset = match.end()
    return tuple(steps)


def _parse_step(match: re.Match[str]) -> str | None:
    if match[1] is None:
        return match[3]
    try:
        key = str(json.loads(match[1]))
    except ValueError:
        raise _argument_error("path", "has a quoted key that is not a JSON string") from None
    if problem := text_problem(key):
        raise _argument_error("path", f"has a key that {problem}")
    return key


def format_path(steps: PathSteps) -> str:
    """Return the canonical spelling of a path."""
    text = ""
    for step in steps:
        if step is None:
            text += "[]"
        elif _is_unquoted(step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step, ensure_ascii=False)}]"
    return text


def resolve_index(stored: StoredIndex) -> IndexedPath:
    """Return a stored index with its path parsed for lookups."""
    steps = parse_path(stored.path)
    return IndexedPath(steps, format_path(steps), stored.since)


def term_key(tenant_id: str, event_type: str, path: str, scalar: Any) -> bytes:
    """Return the index key of a scalar at a path.

    It never equals the key of a tag, which is made of fewer parts.
    """
    encoded = _encode_path(tenant_id, event_type, path) + encode_parts(_format_scalar(scalar))
    return sha256(encoded).digest()[:16]


# Few paths are declared, so the encoding of tenant, type and path is cached.
_encode_path = lru_cache(maxsize=4096)(encode_parts)


def _format_scalar(scalar: Any) -> str:
    """Return a text that is equal for two scalars exactly if the matcher finds them equal (D3)."""
    if isinstance(scalar, str):
        return '"' + scalar  # the quote keeps the text "1" apart from the number 1
    if scalar is None or isinstance(scalar, bool):
        return str(scalar)
    if isinstance(scalar, float):
        # Use the value of the JSON text, so that 1e23 equals the integer 10**23.
        text = repr(float(scalar))
        return str(int(Decimal(text))) if scalar.is_integer() else text
    return str(int(scalar))


def term_keys(
    tenant_id: str, event_type: str, paths: Iterable[IndexedPath], payload: str
) -> tuple[bytes, ...]:
    """Return the distinct index keys of a payload, given as its canonical text."""
    data = decode_stored_json(payload)
    keys = {
        term_key(tenant_id, event_type, path.text, scalar): None
        for path in paths
        for scalar in _iterate_scalars(data, path.steps)
    }
    return tuple(keys)


def _iterate_scalars(value: Any, steps: PathSteps) -> Iterator[Any]:
    if not steps:
        if not isinstance(value, dict | list):
            yield value
    elif steps[0] is None:
        if isinstance(value, list):
            for element in value:
                yield from _iterate_scalars(element, steps[1:])
    elif isinstance(value, dict) and steps[0] in value:
        yield from _iterate_scalars(value[steps[0]], steps[1:])


def required_scalars(predicate: Any, steps: PathSteps = ()) -> Iterator[tuple[PathSteps, Any]]:
    """Yield the scalars, with their paths, that a payload must have to satisfy a predicate."""
    if isinstance(predicate, dict):
        for key, inner in predicate.items():
            yield from required_scalars(inner, (*steps, key))
    elif isinstance(predicate, list | tuple):
        for inner in predicate:
            yield from required_scalars(inner, (*steps, None))
    else:
        yield steps, predicate


def is_scalar_only(predicate: Any, *, in_array: bool = False) -> bool:
    """Return whether a predicate is equivalent to having its scalars at their paths.

    It is not for an empty object or array, nor for two scalars that the same array element must
    have.
    """
    if not isinstance(predicate, dict | list | tuple):
        return True
    if not predicate or (in_array and len(predicate) > 1):
        return False
    if isinstance(predicate, dict):
        return all(is_scalar_only(inner, in_array=in_array) for inner in predicate.values())
    return all(is_scalar_only(inner, in_array=True) for inner in predicate)


def index_keys(tenant_id: str, tags: Iterable[str], terms: Iterable[bytes]) -> tuple[bytes, ...]:
    """Return the distinct index keys of an event: those of its tags, and its term keys."""
    return tuple(dict.fromkeys([*(tag_key(tenant_id, tag) for tag in tags), *terms]))
