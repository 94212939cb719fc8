"""The console's scripts, styles and templates: small, own, and without inline code (N1, N3)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.source_modules import PACKAGE, ROOT

STATIC = PACKAGE / "console" / "static"
TEMPLATES = PACKAGE / "console" / "templates"
OWN_SCRIPTS = {"console.js"}
OWN_SCRIPT_BYTES, SCRIPT_BYTES, STYLE_BYTES = 30_000, 250_000, 40_000
FORBIDDEN = {
    "an inline script": re.compile(r"<script(?![^>]*\ssrc=)", re.IGNORECASE),
    "an inline style": re.compile(r"<style|\sstyle\s*=", re.IGNORECASE),
    "an event handler": re.compile(r"\son[a-z]+\s*=", re.IGNORECASE),
    "a script as an address": re.compile(r"javascript:", re.IGNORECASE),
    "unescaped output": re.compile(r"\|\s*safe\b|autoescape\s+false", re.IGNORECASE),
    "another host": re.compile(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", re.IGNORECASE),
}
IN_SCRIPTS = {
    "another host": FORBIDDEN["another host"],
    "evaluated text": re.compile(r"\beval\(|new Function\(|setTimeout\(\s*[\"'`]"),
    "text as markup": re.compile(r"\.(?:inner|outer)HTML\b|insertAdjacentHTML|document\.write"),
}
IN_STYLES = {
    "another file": re.compile(r"@import|url\(", re.IGNORECASE),
    "another host": FORBIDDEN["another host"],
}
DRAWING = "{{ chart|safe }}"  # SVG of console/drawings.py, which escapes its texts
XML_NAMES = "http://www.w3.org/2000/svg"  # a name, which nothing is loaded from


def find(path: Path, patterns: dict[str, re.Pattern[str]]) -> list[str]:
    """Return the lines of a file with something forbidden."""
    lines = (
        path.read_text(encoding="utf-8").replace(XML_NAMES, "").replace(DRAWING, "").splitlines()
    )
    return [
        f"{path.relative_to(ROOT)}:{number}: {what}: {line.strip()[:100]}"
        for number, line in enumerate(lines, start=1)
        for what, pattern in patterns.items()
        if pattern.search(line)
    ]


def size_of(suffix: str, *, own: bool = False) -> int:
    """Return the size of all static files of a kind, before compression."""
    files = [path for path in STATIC.iterdir() if path.suffix == suffix]
    return sum(path.stat().st_size for path in files if not own or path.name in OWN_SCRIPTS)


def test_assets_are_small() -> None:
    """N1: own script up to 30 KB, all script up to 250 KB, styles up to 40 KB."""
    assert 0 < size_of(".js", own=True) <= OWN_SCRIPT_BYTES
    assert size_of(".js") <= SCRIPT_BYTES
    assert 0 < size_of(".css") <= STYLE_BYTES


def test_assets_are_of_known_kinds() -> None:
    """N1: every static file has a content type; every other script is a declared one of ours."""
    assert {path.suffix for path in STATIC.iterdir()} <= {".css", ".js", ".svg"}
    assert {path.name for path in STATIC.glob("*.js")} == OWN_SCRIPTS


def test_templates_have_no_inline_code() -> None:
    """N3: no inline script or style, no other host, no output that is not escaped."""
    templates = sorted(TEMPLATES.rglob("*.html"))
    assert len(templates) >= 4

    assert [line for path in templates for line in find(path, FORBIDDEN)] == []


def test_scripts_and_styles_load_nothing() -> None:
    """N3: scripts make no markup from text and load nothing of other hosts; nor do styles."""
    scripts, styles = sorted(STATIC.glob("*.js")), sorted(STATIC.glob("*.css"))
    found = [line for path in scripts for line in find(path, IN_SCRIPTS)]
    found += [line for path in styles for line in find(path, IN_STYLES)]
    found += [line for path in sorted(STATIC.glob("*.svg")) for line in find(path, FORBIDDEN)]

    assert found == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("an inline script", "<script>x</script>"),
        ("an inline style", '<p style="color: red">'),
        ("an event handler", '<p onclick="x()">'),
        ("a script as an address", '<a href="javascript:x">'),
        ("unescaped output", "{{ payload|safe }}"),
        ("another host", '<link href="//cdn.example/x.css">'),
        ("another host", '<img src="https://example.org/x.png">'),
    ],
)
def test_patterns_find_what_they_forbid(what: str, text: str, tmp_path: Path) -> None:
    """The patterns find inline code, and none in the console's templates."""
    allowed = '<script src="{{ asset(\'console.js\') }}" defer></script><p class="one">on = 1</p>'

    assert FORBIDDEN[what].search(text)
    assert not any(pattern.search(allowed) for pattern in FORBIDDEN.values())
