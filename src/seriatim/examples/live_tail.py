"""Demo step: a live tail in another process while this process appends."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import seriatim
from seriatim import Filter, NewEvent, Query
from seriatim.examples.demo_report import DemoReport, make_demo_table

APPENDS = 24
_TYPE = "order.line"
_WAIT_S = 60.0

# For each batch: its positions, and the seconds from its append to its arrival.
ReceivedBatches = list[tuple[list[int], float]]


def follow_log(url: str, pipe: Connection, expected: int) -> None:
    """Follow the log and send the received batches through the pipe; runs in its own process."""
    received: ReceivedBatches = []
    with seriatim.open(url) as log:
        tail = log.tail(Query([Filter(types=[_TYPE])]), idle_timeout=_WAIT_S / 4)
        pipe.send("ready")
        for batch in tail:
            latency = time.time() - batch[-1].payload["sent"]
            received.append(([record.position for record in batch], latency))
            if len(received) == expected:
                break
    pipe.send(received)


def run(report: DemoReport) -> None:
    """Append while another process tails the log, and compare both sides."""
    report.start_step(
        "a live tail in another process",
        "Proves: every append arrives once, complete and in order, with other writers active.",
    )
    context = multiprocessing.get_context("spawn")
    local, remote = context.Pipe()
    follower = context.Process(target=follow_log, args=(report.url, remote, APPENDS), daemon=True)
    follower.start()
    if not local.poll(_WAIT_S):
        report.check("the other process follows the log", held=False)
        return
    local.recv()
    sent = _append(report)
    received: ReceivedBatches = local.recv() if local.poll(_WAIT_S) else []
    follower.join(_WAIT_S)
    _compare(report, sent, received)


def _append(report: DemoReport) -> list[list[int]]:
    """Append orders of one to three lines, with unrelated events between them."""
    sent: list[list[int]] = []
    for number in range(APPENDS):
        lines = [
            NewEvent(
                _TYPE,
                {"sku": f"tea-{line}", "quantity": number + 1, "sent": time.time()},
                stream=("order", f"o-{number + 1}"),
            )
            for line in range(1 + number % 3)
        ]
        result = report.log.append(lines)
        sent.append([*range(result.first_position, result.last_position + 1)])
        report.log.append([NewEvent("page.viewed", {"path": "/tea"})])
        time.sleep(0.01)
    return sent


def _compare(report: DemoReport, sent: list[list[int]], received: ReceivedBatches) -> None:
    latencies_ms = sorted(seconds * 1000 for _, seconds in received) or [0.0]
    table = make_demo_table("", "appends", "events", "positions", right=("appends", "events"))
    arrived = [positions for positions, _ in received]
    for side, batches in (("appended", sent), ("received", arrived)):
        count = sum(map(len, batches))
        span = f"{batches[0][0]} … {batches[-1][-1]}" if batches else "none"
        table.add_row(side, str(len(batches)), str(count), span)
    report.print(table)
    median = statistics.median(latencies_ms)
    report.print(
        f"from append to arrival: median {median:.0f} ms, slowest {latencies_ms[-1]:.0f} ms"
    )
    report.check(
        "the same batches in the same order, none missing, none repeated",
        arrived == sent,
    )
