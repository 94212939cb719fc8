"""Long texts are scanned in chunks, and no chunk boundary hides or creates a match."""

import random
import re

import pytest

from seriatim.core.canonical import canonical_text
from seriatim.core.guard import (
    DEFAULT_GUARD,
    PERSONAL_GUARD,
    PatternGuard,
    Rule,
    ScannedEvent,
    Violation,
)
from seriatim.core.guard_rules import CREDENTIALS
from seriatim.core.guard_scanner import (
    CHUNK_CHARS,
    LOOKAHEAD_CHARS,
    LOOKBEHIND_CHARS,
    TextChunk,
    split_chunks,
)
from tests.unit.core.token_samples import TEMPLATES, fill_template

EDGES = (
    CHUNK_CHARS - LOOKBEHIND_CHARS,
    CHUNK_CHARS,
    CHUNK_CHARS + LOOKAHEAD_CHARS,
    2 * CHUNK_CHARS,
    2 * CHUNK_CHARS + LOOKAHEAD_CHARS,
)
LENGTH = 3 * CHUNK_CHARS
START = len('{"a":"')  # where a value begins in the flat text of its event

SECRETS = [
    ("assignment", "password=hunter2"),
    ("assignment", "password: correct-horse\n"),
    ("basic_auth", "Authorization: Basic dXNlcjpwYXNzd29yZA=="),
    ("url_password", "postgres://me:hunter2@db/shop"),
    ("private_key", "-----BEGIN " + "RSA PRIVATE KEY-----"),
]
PERSONAL_SECRETS = [
    ("card", "4111 1111 1111 1111"),
    ("email", "ann.lee@example.com"),
    ("iban", "DE89370400440532013000"),
    ("phone", "+41791234567"),
    ("us_ssn", "078-05-1120"),
]
HARMLESS = [
    "AKIA" + "A1B2C3D4E5F6G7H8" + "I9J0" * 20,  # a longer run is no key id
    "YCA" + "a1B2" * 40,
    "SK" + "0123456789abcdef" * 8,
    "xAKIA" + "A1B2C3D4E5F6G7H8",
    "task" + "sk-" + "a1B2" * 12,
    "password: x is short",
    "password=redacted_by_filter".replace("_by_filter", ""),
    "token=12345678901234567",
    "postgres://me:***@db/shop",
]
NOT_PERSONAL = [
    "git@github.com:o/r.git",
    "ssh://git@host.example.com/o/r.git",
    "left-pad@1.3.0.beta",
    "4111111111111111-1111",
    "DE89370400440532013000X",
    "123-45-6789-0",
]


def scan(guard: PatternGuard, text: str) -> Violation | None:
    """Scan an event with one long string."""
    payload = {"a": text}
    return guard.scan(ScannedEvent(payload, canonical_text(payload)))


def long_text_with(position: int, text: str, filler: str) -> str:
    """Return a long text with another one at a position of the event's flat text."""
    before = (filler * LENGTH)[: position - START - 1] + " "
    return f"{before}{text} {filler * (LENGTH - position)}"


def positions_around(edge: int, text: str) -> list[int]:
    """Return positions at which a cut at an edge is before, within and after a text."""
    return [edge - len(text) - 1, edge - len(text), edge - len(text) // 2, edge - 1, edge, edge + 1]


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize(("rule", "secret"), SECRETS + PERSONAL_SECRETS)
def test_secret_across_chunks_is_found(rule: str, secret: str, edge: int) -> None:
    """K1: a secret is found wherever the boundary of chunks is."""
    for position in positions_around(edge, secret):
        assert scan(PERSONAL_GUARD, long_text_with(position, secret, "~.")) == Violation(
            rule, "$.a"
        ), position


@pytest.mark.parametrize("edge", EDGES)
def test_token_across_chunks_is_found(edge: int) -> None:
    """K1: a token of each family is found on both sides of a boundary and across it."""
    chance = random.Random(edge)
    for name, templates in TEMPLATES.items():
        token = fill_template(templates[0], chance)
        for position in chance.sample(positions_around(edge, token), 2):
            assert scan(DEFAULT_GUARD, long_text_with(position, token, "~ ")) == Violation(
                name, "$.a"
            ), (
                name,
                position,
            )


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("text", HARMLESS + NOT_PERSONAL)
def test_chunk_boundary_creates_no_secret(text: str, edge: int) -> None:
    """K1: the boundary of a chunk is neither the start nor the end of a word."""
    for position in range(edge - len(text) - 2, edge + 3):
        assert list_suspects(long_text_with(position, text, "~ ")) == [], position


@pytest.mark.parametrize("edge", [CHUNK_CHARS, CHUNK_CHARS + LOOKAHEAD_CHARS])
@pytest.mark.parametrize("text", HARMLESS[:3])
def test_chunk_boundary_creates_no_token(text: str, edge: int) -> None:
    """K1: a run that is too long for a token is accepted, wherever it is cut."""
    for position in range(edge + START - len(text), edge + START):
        assert scan(DEFAULT_GUARD, long_text_with(position, text, "~ ")) is None, position


def list_suspects(text: str) -> list[str]:
    """Return the rules that chunks of a text may violate."""
    return [
        rule.name
        for piece in split_chunks(f'{{"a":"{text}"}}')
        for rule in PERSONAL_GUARD.find_suspected_rules(piece)
    ]


def test_custom_rules_see_whole_strings() -> None:
    """K1: custom rules match against the whole string, of any length."""
    guard = PatternGuard("mine", [Rule("end", re.compile(r"word\Z|\Aword"))])

    for edge in EDGES:
        text = "x" * (edge - START - 4) + "word" + "x" * LENGTH
        assert scan(guard, text) is None
        assert scan(guard, text[: edge - START]) == Violation("end", "$.a")


def test_key_and_value_in_two_chunks_are_matched() -> None:
    """K1: a key and its value in two chunks are matched together."""
    for edge in EDGES:
        for shift in range(16):
            payload = {"a": "x" * (edge - START - shift), "db_password": 12345, "z": "y" * LENGTH}
            found = DEFAULT_GUARD.scan(ScannedEvent(payload, canonical_text(payload)))
            assert found == Violation("key_name", "$.db_password"), (edge, shift)


def test_a_key_does_not_end_the_scan_of_values() -> None:
    """K1: a guard that ignores keys continues after a match in a key."""
    guard = PatternGuard("values", CREDENTIALS, keys=False)
    payload = {"AKIA" + "IOSFODNN7EXAMPLE": "x" * LENGTH, "z": "password=hunter2"}

    assert guard.scan(ScannedEvent(payload, canonical_text(payload))) == Violation(
        "assignment", "$.z"
    )


def test_chunks_cover_each_position_once() -> None:
    """K1: every character belongs to one chunk, also if lower case has more characters."""
    for text in ("abc" * CHUNK_CHARS, "aİc" * CHUNK_CHARS):
        assert "".join(p.text[p.begin : p.end] for p in split_chunks(text)) == text
        lower = [piece.lower() for piece in split_chunks(text)]
        assert "".join(p.text[p.begin : p.end] for p in lower) == text.lower()
    assert TextChunk("AB", 0, 3).lower() == TextChunk("ab", 0, 3)
