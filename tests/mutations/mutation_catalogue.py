"""Load the catalogue of mutations and apply them to a source tree.

A mutation replaces one piece of text. It is found by that text alone, so that an entry survives
the renaming of files; `file` narrows the search where the text occurs in several files.
"""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = Path("src", "seriatim")
SUFFIXES = {".py", ".sql"}


class DoesNotApplyError(Exception):
    """The text to replace is missing from the source, or occurs more than once."""


class Mutation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of the source that breaks one guarantee of the contract."""

    name: str
    contract: str  # the line of the contract that it breaks, such as "B4"
    breaks: str  # what goes wrong with it, in one sentence
    old: str
    new: str
    tests: list[str]  # pytest ids: each must fail
    file: str = ""  # the end of a path, only where `old` occurs in several files
    fails_with: str = ""  # an exception other than AssertionError that shows the broken promise


class MutationSite(msgspec.Struct, frozen=True, kw_only=True):
    """Where a mutation applies."""

    path: Path
    before: str
    after: str


def load(folder: Path = HERE) -> list[Mutation]:
    """Return every mutation of the `.toml` files in `folder`, by file and then in their order."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
        found += [msgspec.convert({"name": name, **entries[name]}, Mutation) for name in entries]
    return found


def locate(mutation: Mutation, root: Path = ROOT) -> MutationSite:
    """Return the one place in the source where `mutation` applies.

    Raises DoesNotApplyError, which names the files that hold the text, unless there is exactly one.
    """
    everywhere = _occurrences(mutation.old, root)
    found = {path: n for path, n in everywhere.items() if path.as_posix().endswith(mutation.file)}
    if sum(found.values()) != 1:
        places = ", ".join(f"{path.relative_to(root)} ({n})" for path, n in everywhere.items())
        raise DoesNotApplyError(
            f"{mutation.name} does not apply: its `old` text must occur once"
            + (f" in a file named *{mutation.file}" if mutation.file else "")
            + f", and occurs in: {places or 'no file'}. Take the present text of that place over"
            " into tests/mutations, or set `file` to the end of the path that is meant."
        )
    (path,) = found
    before = _sources(root)[path]
    return MutationSite(path=path, before=before, after=before.replace(mutation.old, mutation.new))


def _occurrences(text: str, root: Path) -> dict[Path, int]:
    """Count a text in each file of the package, leaving out those without it."""
    counts = {path: source.count(text) for path, source in _sources(root).items()}
    return {path: count for path, count in counts.items() if count}


@functools.lru_cache(maxsize=1)  # every mutation is searched in the same files
def _sources(root: Path) -> dict[Path, str]:
    """Read the files of the package, except for the contract suite in `testing`."""
    return {
        path: path.read_text(encoding="utf-8")
        for path in sorted((root / PACKAGE).rglob("*"))
        if path.suffix in SUFFIXES and path.relative_to(root / PACKAGE).parts[0] != "testing"
    }


def function_of(test: str) -> str:
    """Return a pytest id without its parameters."""
    return test.partition("[")[0]
