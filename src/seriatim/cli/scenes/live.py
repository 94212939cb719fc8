"""A tail in another process, receiving while this one appends."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

from seriatim.cli.scenes.stage import Stage, sheet
from seriatim.core.event import NewEvent
from seriatim.core.query import Filter, Query
from seriatim.opening import open_log

APPENDS = 24
_TYPE = "order.line"
_WAIT_S = 60.0

# For each batch: its positions, and how long after its append it was here.
Received = list[tuple[list[int], float]]


def follow(url: str, pipe: Connection, expected: int) -> None:
    """Follow the log in a process of its own and report what came, batch by batch."""
    received: Received = []
    with open_log(url) as log:
        tail = log.tail(Query([Filter(types=[_TYPE])]), idle_timeout=_WAIT_S / 4)
        pipe.send("ready")
        for batch in tail:
            took = time.time() - batch[-1].data["sent"]
            received.append(([record.position for record in batch], took))
            if len(received) == expected:
                break
    pipe.send(received)


def play(stage: Stage) -> None:
    """Append while another process tails, and compare."""
    stage.scene(
        "a live tail in another process",
        "Proves: every append arrives once, whole and in order, while other writers are at work.",
    )
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    follower = context.Process(target=follow, args=(stage.url, there, APPENDS), daemon=True)
    follower.start()
    if not here.poll(_WAIT_S):
        stage.check("the other process follows the log", held=False)
        return
    here.recv()
    sent = _append(stage)
    received: Received = here.recv() if here.poll(_WAIT_S) else []
    follower.join(_WAIT_S)
    _compare(stage, sent, received)


def _append(stage: Stage) -> list[list[int]]:
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
        result = stage.log.append(lines)
        sent.append([*range(result.first_position, result.last_position + 1)])
        stage.log.append([NewEvent("page.viewed", {"path": "/tea"})])
        time.sleep(0.01)
    return sent


def _compare(stage: Stage, sent: list[list[int]], received: Received) -> None:
    took = sorted(seconds * 1000 for _, seconds in received) or [0.0]
    shown = sheet("", "appends", "events", "positions", right=("appends", "events"))
    for who, batches in (("appended here", sent), ("received there", [one for one, _ in received])):
        count = sum(map(len, batches))
        span = f"{batches[0][0]} … {batches[-1][-1]}" if batches else "none"
        shown.add_row(who, str(len(batches)), str(count), span)
    stage.show(shown)
    median = statistics.median(took)
    stage.show(f"from append to arrival: median {median:.0f} ms, slowest {took[-1]:.0f} ms")
    stage.check(
        "the same batches in the same order, nothing skipped, nothing twice",
        [positions for positions, _ in received] == sent,
    )
