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
_PREFIX_END = ".*"
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
        values = [name for name in self.values if other.allows(name)]
        values += [name for name in other.values if self.allows(name)]
        prefixes = [prefix for prefix in self.prefixes if prefix.startswith(other.prefixes)]
        prefixes += [prefix for prefix in other.prefixes if prefix.startswith(self.prefixes)]
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
        names = tuple(escape_name(name) for name in self.values)
        return names + tuple(prefix + WILDCARD for prefix in self.prefixes)


@lru_cache(maxsize=4096)
def _parse_names(texts: tuple[str, ...]) -> NameFilter:
    patterns = [text for text in texts if text == WILDCARD or _is_prefix_pattern(text)]
    exact = [_ESCAPED.sub(r"\1", text) for text in texts if text not in patterns]
    prefixes = tuple(_ESCAPED.sub(r"\1", text[:-1]) for text in patterns)
    return NameFilter(tuple(dict.fromkeys(exact)), tuple(dict.fromkeys(prefixes)))


def _is_prefix_pattern(text: str) -> bool:
    return text.endswith(_PREFIX_END) and text != _PREFIX_END


def escape_name(name: str) -> str:
    r"""Return the pattern that matches exactly this type: `seat.\*` for the type `seat.*`."""
    return re.sub(r"(\\*\*)", r"\\\1", name)


def pattern_problem(text: str) -> str | None:
    """Return why a text is not a valid pattern, or None if it is."""
    if text == WILDCARD:
        return None
    literal = text[: -len(_PREFIX_END)] if _is_prefix_pattern(text) else text
    if WILDCARD in _ESCAPED.sub("", literal):
        return (
            r"may have a * only at its end, after a dot, as in order.* (write \* for a literal *)"
        )
    return None


def is_pattern(text: str) -> bool:
    """Return whether a text is a valid pattern: a type, `order.*`, or `*`."""
    return bool(text) and pattern_problem(text) is None
