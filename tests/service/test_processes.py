"""Several processes at one address report metrics of all of them."""

from __future__ import annotations

import os
import re
import signal
from contextlib import ExitStack
from pathlib import Path

from tests.faults.support import wait_until
from tests.service.http_calls import Caller, make_event, open_tail
from tests.service.service_process import run_service_process

APPENDS = 40
TAILS = 8
STORED = rb'seriatim_appends_total\{outcome="stored",tenant="t"\} (\S+)'
TOOK = rb'seriatim_append_seconds_count\{outcome="stored"\} (\S+)'
OPEN = rb"seriatim_http_open_tails ([0-9.]+)"
HEAD = rb"seriatim_log_head_position ([0-9.]+)"


def scrape(caller: Caller, what: bytes) -> set[float]:
    """Return the distinct values of a metric in several scrapes, each of any process."""
    found = [re.findall(what, caller("GET", "/metrics").body) for _ in range(12)]
    assert all(len(values) == 1 for values in found), found
    return {float(values[0]) for values in found}


def workers_of(process: int) -> list[int]:
    """Return the ids of the worker processes of a service."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    found = [int(one) for task in tasks for one in task.read_text().split()]
    return [one for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


def test_metrics_cover_all_processes(tmp_path: Path) -> None:
    """M2: every process reports the counts of all processes, also of killed ones."""
    with (
        run_service_process(f"sqlite:///{tmp_path}/log.db", "--processes", "2") as both,
        ExitStack() as stack,
    ):
        operator = both.caller()
        writer = both.caller(tenant_id="t")
        for _ in range(APPENDS):
            assert writer.append(make_event()).status == 201
        for _ in range(TAILS):
            next(stack.enter_context(open_tail(writer)).lines())

        assert scrape(operator, STORED) == {APPENDS}
        assert scrape(operator, TOOK) == {APPENDS}
        assert scrape(operator, OPEN) == {TAILS}
        assert scrape(operator, HEAD) == {APPENDS}
        killed = {*workers_of(both.process.pid)}
        for one in killed:
            os.kill(one, signal.SIGKILL)
        wait_until(lambda: len({*workers_of(both.process.pid)} - killed) == 2, "started again")

        assert scrape(operator, STORED) == {APPENDS}
        assert scrape(operator, OPEN) == {0}
