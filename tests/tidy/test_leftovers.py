"""No leftover markers in the source: open work is tracked in issues."""

import re

from tests.tidy.source_modules import PACKAGE, ROOT

LEFTOVERS = re.compile(r"\b(FIXME|TODO|XXX|HACK)\b")
SUFFIXES = {".py", ".sql", ".html", ".css", ".js", ".toml"}


def test_source_has_no_leftovers() -> None:
    """A note to oneself is done or filed before the commit."""
    found = []
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if LEFTOVERS.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")

    assert found == [], "do it now or file it:\n" + "\n".join(found)
