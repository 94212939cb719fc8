"""Exponential backoff: the delay before each attempt of a repeated operation."""

from __future__ import annotations

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Delays that grow by a factor with each attempt, up to a cap.

    Attributes:
        first_s: The delay after the first attempt, in seconds.
        cap_s: The longest delay, in seconds.
        factor: The growth of the delay with each attempt.
        jitter: The fraction of a delay that is random, from 0 to 1.

    Example:
        >>> backoff = Backoff(first_s=0.5, cap_s=30.0)
        >>> [backoff.delay_s(attempt) for attempt in (1, 2, 3, 10)]
        [0.5, 1.0, 2.0, 30.0]
    """

    first_s: float
    cap_s: float
    factor: float = 2.0
    jitter: float = 0.0

    def delay_s(self, attempt: int, chance: float = 0.0) -> float:
        """Return the delay after an attempt, in seconds.

        Args:
            attempt: The number of the attempt, from 1.
            chance: A random number in [0, 1), which shortens the delay by the jitter.
        """
        try:
            delay = self.first_s * self.factor ** (attempt - 1)
        except OverflowError:  # after some thousand attempts
            delay = self.cap_s if self.first_s else 0.0
        return min(delay, self.cap_s) * (1.0 - self.jitter * chance)
