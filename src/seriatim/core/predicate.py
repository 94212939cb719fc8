"""Payload predicates: compiled once, and matched in time linear in predicate and payload.

Rule D3 of the contract defines a match: scalars are equal by JSON type and value, objects match as
recursive subsets, and each element of a predicate's array matches some element of the payload's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Protocol

from seriatim.core.canonical import canonical_text, decode_stored_json
from seriatim.core.errors import LimitExceeded

MAX_MATCH_STEPS = 500_000  # comparisons for one payload: less than half a second on one core
_STEPS_BETWEEN_CHECKS = 2_000  # comparisons between two calls of a document's `check`
_SCANS_MAX = 2  # full scans of an array's nested elements before an index of them is built
_SCALARS_PER_STEP = 8  # adding this many scalars to a set costs as much as one comparison
_EXACT_FLOAT = 1 << 53  # above this the shortest text of a float may denote another number
_SMALL_NUMBER = 1 << 60  # larger ints become texts: ints can be chosen so that hashes collide

_TRUE, _FALSE, _NULL = ("true",), ("false",), ("null",)
_OBJECT, _ARRAY = ("object",), ("array",)

Term = tuple[int, Hashable]


def scalar_key(value: Any) -> Hashable:
    """Return a hashable key that is equal for two scalars exactly if they are equal by D3.

    Numbers are compared by the value of their JSON text, so 1e23 equals the integer 10**23.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    if isinstance(value, float):
        if not value.is_integer():
            return float(value)
        value = int(value) if abs(value) < _EXACT_FLOAT else int(Decimal(repr(float(value))))
    return int(value) if abs(value) < _SMALL_NUMBER else ("number", str(int(value)))


class PayloadDocument:
    """One payload that predicates are matched against.

    It caches the parsed JSON and the sets and indexes of its arrays, and counts comparisons: over
    `MAX_MATCH_STEPS` a match raises `LimitExceeded`. `check` is called regularly and may raise to
    end the match, so that a read stops when its request has ended.
    """

    __slots__ = (
        "_arrays",
        "_check",
        "_data",
        "_next_check",
        "_parsed",
        "_paths",
        "_steps",
        "_text",
    )

    def __init__(self, text: str, check: Callable[[], None] | None = None) -> None:
        self._text = text
        self._parsed = False
        self._data: Any = None
        self._check = check or _never_stop
        self._steps = 0
        self._next_check = _STEPS_BETWEEN_CHECKS
        self._arrays: dict[int, _Elements] = {}
        self._paths: dict[tuple[int, str | None], int] = {}

    @classmethod
    def of(cls, data: Any) -> PayloadDocument:
        """Return a document for a parsed value."""
        document = cls("")
        document._data, document._parsed = data, True
        return document

    @property
    def data(self) -> Any:
        """The parsed payload."""
        if not self._parsed:
            self._data, self._parsed = decode_stored_json(self._text), True
            self._check()
        return self._data

    def reset_steps(self) -> None:
        """Reset the count of comparisons for another query, keeping the parsed payload."""
        self._steps, self._next_check = 0, _STEPS_BETWEEN_CHECKS

    def count_steps(self, steps: int) -> None:
        """Add to the count of comparisons; raise if it exceeds the limit or `check` raises."""
        self._steps += steps
        if self._steps <= self._next_check:
            return
        if self._steps > MAX_MATCH_STEPS:
            msg = (
                f"matching a payload took more than {MAX_MATCH_STEPS} comparisons (match_steps): "
                "use fewer nested objects and arrays in the predicate, or more selective values"
            )
            raise LimitExceeded(msg, details={"limit": "match_steps", "bound": MAX_MATCH_STEPS})
        self._next_check = min(self._steps + _STEPS_BETWEEN_CHECKS, MAX_MATCH_STEPS)
        self._check()

    def elements(self, array: Sequence[Any]) -> _Elements:
        """Return the prepared elements of one of the payload's arrays, cached by identity."""
        # The id is unambiguous, as the document keeps its parsed payload alive.
        elements = self._arrays.get(id(array))
        if elements is None:
            self.count_steps(len(array) // _SCALARS_PER_STEP)
            elements = self._arrays[id(array)] = _Elements(array)
        return elements

    def terms(self, value: Any) -> Iterator[Term]:
        """Yield a term for each scalar, object and array in a value: its path and its key."""
        stack: list[tuple[Any, int]] = [(value, 0)]
        while stack:
            item, path = stack.pop()
            self.count_steps(1)
            if isinstance(item, dict):
                yield path, _OBJECT
                stack.extend((inner, self._get_path_id(path, key)) for key, inner in item.items())
            elif isinstance(item, list | tuple):
                yield path, _ARRAY
                element_path = self._get_path_id(path, None)
                stack.extend((inner, element_path) for inner in item)
            else:
                yield path, scalar_key(item)

    def _get_path_id(self, parent: int, step: str | None) -> int:
        # A number for each path: terms are compared often, and a tuple of steps costs more.
        return self._paths.setdefault((parent, step), len(self._paths) + 1)


def _never_stop() -> None:
    """Do nothing: the default `check`, which never ends a match."""


class _Elements:
    """The elements of one array of a payload: scalars by key, nested elements by term."""

    __slots__ = ("_nested", "_postings", "_scans", "scalars")

    def __init__(self, array: Sequence[Any]) -> None:
        self.scalars = {
            item if type(item) is str else scalar_key(item)
            for item in array
            if not isinstance(item, dict | list | tuple)
        }
        self._nested = (
            [item for item in array if isinstance(item, dict | list | tuple)]
            if len(self.scalars) < len(array)
            else []
        )
        self._scans = 0
        self._postings: dict[Term, list[Any]] | None = None

    def candidates(self, element: Any, document: PayloadDocument) -> list[Any]:
        """Return the nested elements that may match an element of a predicate.

        The first few elements of a predicate are compared with all; for more of them an index
        pays, which returns the elements with the rarest term.
        """
        if len(self._nested) <= 1 or self._scans < _SCANS_MAX:
            self._scans += 1
            return self._nested
        if self._postings is None:
            self._postings = self._build_index(document)
        fewest = self._nested
        for term in document.terms(element):
            postings = self._postings.get(term, [])
            if len(postings) < len(fewest):
                fewest = postings
        return fewest

    def _build_index(self, document: PayloadDocument) -> dict[Term, list[Any]]:
        postings: dict[Term, list[Any]] = {}
        for element in self._nested:
            for term in document.terms(element):
                elements = postings.setdefault(term, [])
                if not elements or elements[-1] is not element:
                    elements.append(element)
        return postings


class Predicate(Protocol):
    """A compiled predicate."""

    def matches(self, value: Any, document: PayloadDocument) -> bool:
        """Return whether a value of the document's payload satisfies the predicate."""
        ...


class _Scalar:
    """A predicate that is a string, number, boolean or null."""

    __slots__ = ("_key",)

    def __init__(self, predicate: Any) -> None:
        self._key = scalar_key(predicate)

    def matches(self, value: Any, document: PayloadDocument) -> bool:
        document.count_steps(1)
        return not isinstance(value, dict | list | tuple) and scalar_key(value) == self._key


class _Object:
    """A predicate that is an object: its members must match those of the payload's object."""

    __slots__ = ("_members",)

    def __init__(self, predicate: dict[str, Any]) -> None:
        self._members = [(key, compile_predicate(inner)) for key, inner in predicate.items()]

    def matches(self, value: Any, document: PayloadDocument) -> bool:
        document.count_steps(1)
        if not isinstance(value, dict):
            return False
        for key, inner in self._members:  # hot path: a loop costs half of a generator
            if key not in value or not inner.matches(value[key], document):
                return False
        return True


class _Array:
    """A predicate that is an array: each distinct element must match some payload element."""

    __slots__ = ("_nested", "_scalars")

    def __init__(self, predicate: list[Any] | tuple[Any, ...]) -> None:
        # Equal elements once: repeating one would multiply the cost and change nothing.
        nested = {
            canonical_text(inner): inner
            for inner in predicate
            if isinstance(inner, dict | list | tuple)
        }
        self._nested = [(inner, compile_predicate(inner)) for inner in nested.values()]
        self._scalars = {
            scalar_key(inner) for inner in predicate if not isinstance(inner, dict | list | tuple)
        }

    def matches(self, value: Any, document: PayloadDocument) -> bool:
        document.count_steps(1 + len(self._scalars) // _SCALARS_PER_STEP)
        if not isinstance(value, list | tuple):
            return False
        if not self._scalars and not self._nested:
            return True
        elements = document.elements(value)
        return self._scalars <= elements.scalars and all(
            any(
                inner.matches(candidate, document)
                for candidate in elements.candidates(element, document)
            )
            for element, inner in self._nested
        )


def compile_predicate(predicate: Any) -> Predicate:
    """Compile a predicate, to match it against many payloads."""
    if isinstance(predicate, dict):
        return _Object(predicate)
    if isinstance(predicate, list | tuple):
        return _Array(predicate)
    return _Scalar(predicate)


def matches_json(predicate: Any, value: Any) -> bool:
    """Return whether a payload satisfies a predicate, by rule D3 of the contract."""
    return compile_predicate(predicate).matches(value, PayloadDocument.of(value))


def count_values(values: Any, limit: int) -> int:
    """Count the scalars, objects and arrays in a value; stop once the count exceeds `limit`."""
    count = 0
    stack = [values]
    while stack and count <= limit:
        item = stack.pop()
        count += 1
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            stack.extend(item)
    return count


def count_elements(predicate: Any) -> int:
    """Count the elements of a predicate's arrays, which multiply the cost of a naive match."""
    count = 0
    stack = [predicate]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list | tuple):
            count += len(item)
            stack.extend(item)
    return count


def weaken_predicate(predicate: Any, max_elements: int) -> Any:
    """Return a weaker predicate with at most `max_elements` array elements.

    It matches every payload that the original matches, and possibly more.
    """
    return _weaken(predicate, [max_elements])


def _weaken(predicate: Any, budget: list[int]) -> Any:
    if isinstance(predicate, dict):
        return {key: _weaken(inner, budget) for key, inner in predicate.items()}
    if not isinstance(predicate, list | tuple):
        return predicate
    elements = predicate[: max(0, budget[0])]
    budget[0] -= len(elements)
    return [_weaken(inner, budget) for inner in elements]
