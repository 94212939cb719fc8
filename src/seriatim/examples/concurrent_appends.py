"""Demo step: processes that race for the same seats with conditional appends."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from typing import Any

from rich.text import Text

import seriatim
from seriatim.examples.conditional_append import make_reservation, make_seat_query
from seriatim.examples.demo_report import DemoReport, make_demo_table

RACERS = 5
ROUNDS = 6
_WAIT_S = 60

# Round, racer, the position of its append if it won, the conflicting version if it lost.
RaceResult = tuple[int, int, int | None, int | None]


def run_racer(url: str, racer: int, barrier: Barrier, results: Queue[RaceResult]) -> None:
    """Run one racer: read together with the others, then append together with them."""
    with seriatim.open(url) as log:
        for number in range(ROUNDS):
            seat = f"R{number + 1}"
            barrier.wait(_WAIT_S)
            version = log.facts.query(make_seat_query(seat)).current_context_version
            barrier.wait(_WAIT_S)
            event = make_reservation(seat, f"racer {racer}")
            result: Any = log.facts.append_if([event], make_seat_query(seat), version)
            if result:
                results.put((number, racer, result.first_sequence_number, None))
            else:
                results.put((number, racer, None, result.actual_context_version))


def run(report: DemoReport) -> None:
    """Start the racers and print the winner of each round."""
    report.start_step(
        f"a race: {RACERS} processes, {ROUNDS} seats, all read before any appends",
        "Proves: exactly one of several concurrent conditional appends wins.",
    )
    results = sorted(_run_racers(report.url))
    table = make_demo_table("seat", "winner", "stored at", "the others", right=("stored at",))
    fair = True
    for number in range(ROUNDS):
        of_round = [result for result in results if result[0] == number]
        winners = [result for result in of_round if result[2] is not None]
        losers = [result for result in of_round if result[3] is not None]
        fair = fair and len(winners) == 1 and len(losers) == RACERS - 1
        reported = {result[3] for result in losers}
        fair = fair and reported == {result[2] for result in winners}
        table.add_row(
            f"R{number + 1}",
            Text(", ".join(f"racer {result[1]}" for result in winners), style="bold green"),
            ", ".join(str(result[2]) for result in winners),
            f"{len(losers)} conflicts, each naming version {', '.join(map(str, reported))}",
        )
    report.print(table)
    report.check(
        f"{ROUNDS} rounds, {ROUNDS} winners, {ROUNDS * (RACERS - 1)} reported conflicts", fair
    )


def _run_racers(url: str) -> Iterator[RaceResult]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(RACERS)
    results: Queue[RaceResult] = context.Queue()
    racers = [
        context.Process(target=run_racer, args=(url, number + 1, barrier, results), daemon=True)
        for number in range(RACERS)
    ]
    for process in racers:
        process.start()
    for _ in range(RACERS * ROUNDS):
        yield results.get(timeout=_WAIT_S)
    for process in racers:
        process.join(_WAIT_S)
