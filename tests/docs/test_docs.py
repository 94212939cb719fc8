"""The documentation is correct: its examples run, outputs are as printed, links work."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest

from bench import report_page
from seriatim.store.postgres.migrate import migrate
from tests.docs.page_service import PORT, SERVE, PageService, free_port
from tests.docs.pages import (
    ROOT,
    Block,
    Command,
    anchors,
    blocks,
    commands,
    links,
    name_of,
    pages,
    prose,
    read,
    rows,
    section,
)

ROLE = "shop_app"
# Commands that the pages show and that are run; others (pip, psql, make) set a machine up.
RUN = ("seriatim ", "python ", "curl ", "openssl ")
EXPORT = re.compile(r"export (\w+)=")  # the variable is set for the rest of the page
COMMAND_TIMEOUT_S = 300  # a command on Spark starts a JVM, on a machine that may be busy
PAGES = {name_of(page): page for page in pages()}
RUNNABLE = [
    name
    for name, page in PAGES.items()
    if any(block.language in ("python", "console") for block in blocks(page.read_text("utf-8")))
]


@pytest.fixture
def own_environment() -> Iterator[None]:
    """Keep environment variables exported by a page from other pages."""
    with mock.patch.dict(os.environ, {"NO_PROXY": "*"}):
        for variable in ("SERIATIM_URL", "SERIATIM_TOKEN"):
            os.environ.pop(variable, None)
        yield


@pytest.mark.usefixtures("quick_java", "own_environment")
@pytest.mark.parametrize("name", RUNNABLE)
def test_examples_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Every page runs from top to bottom in its own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    request.addfinalizer(lambda: forget_modules(tmp_path))
    space: dict[str, Any] = {"__name__": "__docs__"}
    port = free_port()
    serving = PageService(tmp_path, port)
    request.addfinalizer(serving.stop)
    found = blocks(read(name).replace(PORT, port))
    url = ""
    if any("postgres" in block.words for block in found):
        url = request.getfixturevalue("postgres_url")
        make_role(url)
    if any("older-schema" in block.words for block in found):
        migrate(f"{url}?schema=older", target=1)
    if any("seriatim.spark" in block.text for block in found if block.language == "python"):
        request.getfixturevalue("spark")  # all pages share one session
    for block in found:
        if block.file is not None:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            run_python(block, name, space, url)
        elif block.language == "console":
            environment = console_environment(url if "postgres" in block.words else "")
            run_console(block, name, serving, environment)


def forget_modules(folder: Path) -> None:
    """Forget the modules that a page has imported, so that the next page imports its own."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
            del sys.modules[name]


def make_role(url: str) -> None:
    """Create the role that the pages expect, once per server."""
    with (
        psycopg.connect(url, autocommit=True) as connection,
        contextlib.suppress(psycopg.errors.DuplicateObject),
    ):
        connection.execute(f"create role {ROLE} login")


def run_python(block: Block, name: str, space: dict[str, Any], url: str) -> None:
    """Run a block with the line numbers of the page."""
    if "postgres" in block.words:
        space["url"] = url
    padded = "\n" * (block.line - 1) + block.text
    exec(compile(padded, str(ROOT / name), "exec"), space)  # noqa: S102 - our own pages


def console_environment(url: str) -> dict[str, str]:
    """Return the environment of the commands."""
    bin_folder = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
        "NO_COLOR": "1",
    }
    return environment | ({"SERIATIM_URL": url} if url else {})


def run_console(block: Block, name: str, serving: PageService, environment: dict[str, str]) -> None:
    """Run the commands of a block and compare their output."""
    for command in commands(block):
        where = f"{name}, line {block.line}: $ {command.text}"
        exported = EXPORT.match(command.text)
        if command.text.startswith(SERVE) and not command.exit_code:
            printed = serving.start(command.text, environment)
        elif command.text.startswith(RUN) or exported:
            text = f'{command.text}; echo "${exported[1]}"' if exported else command.text
            done = run_command(text, environment)
            printed = done.stdout + done.stderr
            right = done.returncode == command.exit_code or "any-exit" in block.words
            assert right, f"{where}\n{printed}"
            if exported:
                environment[exported[1]] = os.environ[exported[1]] = done.stdout.strip()
        else:
            continue
        missing = missing_lines(command, printed)
        assert not missing, f"{where}\nprinted\n{printed}\nnot {missing!r}"


def run_command(text: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in the page's folder."""
    return subprocess.run(
        ["bash", "-c", text],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
    )


def missing_lines(command: Command, printed: str) -> list[str]:
    """Return the documented lines that were not printed in that order; `…` matches anything."""
    lines = iter([" ".join(line.split()) for line in printed.splitlines()])
    missing = []
    for promised in command.output:
        parts = [re.escape(part.strip()) for part in " ".join(promised.split()).split("…")]
        pattern = re.compile(r"\s*.*\s*".join(parts))
        if not any(pattern.fullmatch(line) for line in lines):
            missing.append(promised)
    return missing


def test_missing_lines_compares_order_and_words() -> None:
    """The comparison checks order and words, ignores spaces, and accepts any text for `…`."""
    command = Command("x", ("position 1 …", "head   2"), 0)

    assert missing_lines(command, "position  1  today\nnoise\nhead 2\n") == []
    assert missing_lines(command, "head 2\nposition 1 today\n") == ["head   2"]
    assert missing_lines(command, "position 2 today\n") == list(command.output)


@pytest.mark.parametrize("name", PAGES)
def test_link_targets_exist(name: str) -> None:
    """Every link to a page, file, picture or heading has an existing target."""
    page = PAGES[name]
    broken = []
    for target in links(page.read_text("utf-8")):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else (page.parent / path).resolve()
        there = file.exists() and (not anchor or anchor in anchors(file.read_text("utf-8")))
        if not there:
            broken.append(target)

    assert broken == []


def test_every_page_is_linked() -> None:
    """Links lead from the README to every page of the documentation."""
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        targets = (target.partition("#")[0] for target in links(page.read_text("utf-8")))
        todo += [(page.parent / target).resolve() for target in targets if "://" not in target]
    unreached = [name for name, page in PAGES.items() if page not in seen]

    assert unreached == []


def test_the_readme_is_short() -> None:
    """The README has at most 1500 words."""
    assert len(read("README.md").split()) <= 1500


def test_the_benchmark_page_is_current() -> None:
    """The benchmark page equals the one made of the results: `make bench-report`."""
    assert read("docs/reference/benchmarks.md") == report_page.page()


def test_make_targets_exist() -> None:
    """Every make target that a page mentions exists."""
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    mentioned = {
        (name, target)
        for name, page in PAGES.items()
        for target in re.findall(r"[`$] ?make ([a-z-]+)", page.read_text("utf-8"))
    }

    assert mentioned, "the README tells to make something"
    assert [one for one in mentioned if one[1] not in targets] == []


def test_named_source_files_exist() -> None:
    """Every source path that a page formats as code exists."""
    pattern = re.compile(r"`((?:src|tests|bench|docs)/[\w./-]+)`")
    gone = {
        f"{name}: {path}"
        for name, page in PAGES.items()
        for path in pattern.findall(prose(page.read_text("utf-8")))
        if not path.startswith("bench/results/") and not (ROOT / path).exists()
    }

    assert gone == set()


def test_promises_have_their_proof() -> None:
    """Each promise names a line of the contract and a file that cites that line."""
    wrong = []
    chosen = rows(section(read("README.md"), "What is promised"))
    promises = [*chosen, *rows(read("docs/reference/proofs.md"))]
    for _, lines, proofs in promises:
        texts = [read(path) for path in re.findall(r"`([^`]+)`", proofs)]
        wrong += [
            f"{line} in {proofs}"
            for line in re.findall(r"[A-Z]\d+", lines)
            if not any(re.search(rf'"""[^:]*\b{line}\b[^:]*:', text) for text in texts)
        ]

    assert len(chosen) == 6
    assert len(promises) > 30
    assert wrong == []


def test_cited_lines_of_the_contract_exist() -> None:
    """Every contract line that a page cites in brackets exists."""
    known = set(
        re.findall(r"^\*\*([A-Z]\d+)\*\*", read("docs/reference/contract.md"), re.MULTILINE)
    )
    cited = {
        (name, line)
        for name, page in PAGES.items()
        for cites in re.findall(r"\(((?:[A-Z]\d+(?:, )?)+)\)", prose(page.read_text("utf-8")))
        for line in cites.split(", ")
    }

    assert len(known) > 40
    assert cited
    assert [one for one in cited if one[1] not in known] == []
