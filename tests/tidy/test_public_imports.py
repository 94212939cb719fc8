"""Documentation imports only public modules, and from them only public names."""

import ast
import importlib
import textwrap
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT, Block, blocks, name_of, pages

PUBLIC_MODULES = {
    "seriatim",
    "seriatim.guards",
    "seriatim.server",
    "seriatim.spark",
    "seriatim.telemetry",
    "seriatim.testing",
}
# These pages describe the inside of the package.
EXEMPT = ("docs/ARCHITECTURE.md", "docs/decisions/")


def list_imports(block: Block) -> Iterator[tuple[str, str | None]]:
    """Yield the modules of Seriatim that a code block imports, with the imported names."""
    # A page may show a method, indented as in its class.
    for node in ast.walk(ast.parse(textwrap.dedent(block.text))):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.module or "", alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None


def find_problems(block: Block) -> list[str]:
    """Name the imports of a code block that are not public."""
    problems = []
    for module, name in list_imports(block):
        if module.partition(".")[0] != "seriatim":
            continue
        if module not in PUBLIC_MODULES:
            problems.append(f"{module} is not public: export the name from a public module")
        elif name is not None and name not in importlib.import_module(module).__all__:
            problems.append(f"{module}.{name} is not public: add it to __all__")
    return problems


def test_pages_import_public_modules() -> None:
    """F1: readers never see the path of an internal module."""
    problems = [
        f"{name_of(page)}, line {block.line}: {problem}"
        for page in pages()
        if not name_of(page).startswith(EXEMPT)
        for block in blocks(page.read_text("utf-8"))
        if block.language in ("py", "python")
        for problem in find_problems(block)
    ]

    assert problems == [], "\n" + "\n".join(problems)


def test_examples_import_public_modules() -> None:
    """F1: the example applications use the package as any other program."""
    files = sorted((ROOT / "examples").rglob("*.py"))
    problems = [
        f"{name_of(file)}: {problem}"
        for file in files
        for problem in find_problems(Block("python", (), file.read_text("utf-8"), 1))
    ]

    assert len(files) > 10
    assert problems == []


@pytest.mark.parametrize(
    "text",
    [
        "from seriatim.core.event import NewEvent",
        "import seriatim.pipeline",
        "from seriatim import factory",
        "def f():\n    from seriatim.spark import ProjectionJob",
    ],
)
def test_an_internal_import_is_found(text: str) -> None:
    """F1: the check detects internal modules and names."""
    assert len(find_problems(Block("python", (), text, 1))) == 1


def test_public_imports_pass() -> None:
    """F1: the check accepts public modules and names."""
    text = "import seriatim.testing\nfrom seriatim.spark import Projector\nimport re"

    assert find_problems(Block("python", (), text, 1)) == []
