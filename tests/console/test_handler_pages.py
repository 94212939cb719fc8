"""The pages of handlers: entries by state, and actions on one or on all that match."""

from __future__ import annotations

import re
from contextlib import closing

import msgspec
import pytest

from seriatim.core.event import NewEvent
from seriatim.core.handler import Delivery
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.reset import LogCursor
from tests.console.console_service import ConsoleService, Visitor
from tests.service.tenant_data import MAILER, OURS, SECRET, THEIRS

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def operator(console_anywhere: ConsoleService) -> Visitor:
    """An operator of one tenant."""
    return console_anywhere.sign_in(tenant_id=OURS)


def fail_events(console: ConsoleService, count: int, error: str = "no mail server") -> None:
    """Append events of a tenant and let the handler fail on each for good."""
    log = console.service.view(OURS)
    with closing(console.service.registry()) as registry:
        for number in range(count):
            [record] = log.append([NewEvent("mail.sent", {"n": number})]).records
            [claim] = registry.claim_all(MAILER, [Delivery.of(record, log=log.identity())])
            registry.mark_failed(MAILER, claim, error)


def count_dead(console: ConsoleService, tenant: str = OURS) -> int:
    """Return the number of dead letters of a tenant."""
    with closing(console.service.registry()) as registry:
        selection = EntryFilter(handler=MAILER.name, tenant_id=tenant, status="dead")
        return len(registry.entries(selection, 1000))


def test_handlers_are_listed_with_counts_by_state(operator: Visitor) -> None:
    """N1: each handler has a row with its count by state, and counts are links."""
    page = operator.get("/handlers")

    assert page.status == 200
    assert "mailer" in page.text
    assert "/console/handler?name=mailer&amp;status=dead" in page.html
    assert SECRET not in page.html


def test_a_handler_lists_unfinished_events(
    console_anywhere: ConsoleService, operator: Visitor
) -> None:
    """N5: the filters of the address select entries, and those of other tenants are not listed."""
    fail_events(console_anywhere, 1, HOSTILE)
    page = operator.get("/handler", name="mailer", status="dead")
    assert "no acme" in page.text
    assert HOSTILE not in page.html
    assert "&lt;script&gt;alert(1)" in page.html
    assert SECRET not in page.html

    filtered = operator.get("/handler", name="mailer", event_type="mail.*").text
    assert "mail.sent" in filtered
    assert "no acme" not in filtered
    assert "No unfinished events" in operator.get("/handler", name="mailer", status="failed").text
    assert operator.get("/handler", name="absent").status == 404


def test_a_list_continues_on_the_next_page(console: ConsoleService) -> None:
    """N5: a page lists 50 entries, and the next page has an address."""
    fail_events(console, 60)
    operator = console.sign_in(tenant_id=OURS)
    first = operator.get("/handler", name="mailer", status="dead")
    assert first.html.count("<details>") == 50
    [following] = [
        part.partition('"')[0].replace("&amp;", "&")
        for part in first.html.split('href="/console')
        if "after=" in part.partition('"')[0]
    ]
    second = operator.get(following)
    assert second.html.count("<details>") == 11
    assert "First page" in second.text


def test_the_attempts_of_one_event_have_a_page(operator: Visitor) -> None:
    """N1: the page shows the attempts and the last error that the registry stores."""
    page = operator.get("/handler/entry", name="mailer", event_id=f"{OURS}-dead")

    assert page.status == 200
    assert "Attempts 1" in page.text
    assert "no acme" in page.text
    absent = operator.get("/handler/entry", name="mailer", event_id=f"{THEIRS}-dead")
    assert absent.status == 404


def test_one_event_is_retried(console_anywhere: ConsoleService, operator: Visitor) -> None:
    """N4: retrying one event is recorded in the journal."""
    page = operator.get("/handler", name="mailer")
    fields = {"name": "mailer", "event_id": f"{OURS}-dead", "reason": "server is back"}
    result = operator.submit("/handler/retry", page, **fields)

    assert "Retried 1 event(s)." in result.text
    assert count_dead(console_anywhere) == 0
    assert "server is back" in operator.get("/journal").text


def test_one_event_is_skipped_with_a_reason(
    console_anywhere: ConsoleService, operator: Visitor
) -> None:
    """G5: skipping an event requires a reason."""
    page = operator.get("/handler", name="mailer")
    fields = {"name": "mailer", "event_id": f"{OURS}-dead"}
    refused = operator.submit("/handler/skip", page, **fields)
    assert refused.status == 400
    assert 'role="alert"' in refused.html
    assert count_dead(console_anywhere) == 1

    result = operator.submit("/handler/skip", page, **fields, reason="sent by hand")
    assert "Skipped 1 event(s)." in result.text
    assert count_dead(console_anywhere) == 0
    assert count_dead(console_anywhere, THEIRS) == 1


@pytest.mark.parametrize("action", ["retry", "skip"])
def test_all_that_match_are_acted_on_after_a_confirmation(
    console_anywhere: ConsoleService, operator: Visitor, action: str
) -> None:
    """N4: the confirmation names the number of events, and no other events are affected."""
    fail_events(console_anywhere, 3)
    filters = {"name": "mailer", "event_type": "mail.*", "status": "dead"}
    confirmation = operator.get("/handler/confirm", action=action, **filters)
    assert f"{action.capitalize()} 3 event(s)" in confirmation.text

    fields = {"action": action, "expected_count": 3, "reason": "fixed", **filters}
    result = operator.submit("/handler/all", confirmation, **fields)
    assert "3 event(s)." in result.text
    assert count_dead(console_anywhere) == 1
    assert count_dead(console_anywhere, THEIRS) == 1


def test_a_changed_count_is_refused_and_asked_again(
    console_anywhere: ConsoleService, operator: Visitor
) -> None:
    """N4: if more events have failed since the confirmation, the action is refused."""
    confirmation = operator.get("/handler/confirm", action="retry", name="mailer")
    fail_events(console_anywhere, 2)
    fields = {"action": "retry", "name": "mailer", "expected_count": 1, "reason": "fixed"}
    refused = operator.submit("/handler/all", confirmation, **fields)

    assert refused.status == 409
    assert "Retry 3 event(s)" in refused.text
    assert count_dead(console_anywhere) == 3


def test_a_handler_is_paused_for_all_tenants_only_by_their_operator(
    console: ConsoleService,
) -> None:
    """K2: an operator of one tenant cannot pause a handler, which belongs to all tenants."""
    tenant_operator = console.sign_in(tenant_id=OURS)
    page = tenant_operator.get("/handler", name="mailer")
    assert "Pause for all tenants" not in page.text
    assert tenant_operator.submit("/handler/pause", page, name="mailer").status == 403

    operator = console.sign_in()
    page = operator.get("/handler", name="mailer", tenant=OURS)
    paused = operator.submit("/handler/pause", page, name="mailer", reason="a fix", tenant=OURS)
    assert "Paused." in paused.text
    assert "a fix" in paused.text
    resumed = operator.submit("/handler/resume", paused, name="mailer", tenant=OURS)
    assert "Resumed." in resumed.text


def test_a_reader_sees_no_handlers(console: ConsoleService) -> None:
    """N2: the pages of handlers require the right to operate."""
    reader = console.sign_in(tenant_id=OURS, rights=["read"])
    assert "no acme" not in reader.get("/handlers").html
    assert "/console/handlers" not in reader.get("/").html
    assert reader.get("/handler", name="mailer").status in (403, 404)
    for path in ("/handler/entry", "/handler/confirm"):
        fields = {"name": "mailer", "event_id": f"{OURS}-dead", "action": "retry"}
        assert reader.get(path, **fields).status == 403


def test_a_prune_is_counted_and_confirmed(console: ConsoleService) -> None:
    """N4: the page counts the entries, and without that count and a reason nothing is deleted."""
    operator = console.sign_in()
    assert "/console/handler/prune" in operator.get("/handler", name="mailer").html
    confirmation = operator.get("/handler/prune", name="mailer", before="2096-01-01T00:00:00Z")
    assert "This deletes 2 entries" in confirmation.text
    fields = {"name": "mailer", "before": "2096-01-01T00:00:00Z", "expected_count": 2}
    for change in ({"expected_count": 3, "reason": "x"}, {"reason": ""}):
        refused = operator.submit("/handler/prune", confirmation, **(fields | change))
        assert refused.status in (400, 409)
        assert 'role="alert"' in refused.html
    result = operator.submit("/handler/prune", confirmation, **fields, reason="disk space")
    assert "Deleted the entries of 2 event(s)." in result.text
    assert "disk space" in operator.get("/journal").text
    assert operator.get("/handler/prune", name="mailer", before="soon").status == 400


def test_a_reset_is_planned_and_confirmed(console: ConsoleService) -> None:
    """N4, G9: the page shows the entries to delete for each tenant, and requires a reason."""
    operator = console.sign_in()
    form = operator.get("/handler/reset", name="mailer")
    assert "Shared up to" not in form.text  # a plan reads every stream of the handler
    confirmation = operator.get(
        "/handler/reset", name="mailer", affected=THEIRS, position=0, plan="yes"
    )
    assert "done 1, dead 1" in confirmation.text or "dead 1, done 1" in confirmation.text
    fields = {"name": "mailer", "affected": THEIRS, "position": 0, "expected_count": 2}
    refused = operator.submit("/handler/reset", confirmation, **(fields | {"expected_count": 1}))
    assert refused.status in (400, 409)
    assert "This deletes 2 entries" in refused.text
    result = operator.submit("/handler/reset", confirmation, **fields, reason="restored")
    assert "Deleted the entries of 2 event(s)." in result.text
    assert count_dead(console, THEIRS) == 0
    assert count_dead(console) == 1
    tenant_operator = console.sign_in(tenant_id=OURS)
    page = tenant_operator.get("/handler", name="mailer")
    assert "/console/handler/reset" not in page.html
    assert tenant_operator.submit("/handler/reset", page, **fields, reason="mine").status == 403
    assert tenant_operator.get("/handler/reset", name="mailer", plan="yes").status == 403


def test_the_cursors_of_workers_are_displayed(console: ConsoleService) -> None:
    """N1: the page shows the cursor of each worker, with its lag in events and in time."""
    log = console.service.view(OURS)
    identity, head = log.identity(), log.head()
    cursor = LogCursor(identity.log_id, identity.epoch, head, log.store.event_id_at(head) or "")
    with closing(console.service.registry()) as registry:
        source = f"log:{identity.log_id}:{OURS}"
        registry.move_cursor(MAILER, source, msgspec.json.encode(cursor).decode())
    log.append([NewEvent("noted", {}), NewEvent("noted", {})])
    operator = console.sign_in(tenant_id=OURS)
    page = operator.get("/handler", name="mailer").text

    assert re.search(rf"{OURS} {head} 2 [\d.,]+ m?s ", page), page
    assert re.search(rf"mailer ready .* {head} 2 [\d.,]+ m?s ", operator.get("/handlers").text)
    assert "No worker of this handler" in operator.get("/handler", name="stopped").text
