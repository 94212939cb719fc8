"""Files and functions are small, and each module has a docstring."""

import ast
import re

from tests.tidy.source_modules import parse_modules

FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
SENTENCE_ENDS = re.compile(r"(?<!e\.g)(?<!i\.e)(?<!etc)[.!?](?=\s+[A-Z])")


def is_one_sentence(docstring: str | None) -> bool:
    """Return whether the first paragraph is one sentence, closed by a full stop."""
    first = (docstring or "").strip().split("\n\n")[0].strip()
    return first.endswith(".") and not SENTENCE_ENDS.search(first)


def test_files_are_short() -> None:
    """Split a file over the limit by purpose; smaller files are not cut to fit a number."""
    sizes = {module.display_path: len(module.text.splitlines()) for module in parse_modules()}
    long = {place: size for place, size in sizes.items() if size > FILE_LINES_MAX}

    assert long == {}, f"files over {FILE_LINES_MAX} lines: split them by purpose"


def test_functions_are_short() -> None:
    """Split a function over the limit into named parts."""
    long = {}
    for module in parse_modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = (node.end_lineno or node.lineno) - node.lineno + 1
                if size > FUNCTION_LINES_MAX:
                    long[f"{module.display_path}:{node.lineno} {node.name}"] = size

    assert long == {}, f"functions over {FUNCTION_LINES_MAX} lines: name a part and move it out"


def test_modules_open_with_their_purpose() -> None:
    """A module's docstring opens with one sentence; more may follow after a blank line."""
    silent = [
        module.display_path
        for module in parse_modules()
        if not is_one_sentence(ast.get_docstring(module.tree))
    ]

    assert silent == [], "open these with one sentence of purpose, ending in a full stop"


def test_sentences_are_counted() -> None:
    """One sentence passes; none, two, or an open end do not."""
    assert is_one_sentence("Decide what an append may do.\n\nMore. And more.")
    assert is_one_sentence("Turn things, e.g. Postgres rows,\ninto events.")
    assert not is_one_sentence(None)
    assert not is_one_sentence("Decide. Then act.")
    assert not is_one_sentence("Decide what an append may do")
