"""What a durable subscription does with a batch that its handler cannot process."""

from __future__ import annotations

import random

import msgspec

from seriatim.core.backoff import Backoff
from seriatim.core.handler import ON_POISON, OnPoison, RetryPolicy, find_policy_problem
from seriatim.log.arguments import invalid_argument

BACKOFF_S = 0.2
BACKOFF_CAP_S = 30.0


class FailurePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed batch is attempted again, and what happens after the last attempt.

    Attributes:
        backoff: The delays between attempts without a retry policy, which never end.
        retry: The retry policy; None repeats a batch until it succeeds.
        on_poison: What happens after the last attempt of the retry policy.
    """

    backoff: Backoff = Backoff(first_s=BACKOFF_S, cap_s=BACKOFF_CAP_S)
    retry: RetryPolicy | None = None
    on_poison: OnPoison = "park"

    def delay_s(self, attempt: int) -> float:
        """Return the seconds between a failed attempt, counted from 1, and the next one."""
        if self.retry is None:
            return self.backoff.delay_s(attempt)
        return self.retry.pause_s(attempt, random.random())  # noqa: S311 - jitter

    def gives_up(self, attempt: int, error: BaseException) -> bool:
        """Return whether an attempt that failed was the last one."""
        return self.retry is not None and self.retry.gives_up(attempt, error)

    def allows(self, attempt: int) -> bool:
        """Return whether an attempt may begin."""
        return self.retry is None or attempt <= self.retry.attempts


def make_failure_policy(
    backoff_s: float, backoff_cap_s: float, retry: RetryPolicy | None, on_poison: OnPoison
) -> FailurePolicy:
    """Return the policy of a subscription.

    Raises:
        InvalidArgument: An argument is invalid, or belongs to another form of the policy.
    """
    if on_poison not in ON_POISON:
        raise invalid_argument("on_poison", f"must be one of {', '.join(ON_POISON)}")
    if retry is None:
        if on_poison != "park":
            problem = "needs retry: without it, a batch is repeated until it succeeds"
            raise invalid_argument("on_poison", problem)
        return FailurePolicy(backoff=Backoff(first_s=backoff_s, cap_s=backoff_cap_s))
    if not isinstance(retry, RetryPolicy):
        raise invalid_argument("retry", "must be a RetryPolicy")
    if retry_problem := find_policy_problem(retry):
        raise invalid_argument("retry", retry_problem)
    if (backoff_s, backoff_cap_s) != (BACKOFF_S, BACKOFF_CAP_S):
        problem = "cannot be combined with retry: set base_s and cap_s of the retry policy"
        raise invalid_argument("backoff_s", problem)
    return FailurePolicy(retry=retry, on_poison=on_poison)
