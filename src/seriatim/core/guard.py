"""The guard: reject secrets and personal data by policy, before anything is stored.

Almost every event is clean, and one pass over its flat text shows that: literals and token prefixes
are searched first, and patterns run only where one was found. Only an event that a pattern matches
is then searched string by string, to find the rule and the path. The cost is linear in the event's
size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from seriatim.core.errors import PiiPolicyViolation
from seriatim.core.guard_rules import (
    CREDENTIALS,
    DESCRIPTIVE_SUFFIXES,
    PERSONAL_DATA,
    Rule,
)
from seriatim.core.guard_scanner import (
    CHUNK_CHARS,
    Literal,
    Prefilter,
    TextChunk,
    TokenFinder,
    flatten_json,
    flatten_string,
    single_chunk,
    split_chunks,
)
from seriatim.core.json_path import ROOT, child, item

__all__ = [
    "BUILT_IN_GUARDS",
    "DEFAULT_GUARD",
    "PERSONAL_GUARD",
    "Guard",
    "Literal",
    "PatternGuard",
    "Rule",
    "ScannedEvent",
    "Violation",
    "find_first_violation",
    "register_guard",
    "violation_error",
]

_ARRAYS = (list, tuple)

# The path of a string: a root, then keys and indices; a final None means a key of the object.
_Steps = tuple[str | int | None, ...]


class Violation(msgspec.Struct, frozen=True):
    """The rule that an event violates and the path of the string; never the value."""

    rule: str
    path: str


def violation_error(guard: Guard, violation: Violation, prefix: str = "") -> PiiPolicyViolation:
    """Build the error for a violation.

    Args:
        guard: The guard that found it.
        violation: The violated rule and the path.
        prefix: The name of the scanned value, to put before the path, if it is not an event.
    """
    path = violation.path if not prefix else prefix + violation.path.removeprefix(ROOT)
    msg = f"the guard {guard.name!r} rejects {path} by rule {violation.rule!r}"
    details = {"guard": guard.name, "rule": violation.rule, "path": path}
    return PiiPolicyViolation(msg, details=details)


class ScannedEvent(msgspec.Struct, frozen=True, gc=False):
    """The parts of an event that a guard scans.

    Attributes:
        payload: The payload as a Python value.
        payload_text: The payload as canonical JSON.
        fields: Names and values of envelope fields.
        tags: The tags.
        metadata: The metadata.
    """

    payload: Any
    payload_text: str
    fields: tuple[tuple[str, str], ...] = ()
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, str] = {}


class Guard(Protocol):
    """A policy that may reject an event."""

    name: str

    def scan(self, event: ScannedEvent) -> Violation | None:
        """Return the first violation in the event, or None."""
        ...


def find_first_violation(
    scans: Sequence[tuple[Guard, ScannedEvent]],
) -> tuple[int, Guard, Violation] | None:
    """Return the first event of a batch that its guard rejects: its index, guard and violation.

    Events are scanned one by one only where a pass over several of them finds a suspicion.
    """
    start = 0
    while start < len(scans):
        guard = scans[start][0]
        end, size = start, 0
        while end < len(scans) and scans[end][0] is guard and size < CHUNK_CHARS:
            size += len(scans[end][1].payload_text)
            end += 1
        group = [event for _, event in scans[start:end]]
        if not isinstance(guard, PatternGuard) or len(group) == 1 or guard.may_reject(group):
            for index, event in enumerate(group, start):
                if violation := guard.scan(event):
                    return index, guard, violation
        start = end
    return None


class PatternGuard:
    """A guard made of rules, which are applied to every string of an event."""

    def __init__(
        self, name: str, rules: Iterable[Rule], *, keys: bool = True, metadata: bool = True
    ) -> None:
        """Compile the rules.

        Args:
            name: The name of the guard in errors.
            rules: The rules, in the order in which violations are reported.
            keys: Whether to scan the keys of objects too.
            metadata: Whether to scan metadata too.
        """
        self.name = name
        self.rules = tuple(rules)
        self._keys = keys
        self._metadata = metadata
        token_families = [rule.family for rule in self.rules if rule.family is not None]
        self._find_token = TokenFinder(token_families) if token_families else None
        self._token_rules = {rule.name: rule for rule in self.rules if rule.family is not None}
        patterns = [rule for rule in self.rules if rule.family is None]
        # Rules without literals cannot be prefiltered, so they run on every event.
        self._unfiltered = tuple(rule for rule in patterns if not rule.literals)
        self._prefilter = Prefilter(
            (rule, _flatten_literals(rule)) for rule in patterns if rule.literals
        )

    def __repr__(self) -> str:
        """Return the guard's name, as `help` displays it in the signature of `seriatim.open`."""
        return f"<PatternGuard {self.name!r}>"

    def scan(self, event: ScannedEvent) -> Violation | None:
        """Return the first violation, in the order payload, fields, tags, metadata."""
        flat = self._flatten(event)
        if len(flat) > CHUNK_CHARS:
            return self._scan_chunks(event, flat)
        suspected = self.find_suspected_rules(single_chunk(flat))
        return self._find_first_violation(event, suspected) if suspected else None

    def may_reject(self, events: Sequence[ScannedEvent]) -> bool:
        """Return whether one of the events may violate a rule; False is certain.

        One pass over the text of many short events costs a fraction of a pass over each.
        """
        if self._unfiltered:
            return True  # rules for single strings, which a text of all events cannot exclude
        # The line break ends each text as the end of a single one does.
        text = "\n".join([self._flatten(event) for event in events])
        return any(map(self.find_suspected_rules, split_chunks(text)))

    def _flatten(self, event: ScannedEvent) -> str:
        """Return all scanned strings of an event as one flat text."""
        flat = event.payload_text
        if "\\" in flat:
            flat = flatten_json(flat)
        if event.fields or event.tags or event.metadata:
            flat = self._append_envelope(flat, event)
        return flat

    def _scan_chunks(self, event: ScannedEvent, flat: str) -> Violation | None:
        """Scan a long text chunk by chunk, so that other threads run between the chunks.

        The first suspicion by a rule for single strings is confirmed at once, because a violation
        ends the scan. A rule that was confirmed once is not confirmed again.
        """
        suspected: list[Rule] = []
        confirmed: list[Rule] = []
        for chunk in split_chunks(flat):
            suspected += [
                rule for rule in self.find_suspected_rules(chunk) if rule not in suspected
            ]
            if not confirmed and any(rule.scope in ("flat", "token") for rule in suspected):
                confirmed = [*suspected]
                if violation := self._find_first_violation(event, suspected):
                    return violation
        unconfirmed = [rule for rule in suspected if rule not in confirmed]
        return self._find_first_violation(event, unconfirmed) if unconfirmed else None

    def _find_first_violation(
        self, event: ScannedEvent, suspected: Sequence[Rule]
    ) -> Violation | None:
        return self.find_violation(event, [rule for rule in self.rules if rule in suspected])

    def find_violation(self, event: ScannedEvent, rules: Sequence[Rule]) -> Violation | None:
        """Apply rules to every string of the event, without a prefilter."""
        pair_rules = [rule for rule in rules if rule.scope == "pair"]
        text_rules = [rule for rule in rules if rule.scope != "pair"]
        for steps, value, secret_key in self._iterate_leaves(event, pair_rules):
            if isinstance(value, str) and (rule := self._find_violated_rule(value, text_rules)):
                return Violation(rule.name, self._format_path(steps))
            if secret_key and _is_secret(secret_key, value, pair_rules):
                return Violation(pair_rules[0].name, self._format_path(steps))
        return None

    def rejects(self, text: str) -> bool:
        """Return whether the guard rejects a plain text, such as an error message."""
        return self.scan(ScannedEvent(text, f'"{flatten_string(text)}"')) is not None

    def _append_envelope(self, flat: str, event: ScannedEvent) -> str:
        """Append the other strings of an event to the flat text of its payload."""
        parts = [value for _, value in event.fields]
        parts += event.tags
        joined = "".join(parts)  # hot path: one test of all of them is cheaper than one of each
        if '"' in joined or "\\" in joined or not joined.isprintable():
            parts = [flatten_string(part) for part in parts]
        if self._metadata and event.metadata:
            parts += [
                f'{flatten_string(key)}":"{flatten_string(value)}'
                for key, value in event.metadata.items()
            ]
        # A quote ends each part, and the line break keeps it from looking like a key.
        return '"\n"'.join((flat, *parts)) + '"'

    def find_suspected_rules(self, chunk: TextChunk) -> list[Rule]:
        """Return the rules that a chunk of an event's flat text may violate."""
        lower = chunk.lower()
        suspected = self._prefilter(lower.text)
        if suspected or self._unfiltered:
            suspected = [
                rule
                for rule in (*suspected, *self._unfiltered)
                if rule.scope == "string" or rule.matches_in(lower if rule.lowercase else chunk)
            ]
        if self._find_token is not None and (name := self._find_token(chunk)):
            suspected.append(self._token_rules[name])
        return suspected

    def _find_token_rule(self, chunk: TextChunk) -> Rule | None:
        name = None if self._find_token is None else self._find_token(chunk)
        return None if name is None else self._token_rules[name]

    def _find_violated_rule(self, text: str, rules: Sequence[Rule]) -> Rule | None:
        """Return the first rule that a string violates, or None."""
        needs_flat_text = any(rule.scope != "string" for rule in rules)
        parts = [*split_chunks(flatten_string(text))] if needs_flat_text else []
        if any(rule.family for rule in rules):
            for part in parts:
                if token := self._find_token_rule(part):
                    return token
        for rule in rules:
            if rule.scope == "string":
                is_violated = rule.matches(text)
            else:
                lowered = [part.lower() for part in parts] if rule.lowercase else parts
                is_violated = not rule.family and any(map(rule.matches_in, lowered))
            if is_violated:
                return rule
        return None

    def _iterate_leaves(
        self, event: ScannedEvent, pair_rules: Sequence[Rule]
    ) -> Iterator[tuple[_Steps, Any, str]]:
        yield from self._iterate_json(ROOT, event.payload, pair_rules)
        for name, value in event.fields:
            yield (name,), value, ""
        for index, tag in enumerate(event.tags):
            yield ("tags", index), tag, ""
        if self._metadata:
            yield from self._iterate_json("metadata", event.metadata, pair_rules)

    def _iterate_json(
        self, root: str, content: Any, pair_rules: Sequence[Rule]
    ) -> Iterator[tuple[_Steps, Any, str]]:
        """Yield the leaves of a JSON value in the order of its text, the keys of an object first.

        Each leaf comes with its path and the nearest key above it that names a secret, if any.
        """
        stack: list[tuple[_Steps, Any, str]] = [((root,), content, "")]
        while stack:
            steps, value, secret_key = stack.pop()
            if isinstance(value, Mapping):
                if self._keys:
                    yield from (((*steps, None), key, "") for key in value)
                # Reversed, as the last one of the stack is visited first.
                stack.extend(
                    (
                        (*steps, key),
                        value[key],
                        _find_secret_key(key, value[key], secret_key, pair_rules),
                    )
                    for key in reversed(list(value))
                )
            elif isinstance(value, _ARRAYS):
                stack.extend(
                    ((*steps, index), value[index], secret_key)
                    for index in reversed(range(len(value)))
                )
            else:
                yield steps, value, secret_key

    def _format_path(self, steps: _Steps) -> str:
        """Return the JSON path of a leaf, with `*` for keys that are themselves secrets."""
        path = str(steps[0])
        for step in steps[1:]:
            if isinstance(step, int):
                path = item(path, step)
            elif step is None or self._find_violated_rule(step, self.rules) or _is_credential(step):
                path = f"{path}.*"
            else:
                path = child(path, step)
        return path


def _flatten_literals(rule: Rule) -> Iterable[Literal]:
    """Return a rule's literals in the form of flat text, in which built-in rules are written."""
    if rule.scope != "string":
        return rule.literals
    return [
        Literal(flatten_string(literal.text).lower(), literal.tail) for literal in rule.literals
    ]


def _find_secret_key(key: str, value: Any, parent_key: str, pair_rules: Sequence[Rule]) -> str:
    """Return the key that marks a value as a secret: its own, or that of a parent."""
    if not pair_rules:
        return ""
    flat_key = flatten_string(key)
    # A key with a slash above an object or array is the path of a file or package.
    is_path = "/" in key and isinstance(value, (Mapping, *_ARRAYS))
    if not is_path and any(rule.pattern.search(f'{flat_key}":1'.lower()) for rule in pair_rules):
        return flat_key
    return "" if key.lower().endswith(DESCRIPTIVE_SUFFIXES) else parent_key


def _is_secret(key: str, value: Any, pair_rules: Sequence[Rule]) -> bool:
    """Return whether a leaf under a key that names a secret is one."""
    if isinstance(value, str):
        pair = f'{key}":"{flatten_string(value)}"'
    elif value is None or isinstance(value, bool):
        return False
    else:
        pair = f'{key}":{value}'
    return any(rule.matches(pair) for rule in pair_rules)


DEFAULT_GUARD = PatternGuard("default", CREDENTIALS)
PERSONAL_GUARD = PatternGuard("personal", (*CREDENTIALS, *PERSONAL_DATA))

# The guards that are chosen by name; `register_guard` adds those of profiles.
BUILT_IN_GUARDS: dict[str, Guard] = {guard.name: guard for guard in (DEFAULT_GUARD, PERSONAL_GUARD)}


def register_guard(guard: Guard) -> None:
    """Make a profile's guard available by its name, when the module of the profile is imported."""
    BUILT_IN_GUARDS[guard.name] = guard


def _is_credential(text: str) -> bool:
    return DEFAULT_GUARD.rejects(text)
