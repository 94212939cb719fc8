"""Every action of the console, clicked in a browser on a real log of each backend."""

from __future__ import annotations

import itertools
import re
from contextlib import closing

from playwright.sync_api import Page, expect

import seriatim
from seriatim.core.event import NewEvent
from seriatim.core.handler import Delivery
from seriatim.delivery.entries import EntryFilter
from seriatim.factory import open_read_model, open_registry, read_model_url, registry_url
from seriatim.pipeline.builtin_projections import activity
from tests.console.browser.conftest import OPEN_VISIT
from tests.console.browser.console_visit import Visit
from tests.service.service_process import ServiceProcess
from tests.service.tenant_data import MAILER, OURS, THEIRS

SPARK_MS = 240_000  # one start of Spark, on a busy machine
REVOKED_MS = 10_000
_numbers = itertools.count(1)


def add_dead_letters(url: str, count: int, tenant: str = OURS) -> str:
    """Append events of a new type that the handler has failed to process; return the type."""
    event_type = f"mail.kind-{next(_numbers)}"
    with (
        seriatim.open(url, tenant_id=tenant) as log,
        closing(open_registry(registry_url(url))) as registry,
    ):
        for number in range(count):
            stream = ("mail", f"{event_type}-{number}")
            result = log.append([NewEvent(event_type, {}, stream=stream)])
            delivery = Delivery.of(result.records[0], log=log.identity())
            [claim] = registry.claim_all(MAILER, [delivery])
            registry.mark_failed(MAILER, claim, "no mail server")
    return event_type


def count_dead(url: str, event_type: str, tenant: str = OURS) -> int:
    """Return how many events of a type are dead letters."""
    selection = EntryFilter(
        handler="mailer", tenant_id=tenant, event_type=event_type, status="dead"
    )
    with closing(open_registry(registry_url(url))) as registry:
        return sum(visitor.count for visitor in registry.count_entries(selection))


def open_handler(visit: Visit, event_type: str) -> Page:
    """Open the page of the handler with the events of one type, as a visitor filters them."""
    visit.goto(f"/console/handler?tenant={OURS}&name=mailer")
    visit.page.get_by_label("Event type").fill(event_type)
    visit.page.get_by_role("button", name="Filter").click()
    visit.page.wait_for_url(f"**event_type={event_type}**")
    return visit.page


def click(page: Page, label: str, reason: str = "") -> None:
    """Give a reason in the form of a button, and click the button."""
    form = page.locator("form", has=page.get_by_role("button", name=label, exact=True)).first
    if reason:
        form.get_by_label("Reason").fill(reason)
    form.get_by_role("button", name=label, exact=True).click()


def expect_notice(page: Page, text: str) -> None:
    """Wait for the notice about an action."""
    expect(page.get_by_role("status").filter(has_text=text)).to_be_visible()


def test_projections_are_operated(visit: OPEN_VISIT) -> None:
    """N4, I7: a projection is paused, resumed, retried and skipped, as the journal records."""
    visitor = visit()
    page = visitor.page
    visitor.goto(f"/console/projection?tenant={OURS}&name=seats")
    click(page, "Pause", "a deployment")
    expect_notice(page, "Paused.")
    click(page, "Resume", "it is deployed")
    expect_notice(page, "Resumed.")

    page.get_by_role("link", name="Retry all 1").click()
    page.get_by_role("link", name="Cancel").click()
    page.get_by_role("link", name="Retry all 1").click()
    click(page, "Retry 1 event(s)", "the seat exists")
    expect_notice(page, "Retried 1 event(s).")
    page.get_by_text("Retry or skip").click()
    click(page, "Retry", "once more")
    expect_notice(page, "Retried 1 event(s).")
    page.get_by_text("Retry or skip").click()
    click(page, "Skip", "the seat was sold twice")
    expect_notice(page, "Skipped 1 event(s).")
    expect(page.get_by_text("skipped by an operator")).to_be_visible()

    visitor.goto(f"/console/journal?tenant={OURS}&affected={OURS}")
    rows = page.locator("tbody tr").all_inner_texts()
    reasons = [row.rsplit("\t", 1)[1] for row in rows[:5]]
    assert reasons == [
        "the seat was sold twice",
        "once more",
        "the seat exists",
        "it is deployed",
        "a deployment",
    ]


def test_dead_letters_are_retried_and_skipped(visit: OPEN_VISIT, service: ServiceProcess) -> None:
    """N4, G5: a row acts on one event, and a confirmed count on all events that match a filter."""
    event_type = add_dead_letters(service.url, 5)
    visitor = visit(errors=True)  # browsers report refused forms as errors
    page = open_handler(visitor, event_type)
    page.get_by_text("Retry or skip").first.click()
    click(page, "Skip")
    expect(page.get_by_role("alert")).to_contain_text("reason")
    page = open_handler(visitor, event_type)
    page.get_by_text("Retry or skip").first.click()
    click(page, "Skip", "sent by hand")
    expect_notice(page, "Skipped 1 event(s).")
    assert count_dead(service.url, event_type) == 4

    page = open_handler(visitor, event_type)
    page.locator("tbody tr").first.get_by_role("link").first.click()
    click(page, "Retry", "the server is back")
    expect_notice(page, "Retried 1 event(s).")
    assert count_dead(service.url, event_type) == 3

    open_handler(visitor, event_type).get_by_label("State").select_option("dead")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("link", name="Skip all that match").click()
    expect(page.get_by_text("This marks 3 event(s) as done")).to_be_visible()
    click(page, "Skip 3 event(s)", "an old campaign")
    expect_notice(page, "Skipped 3 event(s).")
    assert count_dead(service.url, event_type) == 0


def test_another_count_is_not_confirmed(visit: OPEN_VISIT, service: ServiceProcess) -> None:
    """N4: an action whose count changed during the confirmation is refused with the new count."""
    event_type = add_dead_letters(service.url, 2)
    first, second = visit(errors=True), visit()
    page = open_handler(first, event_type)
    page.get_by_role("link", name="Retry all that match").click()
    other = open_handler(second, event_type)
    other.get_by_text("Retry or skip").first.click()
    click(other, "Skip", "sent by hand")
    expect_notice(other, "Skipped 1 event(s).")

    click(page, "Retry 2 event(s)", "the server is back")
    expect(page.get_by_role("alert")).to_contain_text("would affect 1, not 2")
    assert count_dead(service.url, event_type) == 1
    click(page, "Retry 1 event(s)", "the server is back")
    expect_notice(page, "Retried 1 event(s).")


def test_handlers_are_paused_and_resumed(visit: OPEN_VISIT) -> None:
    """N4, G5: a handler is paused and resumed for all tenants, with a reason that operators see."""
    visitor = visit()
    visitor.goto("/console/handlers")
    visitor.page.get_by_role("link", name="mailer", exact=True).click()
    click(visitor.page, "Pause for all tenants", "the mail server moves")
    expect_notice(visitor.page, "Paused.")
    visitor.page.get_by_role("link", name="Handlers").click()
    expect(visitor.page.get_by_role("row", name="mailer")).to_contain_text("the mail server moves")
    visitor.page.get_by_role("link", name="mailer", exact=True).click()
    click(visitor.page, "Resume for all tenants", "it has moved")
    expect_notice(visitor.page, "Resumed.")


def test_handlers_are_pruned_and_reset(visit: OPEN_VISIT) -> None:
    """N4, G9: pruning and resetting name the number of deleted entries, and require a reason."""
    visitor = visit()
    page = visitor.page
    visitor.goto("/console/handler?name=mailer")
    page.get_by_role("link", name="Reset to a restored log").click()
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("row", name=THEIRS)).to_contain_text("none")
    click(page, "Reset, and delete 0 entries", "a rehearsal")
    expect_notice(page, "The handler is reset. Deleted the entries of 0 event(s).")

    page.get_by_role("link", name="Prune finished events").click()
    page.get_by_label("Finished before").fill("2096-01-01T00:00:00Z")
    page.get_by_role("button", name="Count").click()
    button = page.get_by_role("button", name=re.compile(r"Delete \d+ entries"))
    page.get_by_label("Reason").fill("disk space")
    button.click()
    expect_notice(page, "Deleted the entries of")
    page.get_by_role("link", name="Prune finished events").click()
    page.get_by_label("Finished before").fill("2096-01-01T00:00:00Z")
    page.get_by_role("button", name="Count").click()
    expect(page.get_by_text("No finished event matches.")).to_be_visible()


def test_projections_are_verified_and_rebuilt(visit: OPEN_VISIT, service: ServiceProcess) -> None:
    """N4, I4: a click starts a job, and its page is refreshed until the result is known."""
    url = service.url
    with (
        seriatim.open(url) as log,
        closing(open_read_model(read_model_url(url, OURS))) as model,
    ):
        model.create_projection(activity, OURS, log.identity())
    kind = "Rebuild" if url.startswith("sqlite") else "Verify"  # each would start Spark
    visitor = visit()
    visitor.goto(f"/console/projection?tenant={OURS}&name=activity")
    visitor.page.get_by_label("Reason").last.fill("as every week")
    visitor.page.get_by_role("button", name=kind, exact=True).click()
    expect_notice(visitor.page, "The job is started.")
    if kind == "Verify":  # the service ends it
        return
    status = visitor.page.locator("#job .mark")
    expect(status).to_have_text("succeeded", timeout=SPARK_MS)
    expect(visitor.page.locator("#job")).to_contain_text('"equal": true')
    visitor.page.get_by_role("link", name="The projection").click()
    expect(visitor.page.get_by_role("row", name=kind.lower())).to_contain_text("succeeded")

    with (
        closing(open_read_model(read_model_url(url, OURS))) as model,
        model.engine.autocommit() as session,
    ):
        session.run("update activity set events = events + 1")
    visitor.page.get_by_role("link", name="Rebuild and accept differences").click()
    visitor.page.get_by_role("link", name="Cancel").click()
    visitor.page.get_by_role("link", name="Rebuild and accept differences").click()
    click(visitor.page, "Rebuild and accept differences", "a row was changed by hand")
    expect_notice(visitor.page, "The job is started.")
    expect(status).to_have_text("succeeded", timeout=SPARK_MS)
    expect(visitor.page.locator("#job")).to_contain_text('"equal": false')
    visitor.goto(f"/console/journal?tenant={OURS}&affected={OURS}")
    first, second = visitor.page.locator("tbody tr").all_inner_texts()[:2]
    assert '"accept":true' in first
    assert "a row was changed by hand" in second


def test_tokens_are_created_and_revoked(visit: OPEN_VISIT) -> None:
    """N2, N4: a new token opens a session, which ends when the token is revoked."""
    visitor, other = visit(), visit(signed_in=False, errors=True)
    page, subject = visitor.page, f"reporting-{next(_numbers)}"
    visitor.goto("/console/access")
    page.get_by_label("Service, empty").fill(subject)
    page.locator("[name=token_tenant]").fill(OURS)
    page.get_by_label("Days until it expires").fill("30")
    click(page, "Create token", "weekly reports")
    expect_notice(page, f"The token of {subject} is created.")
    other.sign_in(page.locator("#new-token").inner_text())
    expect(other.page.get_by_role("heading", name="Overview")).to_be_visible()

    page.get_by_role("row", name=subject).get_by_role("link", name="Revoke").click()
    click(page, "Revoke", "the project ended")
    expect_notice(page, "The token is revoked.")
    expect(page.get_by_role("row", name=subject)).to_contain_text("revoked")

    def read_address() -> str:
        other.goto("/console/events")
        return other.page.url

    for _ in range(REVOKED_MS // 200):
        if "/console/sign-in" in read_address():
            break
        other.page.wait_for_timeout(200)
    expect(other.page.get_by_label("Token")).to_be_visible()


def test_quotas_are_set_and_removed(visit: OPEN_VISIT) -> None:
    """N4: the table lists the quota of a tenant until it is removed."""
    visitor = visit()
    page = visitor.page
    visitor.goto("/console/access")
    page.locator("[name=quota_tenant]").last.fill(THEIRS)
    page.get_by_label("Events per second").fill("1250")
    click(page, "Set quota", "a larger plan")
    expect_notice(page, "The quota is set.")
    row = page.get_by_role("row", name=re.compile(rf"^{THEIRS} 1,250"))
    row.get_by_text("Remove").first.click()
    click(page, "Remove", "the default suffices")
    expect_notice(page, "The quota is removed")
    expect(row).to_have_count(0)


def test_a_reader_finds_no_action_and_cannot_forge_one(
    visit: OPEN_VISIT, service: ServiceProcess
) -> None:
    """N2: a token that only reads sees no action on any page, and a forged form is refused."""
    event_type = add_dead_letters(service.url, 1)
    reader = visit(token={"tenant_id": OURS, "rights": ["read"]}, errors=True)
    reader.goto("/console/projection?name=seats")
    forms = reader.page.locator("form[method=post]").all()
    assert [form.get_attribute("action") for form in forms] == ["/console/sign-out"]
    sent = {
        "projection/pause": "name=seats",
        "projection/job": "name=activity&kind=rebuild_accept",
        "handler/all": f"name=mailer&action=skip&event_type={event_type}&expected_count=1",
        "handler/pause": "name=mailer",
        "handler/prune": "name=mailer&before=2096-01-01T00:00:00Z&expected_count=2",
        "handler/reset": "name=mailer&expected_count=0",
        "access/create": f"token_tenant={OURS}&right_read=yes",
        "access/quota": f"quota_tenant={OURS}&events_per_s=0",
    }
    for path, fields in sent.items():
        assert forge(reader.page, path, f"{fields}&reason=mine") == 403, path
    assert count_dead(service.url, event_type) == 1


def forge(page: Page, path: str, fields: str) -> int:
    """Submit a form that no page contains, with the request token of the session."""
    script = """async ([path, fields]) => {
      const token = document.querySelector("[name=request_token]").value;
      const body = `${fields}&request_token=${encodeURIComponent(token)}`;
      const headers = {"content-type": "application/x-www-form-urlencoded"};
      return (await fetch(`/console/${path}`, {method: "POST", body, headers})).status;
    }"""
    status: int = page.evaluate(script, [path, fields])
    return status


def test_operators_of_two_tenants_are_separate(visit: OPEN_VISIT, service: ServiceProcess) -> None:
    """K2, N2: an operator of one tenant neither sees nor affects events of another tenant."""
    event_type = add_dead_letters(service.url, 1)
    theirs = add_dead_letters(service.url, 1, THEIRS)
    visitor = visit(token={"tenant_id": THEIRS}, errors=True)
    visitor.goto("/console/handler?name=mailer")
    text = visitor.page.locator("main").inner_text()
    assert theirs in text
    assert event_type not in text
    expect(visitor.page.get_by_role("button", name="Pause for all tenants")).to_have_count(0)
    fields = f"name=mailer&action=skip&event_type={event_type}&expected_count=1&reason=x"
    assert forge(visitor.page, "handler/all", f"{fields}&tenant={OURS}") == 403
    assert forge(visitor.page, "handler/all", fields) == 409

    visitor.goto(f"/console/handler?name=mailer&event_type={theirs}")
    visitor.page.get_by_role("link", name="Skip all that match").click()
    click(visitor.page, "Skip 1 event(s)", "sent by hand")
    expect_notice(visitor.page, "Skipped 1 event(s).")
    dead = count_dead(service.url, event_type), count_dead(service.url, theirs, THEIRS)
    assert dead == (1, 0)


def test_links_and_the_back_button_repeat_no_action(
    visit: OPEN_VISIT, service: ServiceProcess
) -> None:
    """N5: the address of a filtered view can be shared, and going back repeats no action."""
    event_type = add_dead_letters(service.url, 2)
    visitor, other = visit(), visit()
    page = open_handler(visitor, event_type)
    other.goto(page.url.removeprefix(service.at))
    expect(other.page.get_by_label("Event type")).to_have_value(event_type)
    expect(other.page.locator("table").first.locator("tbody tr")).to_have_count(2)

    page.get_by_role("link", name="Skip all that match").click()
    click(page, "Skip 2 event(s)", "an old campaign")
    expect_notice(page, "Skipped 2 event(s).")
    page.go_back()
    expect(page.get_by_role("heading", name="Skip all that match")).to_be_visible()
    page.go_back()
    expect(page.get_by_label("Event type")).to_have_value(event_type)
    page.go_forward()
    expect(page.get_by_text("There is nothing to skip.")).to_be_visible()


def test_an_expired_token_performs_no_action(visit: OPEN_VISIT, service: ServiceProcess) -> None:
    """N2: a form sent after the token has expired does nothing and leads to the sign-in form."""
    event_type = add_dead_letters(service.url, 1)
    visitor = visit(token={"tenant_id": OURS, "expires_in_s": 6.0})
    visitor.goto(f"/console/handler/confirm?name=mailer&action=skip&event_type={event_type}")
    expect(visitor.page.get_by_role("button", name="Skip 1 event(s)")).to_be_visible()
    visitor.page.wait_for_timeout(6100)
    click(visitor.page, "Skip 1 event(s)", "too late")

    expect(visitor.page.get_by_label("Token")).to_be_visible()
    assert count_dead(service.url, event_type) == 1


def test_signing_out_ends_the_session(visit: OPEN_VISIT) -> None:
    """N2: after signing out, the back button leads to the sign-in form."""
    visitor = visit(token={"tenant_id": OURS})
    visitor.goto("/console/projection?name=seats")
    visitor.page.get_by_role("button", name="Sign out").click()
    expect(visitor.page.get_by_label("Token")).to_be_visible()
    assert visitor.context.cookies() == []
    visitor.page.go_back()
    expect(visitor.page.get_by_label("Token")).to_be_visible()
