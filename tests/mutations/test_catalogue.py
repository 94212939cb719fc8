"""The mutation catalogue matches the source: each entry applies, and its tests exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.mutations.__main__ import explain_survival
from tests.mutations.mutation_catalogue import (
    ROOT,
    DoesNotApplyError,
    Mutation,
    function_of,
    load,
    locate,
)

MUTATIONS = load()
CONTRACT = ROOT / "docs" / "reference" / "contract.md"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_a_mutation_applies_once(mutation: Mutation) -> None:
    """The text of a mutation occurs once in the source, and the mutated source compiles."""
    place = locate(mutation)

    assert place.after != place.before
    if place.path.suffix == ".py":
        compile(place.after, str(place.path), "exec")


def test_names_are_unique() -> None:
    """The names of mutations are unique across files."""
    names = [mutation.name for mutation in MUTATIONS]

    assert len(names) == len(set(names))


def test_contract_lines_exist() -> None:
    """Each mutation cites a line of the contract."""
    lines = set(re.findall(r"^\*\*([A-Z]\d+)\*\*", CONTRACT.read_text(), re.MULTILINE))

    assert {mutation.contract for mutation in MUTATIONS} <= lines


def test_named_tests_exist() -> None:
    """Every id in the catalogue is collected by pytest."""
    tests = sorted({test for mutation in MUTATIONS for test in mutation.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    collected = subprocess.run(
        [*command, *sorted({function_of(test) for test in tests})],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    found = set(collected.stdout.splitlines())
    known = found | {function_of(test) for test in found}

    assert collected.returncode == 0, collected.stdout + collected.stderr
    assert [test for test in tests if test not in known] == []


EXAMPLE = Mutation(
    name="example", contract="B3", breaks="", old="left = right", new="pass", tests=["test_a.py::t"]
)


def _tree(root: Path, *files: str) -> Path:
    folder = root / "src" / "seriatim"
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("left = right\n")
    return root


def test_a_mutation_is_found_after_its_file_was_renamed(tmp_path: Path) -> None:
    """A mutation is found by its text alone, whatever its file is called."""
    assert locate(EXAMPLE, _tree(tmp_path, "renamed.py")).after == "pass\n"


@pytest.mark.parametrize("files", [(), ("one.py", "two.py")])
def test_a_mutation_that_does_not_apply_is_reported(tmp_path: Path, files: tuple[str, ...]) -> None:
    """The error names the mutation and the files with its text, or says that there is no file."""
    with pytest.raises(DoesNotApplyError, match="example does not apply") as caught:
        locate(EXAMPLE, _tree(tmp_path, *files))

    assert all(name in str(caught.value) for name in files or ["no file"])


def test_a_file_selects_one_of_two_places(tmp_path: Path) -> None:
    """With `file` only paths with that ending are considered."""
    one = msgspec.structs.replace(EXAMPLE, file="two.py")

    assert locate(one, _tree(tmp_path, "one.py", "two.py")).path.name == "two.py"


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        ({"test_a.py::t": ["call", "failed", "AssertionError", "Exception"]}, None),
        ({"test_a.py::t[x]": ["call", "failed", "Failed"]}, None),
        ({"test_a.py::t": ["call", "passed"]}, "passed"),
        ({"test_a.py::t": ["setup", "failed", "AssertionError"]}, "during setup"),
        ({"test_a.py::t": ["call", "failed", "NameError"]}, "NameError"),
        ({"test_a.py::t": ["call", "failed", "Timeout"]}, "Timeout"),
        ({"test_a.py::t2": ["call", "failed", "AssertionError"]}, "did not run"),
    ],
)
def test_only_a_failed_assertion_detects_a_mutation(
    outcomes: dict[str, list[str]], why: str | None
) -> None:
    """A mutation counts as detected if a test fails by an assertion, not by another error."""
    found = explain_survival(EXAMPLE, outcomes)

    assert found is None if why is None else why in (found or "")
