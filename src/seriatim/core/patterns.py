"""Names of events as users write them: exact ones, and patterns such as `order.*`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

ALL = "*"
_WILD = ".*"


class Names(msgspec.Struct, frozen=True):
    """The names that a column may have: any of the values, or any that begins like this."""

    values: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, names: Iterable[str]) -> Names:
        """Take exact names, and patterns such as `order.*`."""
        given = tuple(names)
        return cls(
            tuple(one for one in given if not one.endswith(_WILD)),
            tuple(one[:-1] for one in given if one.endswith(_WILD)),
        )

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


def is_pattern(text: str) -> bool:
    """Tell whether a text can stand for types: a type, `order.*`, or `*` for all."""
    return text == ALL or bool(text.removesuffix(_WILD) and ALL not in text.removesuffix(_WILD))
