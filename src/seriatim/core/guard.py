"""The guard: refuse secrets and personal data by policy, before anything is stored.

Almost every event is clean, and one glance at its whole text says so. Only where a cue stands in
that text are its strings walked one by one, to find the rule and the path or to acquit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from seriatim.core.errors import PiiPolicyViolation
from seriatim.core.guard_rules import CREDENTIALS, PERSONAL_DATA, TRACES, Rule
from seriatim.core.needles import Cue, finder
from seriatim.core.paths import ROOT, child, item

__all__ = [
    "BUILT_IN",
    "DEFAULT",
    "PERSONAL",
    "TRACES_V1",
    "Cue",
    "Guard",
    "PatternGuard",
    "Rule",
    "Scanned",
    "Violation",
    "refusal",
]

_ARRAYS = (list, tuple)

# The way to a string: a root, then keys and indices; a last None is one of the object's own keys.
_Steps = tuple[str | int | None, ...]


class Violation(msgspec.Struct, frozen=True):
    """Which rule an event breaks and where; never the value."""

    rule: str
    path: str


def refusal(guard: Guard, found: Violation, where: str = "") -> PiiPolicyViolation:
    """Make the error for what a guard has found, `where` being what the path is in."""
    path = found.path if not where else where + found.path.removeprefix(ROOT)
    msg = f"the guard {guard.name!r} refuses {path}: rule {found.rule!r}"
    return PiiPolicyViolation(msg, details={"guard": guard.name, "rule": found.rule, "path": path})


class Scanned(msgspec.Struct, frozen=True, gc=False):
    """What a guard sees of an event: its payload, also as canonical JSON, and what goes with it."""

    payload: Any
    payload_text: str
    fields: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}


class Guard(Protocol):
    """A policy that may refuse an event."""

    name: str

    def scan(self, seen: Scanned) -> Violation | None:
        """Return what the event breaks, or nothing."""
        ...


class PatternGuard:
    """A guard made of rules; they see every string value, and with `keys` object keys too."""

    def __init__(
        self, name: str, rules: Iterable[Rule], *, keys: bool = True, metadata: bool = True
    ) -> None:
        self.name = name
        self.rules = tuple(rules)
        self._keys = keys
        self._metadata = metadata
        self._always = not all(rule.cues for rule in self.rules)
        self._in_text = finder(c for rule in self.rules if not rule.folded for c in rule.cues)
        self._in_lower = finder(c for rule in self.rules if rule.folded for c in rule.cues)
        self._single = tuple((rule, finder(rule.cues)) for rule in self.rules)

    def scan(self, seen: Scanned) -> Violation | None:
        """Return the first violation, in the order payload, fields, tags, metadata."""
        text = seen.payload_text
        if seen.fields or seen.tags or seen.metadata:
            # No cue holds a line break, so none is found across two strings.
            parts = [text, *[value for _, value in seen.fields], *seen.tags]
            if self._metadata:
                parts += [f'{key}":"{value}' for key, value in seen.metadata.items()]
            text = "\n".join(parts)
        lower = text.lower()
        if not (self._in_lower(lower) or self._in_text(text) or self._always):
            return None
        woken = [
            rule
            for rule, found in self._single
            if not rule.cues or found(lower if rule.folded else text)
        ]
        return self.walk(seen, woken)

    def walk(self, seen: Scanned, rules: Sequence[Rule]) -> Violation | None:
        """Look at every string with these rules, sparing none by a glance."""
        for steps, text in self._strings(seen):
            key = steps[-1] if isinstance(steps[-1], str) else ""
            for rule in rules:
                if rule.hits(text, key):
                    return Violation(rule.name, self._path(steps))
        return None

    def _strings(self, seen: Scanned) -> Iterator[tuple[_Steps, str]]:
        yield from self._inside(ROOT, seen.payload)
        for name, value in seen.fields:
            yield (name,), value
        for index, tag in enumerate(seen.tags):
            yield ("tags", index), tag
        if self._metadata:
            yield from self._inside("metadata", seen.metadata)

    def _inside(self, root: str, content: Any) -> Iterator[tuple[_Steps, str]]:
        """Yield the strings of a JSON value in the order of its text, an object's keys first."""
        todo: list[tuple[_Steps, Any]] = [((root,), content)]
        while todo:
            steps, value = todo.pop()
            if isinstance(value, str):
                yield steps, value
            elif isinstance(value, Mapping):
                if self._keys:
                    yield from (((*steps, None), key) for key in value)
                todo.extend(((*steps, key), value[key]) for key in reversed(list(value)))
            elif isinstance(value, _ARRAYS):
                todo.extend(((*steps, i), value[i]) for i in reversed(range(len(value))))

    def _path(self, steps: _Steps) -> str:
        """Return the steps as a JSON path that does not tell a key which itself holds a secret."""
        path = str(steps[0])
        for step in steps[1:]:
            if isinstance(step, int):
                path = item(path, step)
            elif step is None or any(rule.hits(step) for rule in (*self.rules, *CREDENTIALS)):
                path = f"{path}.*"
            else:
                path = child(path, step)
        return path


TRACES_V1: Guard = PatternGuard("traces-v1", TRACES, keys=False, metadata=False)
DEFAULT: Guard = PatternGuard("default", CREDENTIALS)
PERSONAL: Guard = PatternGuard("personal", (*CREDENTIALS, *PERSONAL_DATA))

BUILT_IN: dict[str, Guard] = {guard.name: guard for guard in (TRACES_V1, DEFAULT, PERSONAL)}
