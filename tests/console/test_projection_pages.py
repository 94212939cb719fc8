"""The pages of projections: status, failures, and actions with a reason."""

from __future__ import annotations

import pytest

from seriatim.core.event import NewEvent
from tests.console.console_service import ConsoleService, Visitor
from tests.service.tenant_data import OURS, SECRET, THEIRS


@pytest.fixture
def operator(console_anywhere: ConsoleService) -> Visitor:
    """An operator of one tenant."""
    return console_anywhere.sign_in(tenant_id=OURS)


def test_a_projection_has_a_page_with_its_failures(operator: Visitor) -> None:
    """N1: the page shows the status, the lag, and each failure with a link to its event."""
    assert "/console/projection?name=seats" in operator.get("/projections").html
    page = operator.get("/projection", name="seats")

    assert page.status == 200
    assert "running" in page.text
    assert "lag in events" in page.text
    assert "key parked" in page.text
    assert "/console/event?id=" in page.html
    assert SECRET not in page.html


def test_a_projection_is_paused_and_resumed(
    console_anywhere: ConsoleService, operator: Visitor
) -> None:
    """N4: a projection is paused and resumed, and the journal records the reasons."""
    page = operator.get("/projection", name="seats")
    paused = operator.submit("/projection/pause", page, name="seats", reason="a deployment")
    assert "Paused." in paused.text
    [standing] = console_anywhere.service.view(OURS).projections.status()
    assert standing.status == "paused"

    resumed = operator.submit("/projection/resume", paused, name="seats", reason="done")
    assert "Resumed." in resumed.text
    [standing] = console_anywhere.service.view(OURS).projections.status()
    assert standing.status == "ready"
    journal = operator.get("/journal").text
    assert "a deployment" in journal
    assert "projection_paused" in journal


def test_one_failure_is_retried_or_skipped(
    console_anywhere: ConsoleService, operator: Visitor
) -> None:
    """N4: retrying and skipping affect the one failure that the form names."""
    page = operator.get("/projection", name="seats")
    retried = operator.submit("/projection/retry", page, name="seats", position=1)
    assert "Retried 1 event(s)." in retried.text
    assert "retried next" in retried.text

    skipped = operator.submit("/projection/skip", page, name="seats", position=1, reason="known")
    assert "Skipped 1 event(s)." in skipped.text
    [failure] = console_anywhere.service.view(OURS).projections.failures("seats")
    assert failure.status == "passed"


def test_all_failures_are_retried_after_a_confirmation(operator: Visitor) -> None:
    """N4: the confirmation names the number of failures, and a reason is required."""
    confirmation = operator.get("/projection/retry-all", name="seats")
    assert "This retries 1 failed event(s)." in confirmation.text

    fields = {"name": "seats", "expected_count": 1}
    refused = operator.submit("/projection/retry-all", confirmation, **fields)
    assert refused.status == 400
    assert "reason" in refused.text
    assert 'role="alert"' in refused.html
    result = operator.submit("/projection/retry-all", confirmation, **fields, reason="fixed")
    assert "Retried 1 event(s)." in result.text


def test_another_number_of_failures_is_refused(operator: Visitor) -> None:
    """N4: nothing is done if the number has changed since the confirmation."""
    confirmation = operator.get("/projection/retry-all", name="seats")
    fields = {"name": "seats", "expected_count": 7, "reason": "fixed"}
    refused = operator.submit("/projection/retry-all", confirmation, **fields)

    assert refused.status == 409
    assert "would affect 1, not 7" in refused.text


def test_a_reader_sees_no_failures_and_may_not_act(console: ConsoleService) -> None:
    """N2: actions require the right to operate, also when a form is forged."""
    reader = console.sign_in(tenant_id=OURS, rights=["read"])
    page = reader.get("/projection", name="seats")
    assert page.status == 200
    assert 'action="/console/projection' not in page.html

    token = console.sign_in(tenant_id=OURS).get("/projection", name="seats")
    assert reader.submit("/projection/pause", token, name="seats").status == 403
    [standing] = console.service.view(OURS).projections.status()
    assert standing.status == "ready"


def test_a_forged_action_is_refused(console: ConsoleService) -> None:
    """N2: a form without the session's request token does nothing."""
    operator = console.sign_in(tenant_id=OURS)
    assert operator.submit("/projection/pause", name="seats").status == 403
    [standing] = console.service.view(OURS).projections.status()
    assert standing.status == "ready"


def test_another_tenants_projections_are_not_visible(console: ConsoleService) -> None:
    """K2: a tenant named in a form or an address does not extend the rights of a token."""
    operator = console.sign_in(tenant_id=OURS)
    page = operator.get("/projection", name="seats")
    assert operator.get("/projection", name="seats", tenant=THEIRS).status == 403
    assert operator.submit("/projection/pause", page, name="seats", tenant=THEIRS).status == 403
    assert operator.get("/projection", name="absent").status == 404
    assert operator.get("/projection").status == 404


@pytest.mark.parametrize("position", ["", "-1", "x", "1e3", "9" * 40, "١"])
def test_malformed_positions_are_refused(console: ConsoleService, position: str) -> None:
    """L3: a malformed position in a form is refused."""
    operator = console.sign_in(tenant_id=OURS)
    page = operator.get("/projection", name="seats")
    response = operator.submit("/projection/retry", page, name="seats", position=position)

    assert response.status == 400


def test_an_address_puts_no_words_on_a_page(console: ConsoleService) -> None:
    """N3: notices come from a fixed list, not from the address."""
    page = console.sign_in(tenant_id=OURS).get(
        "/projection", name="seats", done="retried", count="<b>send money</b>", unrecorded="x"
    )
    assert "send money" not in page.text
    assert "Retried some event(s)." in page.text
    assert "could not be recorded" in page.text


def test_lag_in_time_is_the_age_of_the_first_waiting_event(console: ConsoleService) -> None:
    """N1: the page shows the lag in time while events of the tenant are pending."""
    console.service.view(OURS).append([NewEvent("noted", {})])
    page = console.sign_in(tenant_id=OURS).get("/projection", name="seats")

    assert " ms lag in time" in page.text or " s lag in time" in page.text


def test_a_refused_job_is_reported_beside_its_form(console: ConsoleService) -> None:
    """N4: a job for a projection that the service was not started with is refused."""
    operator = console.sign_in()
    page = operator.get("/projection", name="seats", tenant=OURS)
    assert "Verification and rebuild" in page.text
    fields = {"name": "seats", "tenant": OURS, "kind": "verify"}
    refused = operator.submit("/projection/job", page, **fields)

    assert refused.status in (400, 404)
    assert 'role="alert"' in refused.html
    assert operator.get("/job", id="absent").status == 404
    tenant_operator = console.sign_in(tenant_id=OURS)
    form = tenant_operator.get("/projection", name="seats")
    assert "Verification and rebuild" not in form.text
    assert tenant_operator.submit("/projection/job", form, **fields).status == 403


def test_accepting_differences_is_confirmed_with_a_reason(console: ConsoleService) -> None:
    """N4, I4: the confirmation shows what the last job has found, and a reason is required."""
    store = console.service.jobs.store
    job = store.add("verify", "seats", OURS, actor_id="root", reason="")
    store.update(job.job_id, ())
    difference = {"table": "seats", "key": {"seat": "<b>12A</b>"}}
    result = {"equal": False, "difference": difference}
    store.finish(job.job_id, "succeeded", result=result, error="")
    operator = console.sign_in()
    verified = operator.get("/job", id=job.job_id, tenant=OURS)
    confirmation = operator.get(verified.link("Rebuild and accept differences"))
    assert "differ from their log" in confirmation.text
    assert "&lt;b&gt;12A" in confirmation.html
    fields = {"name": "seats", "tenant": OURS, "kind": "rebuild_accept"}
    refused = operator.submit("/projection/job", confirmation, **fields, reason=" ")
    assert refused.status == 400
    assert "is required to accept differences" in refused.text
    assert "Rebuild seats and accept differences" in refused.text

    tenant_operator = console.sign_in(tenant_id=OURS)
    assert tenant_operator.get("/projection/accept", name="seats").status == 403
    assert operator.get("/projection/accept", name="absent", tenant=OURS).status == 404


def test_failures_have_pages(console: ConsoleService, monkeypatch: pytest.MonkeyPatch) -> None:
    """N1, N5: a list of failures continues on the next page, whose position is in its address."""
    monkeypatch.setattr("seriatim.console.projections._FAILURES_MAX", 1)
    operator = console.sign_in(tenant_id=OURS)
    first = operator.get("/projection", name="seats")
    second = operator.get(first.link("Next page"))

    assert 'name="position" value="1"' in first.html
    assert "First page" not in first.html
    assert second.status == 200
    assert "No failures." in second.text
    assert 'name="position" value="1"' in operator.get(second.link("First page")).html
    assert operator.get("/projection", name="seats", after="x").status == 400


def test_a_job_has_a_page(console: ConsoleService) -> None:
    """N1: the page shows the state, the reason and the actor of a job."""
    job = console.service.jobs.store.add(
        "verify", "seats", OURS, actor_id="root", reason="an audit"
    )
    operator = console.sign_in()
    assert job.job_id in operator.get("/projection", name="seats", tenant=OURS).text
    page = operator.get("/job", id=job.job_id)

    assert page.status == 200
    for text in ("queued", "an audit", "root"):
        assert text in page.text
    assert 'data-refresh="2"' in page.html
