r"""Patterns of event types: one grammar and one matcher for every interface that takes types.

A pattern without `*` matches one type exactly. `seat.*` matches every type that begins with
`seat.`, and `*` matches all types. A `*` anywhere else is rejected, because it would match nothing.
To match a type that contains a `*`, write `\*`: `seat.\*` matches the type `seat.*`. Of several
backslashes directly before a `*` one is removed, so `a\\*` matches the type `a\*`; any other
backslash is an ordinary character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

WILDCARD = "*"
_WILD = ".*"
_ESCAPED = re.compile(r"\\(\\*\*)")


class NameFilter(msgspec.Struct, frozen=True):
    """A filter on a name: it must equal one of the values or begin with one of the prefixes."""

    values: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, names: Iterable[str]) -> NameFilter:
        """Parse exact names, patterns such as `order.*`, and `*` for all."""
        return _parse_names(tuple(names))

    def intersect(self, other: NameFilter | None) -> NameFilter:
        """Return a filter that allows the names that both filters allow; None allows all."""
        if other is None:
            return self
        values = [one for one in self.values if other.allows(one)]
        values += [one for one in other.values if self.allows(one)]
        prefixes = [one for one in self.prefixes if one.startswith(other.prefixes)]
        prefixes += [one for one in other.prefixes if one.startswith(self.prefixes)]
        return NameFilter(tuple(dict.fromkeys(values)), tuple(dict.fromkeys(prefixes)))

    def allows(self, name: str) -> bool:
        """Return whether a name passes the filter."""
        return name in self.values or name.startswith(self.prefixes)

    @property
    def matches_all(self) -> bool:
        """Whether every name is allowed."""
        return "" in self.prefixes

    def prefix_ranges(self) -> list[tuple[str, str]]:
        """Return the range of names of each prefix: its first name and its exclusive end.

        A prefix ends with a dot, and `/` is the next byte after the dot.
        """
        return [(prefix, prefix[:-1] + "/") for prefix in self.prefixes]

    def to_patterns(self) -> tuple[str, ...]:
        """Return the filter as patterns in the form that users write."""
        exact = tuple(escape_name(one) for one in self.values)
        return exact + tuple(one + WILDCARD for one in self.prefixes)


@lru_cache(maxsize=4096)
def _parse_names(texts: tuple[str, ...]) -> NameFilter:
    wild = [one for one in texts if one == WILDCARD or _is_wild(one)]
    exact = [_ESCAPED.sub(r"\1", one) for one in texts if one not in wild]
    prefixes = tuple(_ESCAPED.sub(r"\1", one[:-1]) for one in wild)
    return NameFilter(tuple(dict.fromkeys(exact)), tuple(dict.fromkeys(prefixes)))


def _is_wild(text: str) -> bool:
    return text.endswith(_WILD) and text != _WILD


def escape_name(name: str) -> str:
    r"""Return the pattern that matches exactly this type: `seat.\*` for the type `seat.*`."""
    return re.sub(r"(\\*\*)", r"\\\1", name)


def pattern_problem(text: str) -> str | None:
    """Return why a text is not a valid pattern, or None if it is."""
    if text == WILDCARD:
        return None
    fixed = text[: -len(_WILD)] if _is_wild(text) else text
    if WILDCARD in _ESCAPED.sub("", fixed):
        return (
            r"may have a * only at its end, after a dot, as in order.* (write \* for a literal *)"
        )
    return None


def is_pattern(text: str) -> bool:
    """Return whether a text is a valid pattern: a type, `order.*`, or `*`."""
    return bool(text) and pattern_problem(text) is None
