"""The pages of the documentation: their code blocks, tables and links."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!`)!?\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the words after it, its text and its line."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The file name under which the block is saved instead of run."""
        named = (word.removeprefix("file=") for word in self.words if word.startswith("file="))
        return next(named, None)


@dataclass(frozen=True)
class Command:
    """A command of a console block and its documented output."""

    text: str
    output: tuple[str, ...]
    exit_code: int


def pages() -> list[Path]:
    """Return every page, the README first."""
    names = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    return [ROOT / name for name in names] + sorted(DOCS.rglob("*.md"))


def name_of(page: Path) -> str:
    """Return the path of a page relative to the repository."""
    return page.relative_to(ROOT).as_posix()


def read(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = []
    for match in _FENCE.finditer(text):
        language, *words = match[1].split() or [""]
        line = text.count("\n", 0, match.start(2)) + 1
        found.append(Block(language, tuple(words), match[2], line))
    return found


def prose(text: str) -> str:
    """Return a page without its fenced blocks."""
    return _FENCE.sub("", text)


def commands(block: Block) -> list[Command]:
    """Return the commands of a console block; `# exit 5` after one is its exit code.

    A line that ends in a backslash goes on in the next one.
    """
    found: list[Command] = []
    for line in block.text.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            code = re.search(r"# exit (\d+)$", line)
            found.append(Command(line[2:], (), int(code[1]) if code else 0))
        elif line.strip() and found:
            last = found[-1]
            found[-1] = Command(last.text, (*last.output, line), last.exit_code)
    return found


def links(text: str) -> list[str]:
    """Return the targets of a page's links and pictures."""
    return _LINK.findall(prose(text))


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page."""
    heads = (_CODE.sub(r"\1", head).lower() for head in _HEADING.findall(prose(text)))
    return {re.sub(r"[^\w\- ]", "", head).strip().replace(" ", "-") for head in heads}


def section(text: str, heading: str) -> str:
    """Return the text under a heading, up to the next one of its level or above."""
    match = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert match, f"there is no heading {heading!r}"
    rest = text[match.end() :]
    end = re.search(rf"^#{{1,{len(match[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[list[str]]:
    """Return the cells of every table row, without heading rows."""
    lines = [line.strip() for line in text.splitlines()]
    found = []
    for index, line in enumerate(lines):
        heads = index + 1 < len(lines) and lines[index + 1].startswith("|--")
        if line.startswith("|") and not line.startswith("|--") and not heads:
            inner = line.strip("|").replace(r"\|", "\0")
            found.append([cell.strip().replace("\0", "|") for cell in inner.split("|")])
    return found


def first_cells(text: str) -> list[str]:
    """Return the names formatted as code in the first cell of each table row."""
    return [name for row in rows(text) for name in _CODE.findall(row[0])]
