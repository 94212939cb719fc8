"""A race of real processes for one seat after another, each released only when all have read."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

from rich.text import Text

from seriatim.cli.scenes.seats import reservation, seat_query
from seriatim.cli.scenes.stage import Stage, sheet
from seriatim.opening import open_log

RACERS = 5
ROUNDS = 6
_WAIT_S = 60

# Round, racer, the position it won at, the version it found instead.
Answer = tuple[int, int, int | None, int | None]


def race(url: str, racer: int, barrier: Barrier, answers: Queue[Answer]) -> None:
    """Run one racer: read with all the others, then append with all the others."""
    with open_log(url) as log:
        for number in range(ROUNDS):
            seat = f"R{number + 1}"
            barrier.wait(_WAIT_S)
            version = log.facts.query(seat_query(seat)).current_context_version
            barrier.wait(_WAIT_S)
            mine = [reservation(seat, f"racer {racer}")]
            answer: Any = log.facts.append_if(mine, seat_query(seat), version)
            if answer:
                answers.put((number, racer, answer.first_sequence_number, None))
            else:
                answers.put((number, racer, None, answer.actual_context_version))


def play(stage: Stage) -> None:
    """Start the racers and show who won each round."""
    stage.scene(
        f"a race: {RACERS} processes, {ROUNDS} seats, all of them read before any appends",
        "Proves: of conditional appends that race, exactly one wins, from any number of processes.",
    )
    answers = sorted(_run(stage.url))
    shown = sheet("seat", "winner", "stored at", "the others", right=("stored at",))
    fair = True
    for number in range(ROUNDS):
        mine = [one for one in answers if one[0] == number]
        winners = [one for one in mine if one[2] is not None]
        losers = [one for one in mine if one[3] is not None]
        fair = fair and len(winners) == 1 and len(losers) == RACERS - 1
        told = {one[3] for one in losers}
        fair = fair and told == {one[2] for one in winners}
        shown.add_row(
            f"R{number + 1}",
            Text(", ".join(f"racer {one[1]}" for one in winners), style="bold green"),
            ", ".join(str(one[2]) for one in winners),
            f"{len(losers)} conflicts, each naming version {', '.join(map(str, told))}",
        )
    stage.show(shown)
    stage.check(f"{ROUNDS} rounds, {ROUNDS} winners, {ROUNDS * (RACERS - 1)} losers told so", fair)


def _run(url: str) -> Iterator[Answer]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(RACERS)
    answers: Queue[Answer] = context.Queue()
    racers = [
        context.Process(target=race, args=(url, number + 1, barrier, answers), daemon=True)
        for number in range(RACERS)
    ]
    for one in racers:
        one.start()
    for _ in range(RACERS * ROUNDS):
        yield answers.get(timeout=_WAIT_S)
    for one in racers:
        one.join(_WAIT_S)
