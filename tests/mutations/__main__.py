"""Run the mutations: each must make its tests fail, and without mutations all must pass.

Usage: python -m tests.mutations [name …]; exits 1 when a mutation survives or does not apply.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mutations.mutation_catalogue import ROOT, DoesNotApplyError, Mutation, load, locate
from tests.tidy.source_modules import committed_files

TEST_TIMEOUT_S = 300
BY_ASSERTION = {"AssertionError", "Failed"}  # Failed: pytest.fail, and pytest.raises without effect

Outcomes = dict[str, list[str]]


@contextmanager
def copy_tree() -> Iterator[Path]:
    """Copy the repository's files to a temporary folder, and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="seriatim-mutant-"))
    try:
        for path in committed_files():
            target = folder / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        (ROOT / "build").mkdir(exist_ok=True)
        (folder / "build").symlink_to(ROOT / "build")  # caches that do not depend on the source
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[Outcomes, str]:
    """Run tests in a tree; return the outcome of each, and the output of pytest."""
    outcomes = tree / "outcomes.json"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "tests.mutations.outcomes", f"--timeout={TEST_TIMEOUT_S}"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(tree / "src"), str(tree))),
        "SERIATIM_OUTCOMES": str(outcomes),
        "SERIATIM_MUTANT": str(tree),
    }
    ran = subprocess.run(
        [*command, *tests],
        check=False,
        capture_output=True,
        text=True,
        cwd=tree,
        env=environment,
    )
    found = json.loads(outcomes.read_text(encoding="utf-8")) if outcomes.exists() else {}
    return found, ran.stdout + ran.stderr


def explain_survival(mutation: Mutation, outcomes: Outcomes) -> str | None:
    """Return why a mutation was not detected; None if each of its tests failed."""
    accepted = BY_ASSERTION | {mutation.fails_with}
    for test in mutation.tests:
        cases = _cases(test, outcomes)
        if not cases:
            return f"{test} did not run"
        failed = [case for case in cases if case[1] == "failed"]
        if not failed:
            return f"{test} passed"
        if not any(case[0] == "call" and accepted & set(case[2:]) for case in failed):
            return f"{test} ended in {failed[0][2]} during {failed[0][0]}, not by an assertion"
    return None


def _cases(test: str, outcomes: Outcomes) -> list[list[str]]:
    """Return the outcomes of a test, one for each of its parameters."""
    return [case for name, case in outcomes.items() if name == test or name.startswith(f"{test}[")]


def run_mutation(mutation: Mutation) -> tuple[str | None, str]:
    """Apply one mutation to a copy and run its tests; return why it survived, and their output."""
    with copy_tree() as tree:
        try:
            place = locate(mutation, tree)
        except DoesNotApplyError as error:
            return "does not apply", str(error)
        place.path.write_text(place.after, encoding="utf-8")
        outcomes, printed = run_tests(tree, mutation.tests)
        return explain_survival(mutation, outcomes), printed


def run_baseline(mutations: Sequence[Mutation]) -> str | None:
    """Run all tests on the unchanged source; return the output of pytest if one fails."""
    tests = list(dict.fromkeys(test for mutation in mutations for test in mutation.tests))
    with copy_tree() as tree:
        outcomes, printed = run_tests(tree, tests)
        complete = all(_cases(test, outcomes) for test in tests)
        passed = all(outcome[1] == "passed" for outcome in outcomes.values())
        return None if complete and passed else printed


def report(line: str) -> None:
    """Print a line of the table and flush it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(names: Sequence[str]) -> int:
    """Run the named mutations, or all; return the exit code."""
    known = load()
    mutations = [one for one in known if not names or one.name in names]
    if unknown := set(names) - {one.name for one in known}:
        report(f"no mutation is called {', '.join(sorted(unknown))}; see tests/mutations/*.toml")
        return 2
    began = time.monotonic()
    width = max(len(mutation.name) for mutation in mutations)
    printed = run_baseline(mutations)
    report(f"{'unchanged':{width}}      {'all tests pass' if printed is None else 'a test fails'}")
    if printed is not None:
        report(printed)
        return 1
    failures = []
    for one in mutations:
        since = time.monotonic()
        why, text = run_mutation(one)
        seconds = time.monotonic() - since
        report(f"{one.name:{width}} {one.contract:4} {why or 'caught'} ({seconds:.0f} s)")
        if why is not None:
            failures.append((one, text))
    for one, text in failures:
        report(f"\n== {one.name}: {one.breaks}\n{text}")
    caught = len(mutations) - len(failures)
    report(f"{caught} of {len(mutations)} caught in {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
