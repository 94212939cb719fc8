"""Names are nouns and verbs of the field, each with one meaning."""

import ast
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from tests.tidy.source_modules import ROOT, Module, committed_files, parse_modules

# Words of no other event store, with the term to use instead. See docs/reference/glossary.md.
REPLACEMENTS = {
    "desk": "context or store",
    "desks": "contexts or stores",
    "door": "profile rules or entry point",
    "doors": "profile rules or entry points",
    "lane": "committer",
    "lanes": "committers",
    "letters": "dead letters",
    "manieth": "number",
    "passenger": "pending append",
    "passengers": "pending appends",
    "tally": "counts",
    "tip": "last event id",
    "told": "reported",
    "twin": "duplicate",
    "twins": "duplicates",
}
ALLOWED_BEFORE = {"letters": "dead"}  # dead letters are the field's own word
PHRASES = {
    r"\bbehind (?:a|the|this|that)\b": "after (behind means lagging)",
    r"\bwho waits\b": "waiting callers",
    r"\bwhat waits\b": "queued requests",
}
# Where a word is meant in its common sense, or is a name that cannot change: file, text, reason.
ALLOWED = (
    (r"", r"\b(?:lower[- ]case|odd) letters\b", "characters"),
    (r"", r"\bletters(?:,| of)\b|\bletters, digits", "characters"),
    (r"", r"\bbehind a (?:transaction )?(?:pooler|proxy)\b", "the usual term"),
    (r"", r"(?i)deal[-_ ]desk", "the workflow of the test vector and of stored traces"),
    (r"", r"\"tip\"|/v1/tip\b", "a stored or transmitted name"),
    (r"^src/seriatim/store/.*\.sql$|^tests/faults/test_upgrade", r"\btip\b", "a column"),
    (r"^docs/reference/schema\.md$", r"`tip`", "a column"),
    (r"^src/seriatim/store/postgres/migrations/", r"\btold\b|v_told|\bbehind the\b", "applied"),
)
# Nouns that only look like participles or gerunds.
NOUNS = {"content_coding", "kafka_feed"}
CHECKED = {".md", ".py", ".sql", ".toml"}
# The log of changes names what was renamed, and this file names all of it.
EXEMPT = {"CHANGELOG.md", "tests/tidy/test_names.py"}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def find_banned(text: str) -> Iterator[tuple[str, str]]:
    """Yield each banned word or phrase in a text, with its replacement."""
    words = _WORD.findall(text)
    lower = [word.lower() for word in words]
    for at, word in enumerate(lower):
        previous = lower[at - 1] if at else ""
        if word in REPLACEMENTS and ALLOWED_BEFORE.get(word) != previous:
            yield word, REPLACEMENTS[word]
    for phrase, instead in PHRASES.items():
        for found in re.findall(phrase, text, re.IGNORECASE):
            yield found, instead


def problems_in(path: str, text: str) -> list[str]:
    """Name the banned words of one file by line."""
    allowed = [re.compile(pattern) for file, pattern, _ in ALLOWED if re.search(file, path)]
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        checked = functools.reduce(lambda rest, pattern: pattern.sub(".", rest), allowed, line)
        problems += [
            f"{path}:{number}: {word!r}, use {instead}" for word, instead in find_banned(checked)
        ]
    return problems


def is_verbal(module: Module) -> bool:
    """Return whether a file is named by a gerund or participle instead of a noun."""
    stem = module.path.stem
    return bool(re.search(r"(?:ing|ed)$", stem)) and stem not in NOUNS


def class_places(found: tuple[Module, ...]) -> dict[str, list[str]]:
    """Return where each public class is defined."""
    places = defaultdict(list)
    for module in found:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(module.display_path)
    return places


def test_files_are_named_by_nouns() -> None:
    """A file name states the content."""
    assert [module.display_path for module in parse_modules() if is_verbal(module)] == []


def test_class_names_are_unique() -> None:
    """A class can be found by its name."""
    twice = {
        name: places for name, places in class_places(parse_modules()).items() if len(places) > 1
    }

    assert twice == {}


def test_statement_names_are_unique_verbs_and_nouns() -> None:
    """A second statement of a name would replace the first; names begin with a verb."""
    wrong = []
    for path in sorted((ROOT / "src").rglob("*.sql")):
        names = re.findall(r"^-- name: (\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        wrong += [f"{path.name}: {name} twice" for name, n in Counter(names).items() if n > 1]
        wrong += [f"{path.name}: {name} has no verb" for name in names if "_" not in name]

    assert wrong == []


def test_no_private_word_is_used() -> None:
    """Code and pages use the terms of the glossary."""
    problems = []
    for path in committed_files():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in CHECKED and name not in EXEMPT:
            problems += problems_in(name, path.read_text(encoding="utf-8"))

    assert problems == [], "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    "text",
    [
        "self._lane",
        "told = 1",
        "class AccessDesk",
        "the twin of a command",
        "DOORS",
        "reads behind the head",
    ],
)
def test_private_word_is_found(text: str) -> None:
    """Words are found within identifiers, and phrases within sentences."""
    assert len(problems_in("x.py", text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "dead_letters",
        "plane",
        "multiple",
        "behind by 5 events",
        "a service behind a proxy",
        "letters, digits",
        'field(name="tip")',
    ],
)
def test_common_word_is_accepted(text: str) -> None:
    """A common word, a word that contains a private one, and an allowed text are accepted."""
    assert problems_in("x.py", text) == []
