"""The pages of access: tokens, quotas, and the operators' journal."""

from __future__ import annotations

import re

import pytest

from tests.console.console_service import ConsoleService, VisitedPage, Visitor
from tests.service.http_calls import Caller
from tests.service.tenant_data import OURS, THEIRS

HOSTILE = "<script>alert(1)</script>"
_NEW_TOKEN = re.compile(r'id="new-token" class="secret">([^<]+)<')


@pytest.fixture
def operator(console: ConsoleService) -> Visitor:
    """An operator of all tenants."""
    return console.sign_in(subject="root")


def create(operator: Visitor, page: VisitedPage, **fields: str) -> VisitedPage:
    """Submit the form for a new token."""
    form = {"subject": "billing", "token_tenant": OURS, "right_read": "yes", **fields}
    return operator.submit("/access/create", page, **form)


def test_a_token_is_created_shown_once_and_revoked(
    console: ConsoleService, operator: Visitor
) -> None:
    """K1: the text of a new token is displayed once, and a revoked token is refused."""
    created = create(operator, operator.get("/access"), note=HOSTILE, days="7", reason="new team")
    match = _NEW_TOKEN.search(created.html)
    assert match is not None
    assert "no-store" in created.headers["cache-control"]
    assert Caller(console.port, match[1])("GET", "/v1/token").json["rights"] == ["read"]

    page = operator.get("/access")
    assert match[1] not in page.html
    assert HOSTILE not in page.html
    assert "&lt;script&gt;alert(1)" in page.html
    token_id = match[1].split("_")[1]
    confirmation = operator.get("/access/revoke", token_id=token_id)
    revoked = operator.submit("/access/revoke", confirmation, token_id=token_id, reason="leaked")
    assert "The token is revoked." in revoked.text
    journal = operator.get("/journal").text
    assert "token_created" in journal
    assert "leaked" in journal
    assert match[1] not in journal


@pytest.mark.parametrize(
    ("field", "value"),
    [("days", "-1"), ("days", "soon"), ("days", "nan"), ("token_tenant", ""), ("types", "a.*b")],
)
def test_a_malformed_token_is_refused_beside_its_form(
    operator: Visitor, field: str, value: str
) -> None:
    """L3: the error is displayed with the form, which keeps its values."""
    refused = create(operator, operator.get("/access"), **{field: value})

    assert refused.status == 400
    assert 'role="alert"' in refused.html
    assert 'value="billing"' in refused.html


def test_an_operator_grants_no_right_beyond_its_own(console: ConsoleService) -> None:
    """K1: a token without `append` cannot create one that has it."""
    operator = console.sign_in(rights=["read", "operate"])
    page = operator.get("/access")
    assert "right_append" not in page.html

    refused = create(operator, page, right_append="yes")
    assert refused.status == 403
    assert "lacks the right append" in refused.text


def test_a_quota_is_set_and_removed(console: ConsoleService, operator: Visitor) -> None:
    """K3, N4: the page shows the quota of a tenant, and the journal its changes."""
    page = operator.get("/access")
    fields = {"quota_tenant": OURS, "events_per_s": "50", "reason": "a trial"}
    done = operator.submit("/access/quota", page, **fields)
    assert "The quota is set." in done.text
    [quota] = console.service.access.quotas()
    assert (quota.tenant_id, quota.events_per_s, quota.bytes_per_s) == (OURS, 50.0, 0.0)
    assert "50.0" in done.text
    assert "a trial" in operator.get("/journal", affected=OURS).text
    assert "a trial" not in operator.get("/journal", affected=THEIRS).text

    removed = operator.submit("/access/quota/remove", done, quota_tenant=OURS)
    assert "The quota is removed" in removed.text
    assert console.service.access.quotas() == []
    bad = operator.submit("/access/quota", page, **fields | {"events_per_s": "many"})
    assert bad.status == 400
    assert 'role="alert"' in bad.html


@pytest.mark.parametrize("token", [{"tenant_id": OURS}, {"rights": ["read"]}])
def test_tokens_and_quotas_are_for_operators_of_all_tenants(
    console: ConsoleService, token: dict[str, str]
) -> None:
    """K2: an operator of one tenant and a reader of all tenants neither see nor change them."""
    visitor = console.sign_in(**token)
    page = visitor.get("/access")
    assert page.status == (200 if "tenant_id" in token else 403)
    assert "tester" not in page.text.partition("Access")[2].partition("Sign out")[2]

    form = visitor.get("/projection", name="seats") if "tenant_id" in token else None
    for path in ("/access/create", "/access/revoke", "/access/quota", "/access/quota/remove"):
        fields = {"token_tenant": OURS, "quota_tenant": OURS, "token_id": "x", "right_read": "yes"}
        assert visitor.submit(path, form, **fields).status == 403


def test_the_journal_of_a_tenant_is_its_own(console: ConsoleService, operator: Visitor) -> None:
    """K2: an operator of one tenant sees only the actions on that tenant."""
    for tenant in (OURS, THEIRS):
        page = operator.get("/projection", name="seats", tenant=tenant)
        fields = {"name": "seats", "tenant": tenant, "reason": f"because {tenant}"}
        assert "Paused." in operator.submit("/projection/pause", page, **fields).text
    assert "because glob" in operator.get("/journal").text

    journal = console.sign_in(tenant_id=OURS).get("/journal")
    assert "because acme" in journal.text
    assert "because glob" not in journal.text
    assert console.sign_in(tenant_id=OURS, rights=["read"]).get("/journal").status == 403


def test_the_journal_continues_on_the_next_page(console: ConsoleService, operator: Visitor) -> None:
    """N5: the journal lists the newest actions first, and links to a bounded next page."""
    page = operator.get("/access")
    for number in range(51):
        fields = {"quota_tenant": OURS, "events_per_s": "1", "reason": f"number {number}."}
        operator.submit("/access/quota", page, **fields)
    newest = operator.get("/journal")
    assert "number 50." in newest.text
    assert "number 0." not in newest.text
    [address] = re.findall(r'href="/console(/journal\?[^"]*before=[^"]*)"', newest.html)
    older = operator.get(address.replace("&amp;", "&"))
    assert "number 0." in older.text
    assert "Newest" in older.text
