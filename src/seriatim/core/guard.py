"""The guard: refuse secrets and personal data by policy, before anything is stored.

Almost every event is clean, and one pass over its flat text says so: literals and token prefixes
are searched there, and patterns run only where one was found. Only an event that a pattern refuses
is walked string by string, to find the rule and the path. All is linear in the event's size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from seriatim.core.errors import PiiPolicyViolation
from seriatim.core.flat_text import PIECE, Piece, flat_json, flat_string, pieces, whole
from seriatim.core.guard_rules import CREDENTIALS, DESCRIPTIVE, PERSONAL_DATA, TRACES, Rule
from seriatim.core.literal_prefilter import Literal, Prefilter
from seriatim.core.paths import ROOT, child, item
from seriatim.core.token_finder import TokenFinder

__all__ = [
    "BUILT_IN",
    "DEFAULT",
    "PERSONAL",
    "TRACES_V1",
    "Guard",
    "Literal",
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
        families = [rule.family for rule in self.rules if rule.family is not None]
        self._find_token = TokenFinder(families) if families else None
        self._tokens = {rule.name: rule for rule in self.rules if rule.family is not None}
        others = [rule for rule in self.rules if rule.family is None]
        self._always = tuple(rule for rule in others if not rule.literals)
        self._prefilter = Prefilter(
            (rule, _flat_literals(rule)) for rule in others if rule.literals
        )

    def scan(self, seen: Scanned) -> Violation | None:
        """Return the first violation, in the order payload, fields, tags, metadata."""
        flat = seen.payload_text
        if "\\" in flat:
            flat = flat_json(flat)
        if seen.fields or seen.tags or seen.metadata:
            flat = self._with_envelope(flat, seen)
        if len(flat) > PIECE:
            return self._scan_pieces(seen, flat)
        suspected = self.suspect(whole(flat))
        return self._walk_in_order(seen, suspected) if suspected else None

    def _scan_pieces(self, seen: Scanned, flat: str) -> Violation | None:
        """Scan a long text; what a pattern of one string finds ends the scan, unless in a key."""
        suspected: list[Rule] = []
        walked: list[Rule] = []
        for piece in pieces(flat):
            suspected += [rule for rule in self.suspect(piece) if rule not in suspected]
            if not walked and any(rule.scope in ("flat", "token") for rule in suspected):
                walked = [*suspected]
                if found := self._walk_in_order(seen, suspected):
                    return found
        rest = [rule for rule in suspected if rule not in walked]
        return self._walk_in_order(seen, rest) if rest else None

    def _walk_in_order(self, seen: Scanned, suspected: Sequence[Rule]) -> Violation | None:
        return self.walk(seen, [rule for rule in self.rules if rule in suspected])

    def walk(self, seen: Scanned, rules: Sequence[Rule]) -> Violation | None:
        """Look at every string with these rules, sparing none."""
        pairs = [rule for rule in rules if rule.scope == "pair"]
        texts = [rule for rule in rules if rule.scope != "pair"]
        for steps, value, secret_key in self._leaves(seen, pairs):
            if isinstance(value, str) and (rule := self._broken(value, texts)):
                return Violation(rule.name, self._path(steps))
            if secret_key and _holds_secret(secret_key, value, pairs):
                return Violation(pairs[0].name, self._path(steps))
        return None

    def refuses(self, text: str) -> bool:
        """Tell whether a plain text, which is no event, holds what the guard refuses."""
        return self.scan(Scanned(text, f'"{flat_string(text)}"')) is not None

    def _with_envelope(self, flat: str, seen: Scanned) -> str:
        """Return the flat text of a payload with the other strings of its event."""
        parts = [value for _, value in seen.fields]
        parts += seen.tags
        joined = "".join(parts)  # one look at all of them is cheaper than one at each
        if '"' in joined or "\\" in joined or not joined.isprintable():
            parts = [flat_string(part) for part in parts]
        if self._metadata and seen.metadata:
            parts += [f'{flat_string(k)}":"{flat_string(v)}' for k, v in seen.metadata.items()]
        # A quote ends each part, and the line break keeps it from being taken for a key.
        return '"\n"'.join((flat, *parts)) + '"'

    def suspect(self, piece: Piece) -> list[Rule]:
        """Return the rules that a piece of an event's flat text may break."""
        lower = piece.lower()
        suspected = self._prefilter(lower.text)
        if suspected or self._always:
            suspected = [
                rule
                for rule in (*suspected, *self._always)
                if rule.scope == "string" or rule.hits_in(lower if rule.folded else piece)
            ]
        if self._find_token is not None and (name := self._find_token(piece)):
            suspected.append(self._tokens[name])
        return suspected

    def _token(self, piece: Piece) -> Rule | None:
        name = None if self._find_token is None else self._find_token(piece)
        return None if name is None else self._tokens[name]

    def _broken(self, text: str, rules: Sequence[Rule]) -> Rule | None:
        """Return the first of the rules that a string breaks."""
        parts = [*pieces(flat_string(text))] if any(r.scope != "string" for r in rules) else []
        if any(rule.family for rule in rules):
            for part in parts:
                if token := self._token(part):
                    return token
        for rule in rules:
            if rule.scope == "string":
                hit = rule.hits(text)
            else:
                folded = [part.lower() for part in parts] if rule.folded else parts
                hit = not rule.family and any(map(rule.hits_in, folded))
            if hit:
                return rule
        return None

    def _leaves(self, seen: Scanned, pairs: Sequence[Rule]) -> Iterator[tuple[_Steps, Any, str]]:
        yield from self._inside(ROOT, seen.payload, pairs)
        for name, value in seen.fields:
            yield (name,), value, ""
        for index, tag in enumerate(seen.tags):
            yield ("tags", index), tag, ""
        if self._metadata:
            yield from self._inside("metadata", seen.metadata, pairs)

    def _inside(
        self, root: str, content: Any, pairs: Sequence[Rule]
    ) -> Iterator[tuple[_Steps, Any, str]]:
        """Yield the leaves of a JSON value in the order of its text, an object's keys first.

        With each leaf goes the key that says it is a secret, if there is one above it.
        """
        todo: list[tuple[_Steps, Any, str]] = [((root,), content, "")]
        while todo:
            steps, value, secret_key = todo.pop()
            if isinstance(value, Mapping):
                if self._keys:
                    yield from (((*steps, None), key, "") for key in value)
                todo.extend(
                    ((*steps, key), value[key], _secret_key(key, value[key], secret_key, pairs))
                    for key in reversed(list(value))
                )
            elif isinstance(value, _ARRAYS):
                todo.extend(
                    ((*steps, i), value[i], secret_key) for i in reversed(range(len(value)))
                )
            else:
                yield steps, value, secret_key

    def _path(self, steps: _Steps) -> str:
        """Return the steps as a JSON path that hides a key which itself holds a secret."""
        path = str(steps[0])
        for step in steps[1:]:
            if isinstance(step, int):
                path = item(path, step)
            elif step is None or self._broken(step, self.rules) or _is_credential(step):
                path = f"{path}.*"
            else:
                path = child(path, step)
        return path


def _flat_literals(rule: Rule) -> Iterable[Literal]:
    """Return a rule's literals as flat text has them; those of built-in rules are written so."""
    if rule.scope != "string":
        return rule.literals
    return [Literal(flat_string(literal.text).lower(), literal.tail) for literal in rule.literals]


def _secret_key(key: str, value: Any, above: str, pairs: Sequence[Rule]) -> str:
    """Return the key that says a value is a secret: its own, or one above that it belongs to."""
    if not pairs:
        return ""
    named = flat_string(key)
    is_path = "/" in key and isinstance(value, (Mapping, *_ARRAYS))  # of a file or a package
    if not is_path and any(rule.pattern.search(f'{named}":1'.lower()) for rule in pairs):
        return named
    return "" if key.lower().endswith(DESCRIPTIVE) else above


def _holds_secret(key: str, value: Any, pairs: Sequence[Rule]) -> bool:
    """Tell whether a leaf under a key that names a secret is one."""
    if isinstance(value, str):
        pair = f'{key}":"{flat_string(value)}"'
    elif value is None or isinstance(value, bool):
        return False
    else:
        pair = f'{key}":{value}'
    return any(rule.hits(pair) for rule in pairs)


TRACES_V1 = PatternGuard("traces-v1", TRACES, keys=False, metadata=False)
DEFAULT = PatternGuard("default", CREDENTIALS)
PERSONAL = PatternGuard("personal", (*CREDENTIALS, *PERSONAL_DATA))

BUILT_IN: dict[str, Guard] = {guard.name: guard for guard in (TRACES_V1, DEFAULT, PERSONAL)}


def _is_credential(text: str) -> bool:
    return DEFAULT.refuses(text)
