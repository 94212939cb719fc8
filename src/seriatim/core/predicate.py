"""Payload predicates, compiled once and matched with work linear in predicate and payload.

D3 defines the meaning: scalars are equal by JSON type and value, objects match by recursive subset,
and each element of a wanted array is matched by some element of the payload's array.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from decimal import Decimal
from typing import Any, Protocol

from seriatim.core.canonical import canonical_text, read_json
from seriatim.core.errors import LimitExceeded

STEPS_MAX = 500_000  # comparisons for one payload: less than half a second of a core
_STEPS_UNCHECKED = 2_000  # between two calls of a document's `check`
_SCANS_MAX = 2  # of an array's nested elements, before an index of them is built
_SCALARS_A_STEP = 8  # collecting scalars into a set costs this much less than a comparison
_EXACT_FLOAT = 1 << 53  # from here on the shortest text of a float may be another number
_SMALL_NUMBER = 1 << 60  # larger integers may share hashes by design; the hashes of texts cannot

_TRUE, _FALSE, _NULL = ("true",), ("false",), ("null",)
_OBJECT, _ARRAY = ("object",), ("array",)

Term = tuple[int, Hashable]


def scalar_key(value: Any) -> Hashable:
    """Return a key that two scalars share exactly when D3 calls them equal.

    Numbers are compared by the value of their JSON text, so that 1e23 is ten to the twenty-third.
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


class Document:
    """One payload while predicates are matched with it.

    It keeps the parsed JSON, sets and indexes of its arrays, and the number of comparisons: over
    `steps_max` a match raises `LimitExceeded`. `check` is called regularly and may raise, which
    ends the match: a read whose request has ended stops here.
    """

    __slots__ = ("_arrays", "_check", "_data", "_parsed", "_paths", "_pause", "_steps", "_text")

    def __init__(self, text: str, check: Callable[[], None] | None = None) -> None:
        self._text = text
        self._parsed = False
        self._data: Any = None
        self._check = check or _proceed
        self._steps = 0
        self._pause = _STEPS_UNCHECKED
        self._arrays: dict[int, _Elements] = {}
        self._paths: dict[tuple[int, str | None], int] = {}

    @classmethod
    def of(cls, data: Any) -> Document:
        """Return a document of a parsed value."""
        document = cls("")
        document._data, document._parsed = data, True
        return document

    @property
    def data(self) -> Any:
        """The parsed payload."""
        if not self._parsed:
            self._data, self._parsed = read_json(self._text), True
            self._check()
        return self._data

    def renew(self) -> None:
        """Count comparisons from zero, for another query; what was parsed stays."""
        self._steps, self._pause = 0, _STEPS_UNCHECKED

    def spend(self, steps: int) -> None:
        """Count comparisons; raise when they are too many or the read is to end."""
        self._steps += steps
        if self._steps <= self._pause:
            return
        if self._steps > STEPS_MAX:
            msg = (
                f"matching a payload took more than {STEPS_MAX} comparisons (match_steps): ask for "
                "fewer objects and arrays within arrays, or for values that fewer elements have"
            )
            raise LimitExceeded(msg, details={"limit": "match_steps", "bound": STEPS_MAX})
        self._pause = min(self._steps + _STEPS_UNCHECKED, STEPS_MAX)
        self._check()

    def elements(self, array: list[Any]) -> _Elements:
        """Return the elements of one of the payload's arrays, sorted out once."""
        found = self._arrays.get(id(array))
        if found is None:
            self.spend(len(array) // _SCALARS_A_STEP)
            found = self._arrays[id(array)] = _Elements(array)
        return found

    def terms(self, value: Any) -> Iterator[Term]:
        """Yield the scalars, objects and arrays within a value, each with its path."""
        left: list[tuple[Any, int]] = [(value, 0)]
        while left:
            one, path = left.pop()
            self.spend(1)
            if isinstance(one, dict):
                yield path, _OBJECT
                left.extend((inner, self._path(path, key)) for key, inner in one.items())
            elif isinstance(one, list | tuple):
                yield path, _ARRAY
                inside = self._path(path, None)
                left.extend((inner, inside) for inner in one)
            else:
                yield path, scalar_key(one)

    def _path(self, parent: int, step: str | None) -> int:
        return self._paths.setdefault((parent, step), len(self._paths) + 1)


def _proceed() -> None:
    """Stand in for a `check` that never ends a match."""


class _Elements:
    """The elements of one payload array: scalars by key, objects and arrays by their terms."""

    __slots__ = ("_nested", "_postings", "_scans", "scalars")

    def __init__(self, array: list[Any]) -> None:
        self.scalars = {
            one if type(one) is str else scalar_key(one)
            for one in array
            if not isinstance(one, dict | list | tuple)
        }
        self._nested = (
            [one for one in array if isinstance(one, dict | list | tuple)]
            if len(self.scalars) < len(array)
            else []
        )
        self._scans = 0
        self._postings: dict[Term, list[Any]] | None = None

    def candidates(self, wanted: Any, document: Document) -> list[Any]:
        """Return the nested elements that may match a wanted one: those with its rarest term.

        A few wanted elements are compared with all; for more of them an index of terms pays.
        """
        if len(self._nested) <= 1 or self._scans < _SCANS_MAX:
            self._scans += 1
            return self._nested
        if self._postings is None:
            self._postings = self._index(document)
        fewest = self._nested
        for term in document.terms(wanted):
            having = self._postings.get(term, [])
            if len(having) < len(fewest):
                fewest = having
        return fewest

    def _index(self, document: Document) -> dict[Term, list[Any]]:
        postings: dict[Term, list[Any]] = {}
        for element in self._nested:
            for term in document.terms(element):
                having = postings.setdefault(term, [])
                if not having or having[-1] is not element:
                    having.append(element)
        return postings


class Predicate(Protocol):
    """The wanted side of a match."""

    def holds(self, have: Any, document: Document) -> bool:
        """Tell whether a value within the document's payload satisfies it."""
        ...


class _Scalar:
    """A wanted string, number, boolean or null."""

    __slots__ = ("_key",)

    def __init__(self, want: Any) -> None:
        self._key = scalar_key(want)

    def holds(self, have: Any, document: Document) -> bool:
        document.spend(1)
        return not isinstance(have, dict | list | tuple) and scalar_key(have) == self._key


class _Object:
    """A wanted object: a subset of the payload's."""

    __slots__ = ("_members",)

    def __init__(self, want: dict[str, Any]) -> None:
        self._members = [(key, compile_predicate(inner)) for key, inner in want.items()]

    def holds(self, have: Any, document: Document) -> bool:
        document.spend(1)
        if not isinstance(have, dict):
            return False
        for key, inner in self._members:  # a loop, at half the cost of a generator
            if key not in have or not inner.holds(have[key], document):
                return False
        return True


class _Array:
    """A wanted array: each element, named once, is matched by some element of the payload's."""

    __slots__ = ("_nested", "_scalars")

    def __init__(self, want: list[Any] | tuple[Any, ...]) -> None:
        nested = {
            canonical_text(inner): inner for inner in want if isinstance(inner, dict | list | tuple)
        }
        self._nested = [(inner, compile_predicate(inner)) for inner in nested.values()]
        self._scalars = {
            scalar_key(inner) for inner in want if not isinstance(inner, dict | list | tuple)
        }

    def holds(self, have: Any, document: Document) -> bool:
        document.spend(1 + len(self._scalars) // _SCALARS_A_STEP)
        if not isinstance(have, list | tuple):
            return False
        if not self._scalars and not self._nested:
            return True
        elements = document.elements(have)  # type: ignore[arg-type]
        return self._scalars <= elements.scalars and all(
            any(inner.holds(one, document) for one in elements.candidates(wanted, document))
            for wanted, inner in self._nested
        )


def compile_predicate(want: Any) -> Predicate:
    """Return the form of a predicate that is matched with many payloads."""
    if isinstance(want, dict):
        return _Object(want)
    if isinstance(want, list | tuple):
        return _Array(want)
    return _Scalar(want)


def matches_json(want: Any, have: Any) -> bool:
    """Tell whether a payload satisfies a predicate: D3, and nothing else, defines it."""
    return compile_predicate(want).holds(have, Document.of(have))


def count_values(values: Any, at_most: int) -> int:
    """Count scalars, objects and arrays, nested ones too, until they are more than `at_most`."""
    count = 0
    left = [values]
    while left and count <= at_most:
        one = left.pop()
        count += 1
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            left.extend(one)
    return count


def count_elements(want: Any) -> int:
    """Count the elements of a predicate's arrays: what a naive match multiplies with a payload."""
    count = 0
    left = [want]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list | tuple):
            count += len(one)
            left.extend(one)
    return count


def weaken(want: Any, elements: int) -> Any:
    """Return a predicate that holds wherever `want` does, with so many array elements at most."""
    return _weaken(want, [elements])


def _weaken(want: Any, left: list[int]) -> Any:
    if isinstance(want, dict):
        return {key: _weaken(inner, left) for key, inner in want.items()}
    if not isinstance(want, list | tuple):
        return want
    kept = want[: max(0, left[0])]
    left[0] -= len(kept)
    return [_weaken(inner, left) for inner in kept]
