"""Delays of an exponential backoff."""

from __future__ import annotations

import pytest

from seriatim.core.backoff import Backoff


def test_delays_grow_up_to_the_cap() -> None:
    """The delay is multiplied by the factor with each attempt, up to the cap."""
    backoff = Backoff(first_s=0.5, cap_s=3.0)

    assert [backoff.delay_s(attempt) for attempt in (1, 2, 3, 4, 5)] == [0.5, 1, 2, 3, 3]
    assert Backoff(first_s=2.0, cap_s=90.0, factor=3.0).delay_s(4) == 54.0
    assert Backoff(first_s=2.0, cap_s=90.0, factor=1.0).delay_s(4) == 2.0


def test_the_first_delay_is_capped() -> None:
    """No delay is longer than the cap, not even the first."""
    assert Backoff(first_s=5.0, cap_s=1.0).delay_s(1) == 1.0


@pytest.mark.parametrize(("first_s", "delay"), [(0.5, 30.0), (0.0, 0.0)])
def test_a_large_number_of_attempts(first_s: float, delay: float) -> None:
    """A delay whose power exceeds a float is the cap; a first delay of 0 stays 0."""
    assert Backoff(first_s=first_s, cap_s=30.0).delay_s(1_000_000) == delay


def test_jitter_shortens_a_delay() -> None:
    """Jitter reduces the capped delay by a random part, and without jitter by none."""
    backoff = Backoff(first_s=1.0, cap_s=4.0, jitter=0.5)

    assert [backoff.delay_s(2, chance) for chance in (0.0, 0.5, 1.0)] == [2.0, 1.5, 1.0]
    assert backoff.delay_s(9, 0.5) == 3.0
    assert Backoff(first_s=1.0, cap_s=4.0).delay_s(2, 0.9) == 2.0
