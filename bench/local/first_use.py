"""The time of a new process that imports Seriatim, appends an event and projects it."""

import statistics
import subprocess
import sys

from bench.local.plan import LocalEnvironment
from bench.measurement import Figure, Stopwatch

GOAL_S = 1.5
PROGRAM = """
import sys
import seriatim
from seriatim import NewEvent, projection

@projection("seats", key="stream_id", columns={"taken": int})
def seats(row, event):
    return {"taken": (row["taken"] if row else 0) + 1}

with seriatim.open(sys.argv[1]) as log:
    log.append([NewEvent("seat.taken", stream=("seat", "12A"))])
    assert log.projections.run(seats).position == 1
    assert log.projections.get_row(seats, "12A") == {"stream_id": "12A", "taken": 1}
"""


def first_use(environment: LocalEnvironment) -> list[Figure]:
    """Start processes on new SQLite logs."""
    rounds: list[float] = []
    for number in range(environment.plan.rounds + 1):
        url = f"sqlite:///{environment.home}/first-{number}.db"
        watch = Stopwatch()
        subprocess.run([sys.executable, "-c", PROGRAM, url], check=True, timeout=60)
        rounds.append(watch.seconds)
    rounds = rounds[1:]  # the first one also reads the files of the package from the disk
    environment.report(f"    a new process {statistics.median(rounds):.2f} s")
    return [
        Figure(
            name="new process: import, new log, append, first projection",
            measured=statistics.median(rounds),
            goal=GOAL_S,
            unit="s",
            at_most=True,
            rounds=tuple(rounds),
        )
    ]
