r"""Event types as users name them: one grammar and one matcher for every place that takes types.

A text names one type exactly. `seat.*` stands for every type that begins with `seat.`, and `*` for
all of them. A `*` anywhere else is refused, because it would match nothing. A type that contains a
`*` is named by `\*`: `seat.\*` is the type `seat.*`. Backslashes directly before a `*` count one
less than written, so `a\\*` is the type `a\*`; any other backslash stands for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

ALL = "*"
_WILD = ".*"
_ESCAPED = re.compile(r"\\(\\*\*)")


class Names(msgspec.Struct, frozen=True):
    """The names that a column may have: one of the values, or one with one of the prefixes."""

    values: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """Take exact names, patterns such as `order.*`, and `*` for all."""
        return _names_of(tuple(names))

    def both(self, other: Names | None) -> Names:
        """Return the names that these and the others allow."""
        if other is None:
            return self
        values = [one for one in self.values if other.allows(one)]
        values += [one for one in other.values if self.allows(one)]
        prefixes = [one for one in self.prefixes if one.startswith(other.prefixes)]
        prefixes += [one for one in other.prefixes if one.startswith(self.prefixes)]
        return Names(tuple(dict.fromkeys(values)), tuple(dict.fromkeys(prefixes)))

    def allows(self, name: str) -> bool:
        """Tell whether a name is one of these."""
        return name in self.values or name.startswith(self.prefixes)

    @property
    def everything(self) -> bool:
        """Whether every name is allowed."""
        return "" in self.prefixes

    def ranges(self) -> list[tuple[str, str]]:
        """Return for each prefix of a pattern the first name it allows, and the end of the range.

        A prefix ends with a dot, and `/` follows the dot in the order of bytes.
        """
        return [(prefix, prefix[:-1] + "/") for prefix in self.prefixes]

    def texts(self) -> tuple[str, ...]:
        """Return the names as users write them."""
        exact = tuple(escape(one) for one in self.values)
        return exact + tuple(one + ALL for one in self.prefixes)


@lru_cache(maxsize=4096)
def _names_of(texts: tuple[str, ...]) -> Names:
    wild = [one for one in texts if one == ALL or _is_wild(one)]
    exact = [_ESCAPED.sub(r"\1", one) for one in texts if one not in wild]
    prefixes = tuple(_ESCAPED.sub(r"\1", one[:-1]) for one in wild)
    return Names(tuple(dict.fromkeys(exact)), tuple(dict.fromkeys(prefixes)))


def _is_wild(text: str) -> bool:
    return text.endswith(_WILD) and text != _WILD


def escape(name: str) -> str:
    r"""Return the text that names exactly this type: `seat.*` is written `seat.\*`."""
    return re.sub(r"(\\*\*)", r"\\\1", name)


def pattern_problem(text: str) -> str | None:
    """Say why a text names no types; None when it is a type, `order.*`, or `*`."""
    if text == ALL:
        return None
    fixed = text[: -len(_WILD)] if _is_wild(text) else text
    if ALL in _ESCAPED.sub("", fixed):
        return r"may have a * only at its end, after a dot, as in order.* (write \* for the sign)"
    return None


def is_pattern(text: str) -> bool:
    """Tell whether a text can stand for types: a type, `order.*`, or `*` for all."""
    return bool(text) and pattern_problem(text) is None
