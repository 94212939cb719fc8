"""The operators' journal of a registry that was opened with its log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import seriatim
from seriatim import NewEvent
from seriatim.core.errors import InvalidArgument
from seriatim.core.handler import handler
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry
from seriatim.log.operator_journal import local_operator, read_journal

MAILER = handler("mailer", effect="keyed")(lambda _event, _context: None)
SELECTED = EntryFilter(handler="mailer", tenant_id="default", status=("dead", "failed"))


@pytest.fixture
def log() -> Iterator[seriatim.Log]:
    """A log with three events in streams of their own."""
    with seriatim.open("memory:") as opened:
        for number in range(3):
            opened.append([NewEvent("order.paid", {}, ("order", str(number)))])
        yield opened


def fill(registry: Registry, log: seriatim.Log) -> None:
    """Finish one event, and fail two."""
    registry.declare(MAILER)
    deliveries = [registry.deliveries([record])[0] for record in log.read()]
    claims = registry.claim_all(MAILER, deliveries)
    registry.mark_done(MAILER, claims[:1])
    for claim in claims[1:]:
        registry.mark_failed(MAILER, claim, "no mail server")


def act(registry: Registry, log: seriatim.Log) -> None:
    """Do everything that an operator can do."""
    registry.set_status("mailer", "paused", "deploying")
    registry.set_status("mailer", "ready")
    registry.retry(SELECTED, reason="the server is back")
    registry.skip(
        EntryFilter(handler="mailer", tenant_id="default", status="failed"), "an old campaign"
    )
    registry.prune("mailer", 0.0, reason="disk space")
    registry.reset("mailer", log, reason="a rehearsal", position=3)


def read(log: seriatim.Log) -> list[tuple[Any, ...]]:
    """Return the journal, oldest first."""
    return [(one.action, one.tenant_id, one.count, one.reason) for one in read_journal(log)[::-1]]


def test_actions_in_python_are_recorded(registry_at: str, log: seriatim.Log) -> None:
    """N4: actions of an operator on the registry in Python are in the journal of its log."""
    registry = open_registry(registry_at, log=log)
    fill(registry, log)
    act(registry, log)
    with closing(registry.clone()) as other:
        other.set_status("mailer", "paused", "again")
    registry.close()

    assert read(log) == [
        ("handler_paused", "*", 1, "deploying"),
        ("handler_resumed", "*", 1, ""),
        ("events_retried", "default", 2, "the server is back"),
        ("events_skipped", "default", 2, "an old campaign"),
        ("handler_pruned", "*", 3, "disk space"),
        ("handler_reset", "*", 1, "a rehearsal"),
        ("handler_paused", "*", 1, "again"),
    ]
    [newest] = read_journal(log, limit=1)
    assert (newest.actor_id, newest.interface) == (local_operator().actor_id, "python")


def test_a_registry_without_a_log_has_no_journal(registry_at: str, log: seriatim.Log) -> None:
    """N4: without a log nothing can be recorded; the actions succeed."""
    with_log = open_registry(registry_at, log=log)
    fill(with_log, log)
    with_log.close()
    registry = open_registry(registry_at)
    act(registry, log)
    registry.close()

    assert read(log) == []


def test_what_changes_nothing_is_not_recorded(registry_at: str, log: seriatim.Log) -> None:
    """N4: consumers record nothing, nor does an action that affects nothing or is refused."""
    registry = open_registry(registry_at, log=log)
    fill(registry, log)
    registry.prune("mailer", 3600.0)
    registry.retry(EntryFilter(handler="mailer", tenant_id="default", event_type="absent"))
    registry.reset("mailer", log, reason="a plan", dry_run=True)
    for refused in ("x" * 501, "password: hunter2hunter2"):
        with pytest.raises(InvalidArgument, match="reason"):
            registry.skip(SELECTED, refused)
    registry.close()

    assert read(log) == []
