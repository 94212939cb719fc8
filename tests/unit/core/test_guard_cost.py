"""The cost of scanning a text is a bounded multiple of that of plain text."""

import sys
import time
from typing import Any

import pytest

from seriatim.core.canonical import canonical_text
from seriatim.core.guard import DEFAULT_GUARD, PERSONAL_GUARD, PatternGuard, ScannedEvent, Violation
from seriatim.core.guard_rules import Rule
from seriatim.profiles.trace_rules import TRACES_GUARD

SIZE = 100_000  # characters of the JSON text
MOST = 5.0  # times the cost of plain text
RUNS = (5, 25, 100)  # a busy machine needs more of them to see the cost itself
PROSE = (  # ordinary text: most letters of the alphabet, digits and punctuation
    "Thank you for booking with us! Your package (2 items) leaves the warehouse on Monday, and a "
    "driver brings it to your home. "
)
TAILS = ("", "a1B2c3D4e5F6g7H8 ", "aA1-", ":'")
UNITS = ["%", "\\", '"', "-a", "_", "-", "a", "0", ".a", "\n", "\x1f", '{"a":', "@a.b", "sk-"]
UNITS += ["password:", "password=***,", "password: x a ", "basic ", "Basic dXNlcnMx ", "token="]
UNITS += ["ghp_gho_AKIAglpat-xoxb-eyJanpm_hf_", "ghp_ gho_ sk-a AKIA glpat- xoxb- eyJa npm_ hf_ "]
UNITS += ["0192f0c1-7d2e-7c3b-9d1a-3b1f6c2a9e10 ", "SK01234567890 ", "4111111111111112 "]
RULES = [
    *((DEFAULT_GUARD, rule) for rule in DEFAULT_GUARD.rules),
    *((PERSONAL_GUARD, rule) for rule in PERSONAL_GUARD.rules if rule not in DEFAULT_GUARD.rules),
    *((TRACES_GUARD, rule) for rule in TRACES_GUARD.rules),
]


def repeated(unit: str) -> ScannedEvent:
    """Return an event with a text that repeats a unit, its JSON text about as long as SIZE."""
    count = SIZE // (len(canonical_text(unit)) - 2) + 1
    payload: Any = {"a": unit * count}
    return ScannedEvent(payload, canonical_text(payload))


def cost(guard: PatternGuard, scanned: ScannedEvent) -> float:
    """Return the processor time of one scan, without coverage tracing."""
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        began = time.process_time()
        guard.scan(scanned)
        return time.process_time() - began
    finally:
        sys.settrace(tracer)


def ratio(guard: PatternGuard, unit: str) -> float:
    """Return the cost of a hostile text relative to plain text, by the best runs of each."""
    hostile, plain = repeated(unit), repeated(PROSE)
    found = 0.0
    for runs in RUNS:
        pairs = [(cost(guard, hostile), cost(guard, plain)) for _ in range(runs)]
        found = min(each for each, _ in pairs) / min(each for _, each in pairs)
        if found <= MOST:
            break
    return found


def units(rule: Rule) -> list[str]:
    """Return hostile units for a rule, made of its literals."""
    starts = (
        rule.family.prefixes[:1] if rule.family else [literal.text for literal in rule.literals[:2]]
    )
    return [start + tail for start in starts or ["DE89"] for tail in TAILS]


@pytest.mark.parametrize(("guard", "rule"), RULES, ids=lambda value: value.name)
def test_each_rule_costs_little_more_than_plain_text(guard: PatternGuard, rule: Rule) -> None:
    """K1: repeated literals of a rule, with and without parts of a value, have a bounded cost."""
    for unit in units(rule):
        assert ratio(guard, unit) <= MOST, unit


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(
    "guard", [DEFAULT_GUARD, PERSONAL_GUARD, TRACES_GUARD], ids=lambda guard: guard.name
)
def test_each_guard_costs_little_more_than_plain_text(guard: PatternGuard, unit: str) -> None:
    """K1: separators, quotes, escapes, decoys and long runs have a bounded cost."""
    assert ratio(guard, unit) <= MOST


@pytest.mark.parametrize(
    ("decoy", "secret", "rule"),
    [
        ("pwd:none ", "pwd=hunter2", "assignment"),
        ("password: x a ", "password=hunter2", "assignment"),
        ("Basic dXNlcnMx ", "Basic dXNlcjpwYXNzd29yZA==", "basic_auth"),
        ("sk-", "sk-" + "a1B2" * 12, "api_key"),
        ("AKIA ", "AKIA" + "IOSFODNN7EXAMPLE", "aws_key_id"),
        ("ghp_aaaaaaaaaaaaaaaaaa ", "ghp_" + "a1" * 18, "github_token"),
    ],
)
def test_a_secret_after_many_decoys_is_found(decoy: str, secret: str, rule: str) -> None:
    """K1: a secret after 100,000 failed candidates is found."""
    payload = {"a": decoy * 100_000 + " " + secret}

    assert DEFAULT_GUARD.scan(ScannedEvent(payload, canonical_text(payload))) == Violation(
        rule, "$.a"
    )
