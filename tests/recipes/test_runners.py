"""The runner recipes: the command and a program of one's own, until SIGTERM or kill -9."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastapi_shop.shop import orders
from seriatim import Log, NewEvent
from tests.docs.pages import blocks, read
from tests.recipes.programs import EXAMPLES, Program

pytestmark = pytest.mark.slow
INTERRUPTED = 130
COMMAND = [
    *("-m", "seriatim", "project", "run", "fastapi_shop.shop:orders"),
    *("--engine", "local", "--live"),
]


def place(log: Log, order_id: str) -> int:
    """Append an order, and return its position."""
    order = {"customer": "Ada", "cents": 500}
    return log.append([NewEvent("order.placed", order, stream=("order", order_id))]).last_position


def run_command(url: str) -> Program:
    """Start the command in the folder of the examples."""
    return Program(COMMAND, EXAMPLES, SERIATIM_URL=url)


def test_a_killed_command_is_replaced_by_its_standby(url: str, log: Log) -> None:
    """I8, F5: of two commands one works; after kill -9 the other one takes over."""
    place(log, "1")
    with run_command(url) as first:
        first.wait_for(log.projections.status, "cursor")
        log.projections.wait_for("orders", place(log, "2"), timeout_s=60)
        with run_command(url) as second:
            second.wait_printed("following the log")
            first.kill9()
            log.projections.wait_for("orders", place(log, "3"), timeout_s=60)
            assert second.stop() == INTERRUPTED
    assert not log.projections.find("orders").owner  # SIGTERM released the lease
    assert log.projections.verify(orders).equal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    for block in blocks(read("docs/howto/runners.md")):
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)  # its programs name their log
def test_the_program_of_the_page_ends_on_sigterm(folder: Path, log: Log) -> None:
    """I8: the program follows the log, and releases its lease when it ends."""
    with Program(["runner.py"], folder) as runner:
        runner.wait_printed("following ['orders', 'thanks']")
        log.projections.wait_for("orders", place(log, "1"), timeout_s=60)
        log.append([NewEvent("order.paid", stream=("order", "1"))])
        runner.wait_printed("thanks for order 1 with key default/")
        assert log.projections.find("orders").owner
        assert runner.stop() == 0
    assert not log.projections.find("orders").owner
