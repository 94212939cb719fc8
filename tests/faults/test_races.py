"""Races between processes: exactly one conditional append wins, identical ones are stored once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import seriatim
from tests.faults import workers
from tests.faults.support import check_log_complete, race


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh log that several processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/log.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


def test_exactly_one_process_wins_a_stream(url: str) -> None:
    """B9: of concurrent appends with one ExpectedSeq exactly one succeeds, every round."""
    rounds = 30

    won = race(workers.race_on_stream, 4, url, rounds)

    winners = Counter(number for wins in won for number in wins)
    assert winners == Counter(range(rounds))
    assert check_log_complete(url) == rounds


def test_exactly_one_process_wins_a_context(url: str) -> None:
    """B9: of concurrent appends with one ExpectedContext exactly one succeeds, every round."""
    rounds = 30

    won = race(workers.race_on_context, 4, url, rounds)

    winners = Counter(number for wins in won for number in wins)
    assert winners == Counter(range(rounds))
    assert check_log_complete(url) == rounds


@pytest.mark.parametrize(
    ("repeat", "count"),
    [(workers.repeat_by_key, 1), (workers.repeat_by_id, 1), (workers.repeat_batch, 60)],
)
def test_identical_appends_store_one_record(
    url: str, repeat: Callable[..., object], count: int
) -> None:
    """C4: 24 concurrent identical appends store one record and return equal receipts."""
    rounds = 6

    receipts = [receipt for found in race(repeat, 3, url, rounds, 8) for receipt in found]

    assert Counter(number for number, *_ in receipts) == Counter(list(range(rounds)) * 24)
    for number in range(rounds):
        different = {str(receipt) for receipt in receipts if receipt[0] == number}
        assert len(different) == 1
    assert check_log_complete(url) == rounds * count


def test_unconditional_appends_all_succeed(url: str) -> None:
    """B9: concurrent unconditional appends to a log-numbered stream all succeed, in some order."""
    numbers = race(workers.append_without_condition, 4, url, 25)

    assert sorted(number for found in numbers for number in found) == list(range(1, 101))
    assert check_log_complete(url) == 100
    with seriatim.open(url) as log:
        stream = list(log.read_stream(("counter", "one")))
    for racer in range(4):
        numbers_of_racer = [
            record.payload["n"] for record in stream if record.payload["by"] == racer
        ]
        assert numbers_of_racer == list(range(25))
