"""The commands `seriatim subscriptions`."""

from __future__ import annotations

import pytest

import seriatim
from seriatim import NewEvent, RetryPolicy
from tests.acceptance.cli_program import Program


def park(program: Program, name: str = "mailer") -> None:
    """Let a subscription fail at the second of three appends."""

    def handler(batch: list[seriatim.EventRecord]) -> None:
        if batch[0].position == 2:
            raise ValueError("no such [bold]address")

    with seriatim.open(program.env["SERIATIM_URL"]) as log:
        for count in (1, 2, 1):
            log.append([NewEvent("order.placed", {"n": n}) for n in range(count)])
        log.subscribe(name, retry=RetryPolicy(attempts=2, base_s=0.0), idle_timeout=0.0).run(
            handler
        )


@pytest.mark.slow
def test_a_parked_subscription_is_shown_and_skipped(program: Program) -> None:
    """E5, N4: list and show report the failing batch; skip passes it and is recorded."""
    empty = program("subscriptions", "list")
    park(program)
    listed = program("subscriptions", "list")
    same = program("subscriptions")
    shown = program("subscriptions", "show", "mailer", "--json").json
    unasked = program("subscriptions", "skip", "mailer", "--reason", "bad", "--json")
    unreasoned = program("subscriptions", "skip", "mailer", "2", "--json")
    elsewhere = program("subscriptions", "skip", "mailer", "1", "--reason", "bad", "--json")
    skipped = program("subscriptions", "skip", "mailer", "--reason", "bad", "--yes", "--json")
    after = program("subscriptions", "show", "mailer")
    done = program("subscriptions", "show", "mailer", "--json").json
    [action] = program("operations", "--json").lines

    assert (empty.code, empty.out) == (0, "")
    assert "no subscriptions" in empty.err
    assert "parked" in listed.out
    assert (same.code, "parked" in same.out) == (0, True)
    assert (shown["status"], shown["position"], shown["skipped_batches"]) == ("parked", 1, [])
    assert shown["attempt"]["first_position"] == 2
    assert (shown["attempt"]["last_position"], shown["attempt"]["attempts"]) == (3, 2)
    assert shown["last_error"] == "ValueError: no such [bold]address"
    assert (unasked.code, unasked.error["details"]["argument"]) == (2, "yes")
    assert (unreasoned.code, unreasoned.error["details"]["argument"]) == (2, "reason")
    assert (elsewhere.code, elsewhere.error["code"]) == (5, "conflict")
    assert skipped.json == {"subscription": "mailer", "done": "skipped the batch at position 2"}
    assert "[bold]address" in after.out
    assert (done["status"], done["position"], done["attempt"]) == ("ready", 3, None)
    [batch] = done["skipped_batches"]
    assert (batch["first_position"], batch["last_position"], batch["reason"]) == (2, 3, "bad")
    assert batch["skipped_by"] == action["actor_id"]
    assert (action["action"], action["interface"]) == ("subscription_batch_skipped", "cli")
    assert (action["tenant_id"], action["reason"]) == ("default", "bad")
    target = {"subscription": "mailer", "position": 2, "last_position": 3, "attempts": 2}
    assert action["target"] == target


@pytest.mark.slow
def test_a_subscription_is_retried_and_reset(sqlite: Program) -> None:
    """E5, N4: retry continues a parked subscription; reset moves its cursor, after a question."""
    park(sqlite)
    retried = sqlite("subscriptions", "retry", "mailer", "--reason", "fixed")
    again = sqlite("subscriptions", "retry", "mailer", "--json")
    ready = sqlite("subscriptions", "show", "mailer", "--json").json
    unasked = sqlite("subscriptions", "reset", "mailer", "--position", "0", "--json")
    reset = sqlite("subscriptions", "reset", "mailer", "--position", "0", "--yes", "--json")
    beyond = sqlite("subscriptions", "reset", "mailer", "--position", "99", "--yes", "--json")
    missing = sqlite("subscriptions", "show", "nobody", "--json")
    other = sqlite("--tenant", "other", "subscriptions", "--json", "list")
    actions = [one["action"] for one in sqlite("operations", "--json").lines]

    assert (retried.code, retried.out) == (0, "mailer: attempts its batch again\n")
    assert (again.code, again.error["code"]) == (5, "conflict")
    assert (ready["status"], ready["attempt"], ready["failures"]) == ("ready", None, 0)
    assert (unasked.code, unasked.error["details"]["argument"]) == (2, "yes")
    assert reset.json == {"subscription": "mailer", "done": "continues after position 0"}
    assert (beyond.code, beyond.error["details"]["argument"]) == (2, "position")
    assert (missing.code, missing.error["code"]) == (3, "not_found")
    assert (other.code, other.out) == (0, "")
    assert actions == ["subscription_reset", "subscription_retried"]
