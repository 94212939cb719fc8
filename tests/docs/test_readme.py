"""Each example of the README runs by itself, and again on the resulting log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.page_service import PORT, PageService, free_port
from tests.docs.pages import Block, blocks, read

SNIPPETS = [block for block in blocks(read("README.md")) if block.language == "python"]
TIMEOUT_S = 300  # an example on Spark starts a JVM, on a machine that may be busy


@pytest.mark.usefixtures("quick_java")
@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: f"line-{block.line}")
def test_examples_run_alone_and_again(
    block: Block, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Every example is a complete program that can run twice."""
    port = free_port()
    environment = os.environ | {"NO_PROXY": "*", "PYTHONPATH": str(tmp_path)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for variable in ("SERIATIM_URL", "SERIATIM_TOKEN"):
        environment.pop(variable, None)
    if PORT in block.text:
        serving = PageService(tmp_path, port)
        request.addfinalizer(serving.stop)
        serving.start("seriatim serve --url sqlite:///shop.db", environment)
    (tmp_path / "snippet.py").write_text(block.text.replace(PORT, port), encoding="utf-8")
    for attempt in ("alone", "again"):
        done = subprocess.run(
            [sys.executable, "snippet.py"],
            check=False,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{attempt}: {done.stderr}"


def test_the_seat_is_sold_once(tmp_path: Path) -> None:
    """D5: the first example sells one seat in repeated runs."""
    code = SNIPPETS[0].text + (
        '\nwith seriatim.open("sqlite:///shop.db") as log:\n'
        "    assert len(log.query(seat).records) == 1\n"
    )
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code],
            check=False,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        assert "taken at position 1" in done.stdout
