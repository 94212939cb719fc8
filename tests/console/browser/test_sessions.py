"""Signing in, links, the keyboard and tenants in a browser."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.console.browser.conftest import OPEN_VISIT
from tests.service.service_process import ServiceProcess


def test_the_keyboard_is_enough_to_sign_in_and_out(
    visit: OPEN_VISIT, service: ServiceProcess
) -> None:
    """N2: a visitor signs in and out with the keyboard alone."""
    visitor = visit(signed_in=False)
    visitor.goto("/console/sign-in")
    expect(visitor.page.get_by_label("Token")).to_be_focused()
    visitor.page.keyboard.type(service.caller().token or "")
    visitor.page.keyboard.press("Enter")
    visitor.page.wait_for_url("**/console/")

    focused = press_tab_until(visitor.page, "Sign out")
    assert focused[0] == "Skip to content"
    assert "Overview" in focused
    visitor.page.keyboard.press("Enter")
    visitor.page.wait_for_url("**/console/sign-in")


def press_tab_until(page: Page, name: str) -> list[str]:
    """Press Tab until an element with this text has the focus; return the texts on the way."""
    texts: list[str] = []
    for _ in range(60):
        page.keyboard.press("Tab")
        texts.append(page.evaluate("document.activeElement.textContent.trim()"))
        if texts[-1] == name:
            return texts
    raise AssertionError(texts)


def test_a_wrong_token_is_explained(visit: OPEN_VISIT) -> None:
    """N2: the form reports the refusal to screen readers, and does not repeat the token."""
    visitor = visit(signed_in=False, errors=True)
    visitor.goto("/console/sign-in")
    visitor.page.get_by_label("Token").fill("srt_wrong")
    visitor.page.get_by_role("button", name="Sign in").click()

    expect(visitor.page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
    assert "srt_wrong" not in visitor.page.content()
    assert visitor.accessibility_problems() == []


def test_a_shared_link_leads_to_its_page(visit: OPEN_VISIT, service: ServiceProcess) -> None:
    """N5: a visitor without a session sees the page of the link after signing in."""
    visitor = visit(signed_in=False)
    visitor.goto("/console/?tenant=glob")
    visitor.page.get_by_label("Token").fill(service.caller().token or "")
    visitor.page.get_by_role("button", name="Sign in").click()
    visitor.page.wait_for_url("**/console/?tenant=glob")

    expect(visitor.page.locator("main")).to_contain_text("glob-4")


def test_a_link_on_another_site_opens_the_page(visit: OPEN_VISIT, service: ServiceProcess) -> None:
    """N2, N5: a signed-in visitor follows a link on another site without signing in again."""
    visitor = visit(errors=True)  # a page of another site is another host
    other = f"http://localhost:{service.port}/other"
    visitor.page.route(
        other,
        lambda route: route.fulfill(
            content_type="text/html",
            body=f'<a href="{service.at}/console/?tenant=glob">the log</a>',
        ),
    )
    visitor.goto(other)
    visitor.page.get_by_text("the log").click()
    visitor.page.wait_for_url("**/console/?tenant=glob")

    expect(visitor.page.locator("h1")).to_have_text("Overview")


def test_a_form_on_another_site_is_refused(visit: OPEN_VISIT, service: ServiceProcess) -> None:
    """N2: a form on another site can sign a visitor neither in nor out."""
    visitor = visit(errors=True)
    other = f"http://localhost:{service.port}/other"
    body = "".join(
        f'<form method="post" action="{service.at}/console/{path}">'
        f'<input name="token" value="{service.caller().token}"><button>{path}</button></form>'
        for path in ("sign-in", "sign-out")
    )
    visitor.page.route(other, lambda route: route.fulfill(content_type="text/html", body=body))
    for path in ("sign-in", "sign-out"):
        visitor.goto(other)
        visitor.page.get_by_role("button", name=path).click()
        expect(visitor.page.get_by_role("alert")).to_contain_text("another site")

    assert visitor.goto("/console/").status == 200
    assert visitor.page.url.endswith("/console/")


def test_the_back_button_shows_the_previous_view(visit: OPEN_VISIT) -> None:
    """N5: the back button shows the previous view, which its address names."""
    visitor = visit()
    visitor.goto("/console/?tenant=acme")
    visitor.goto("/console/?tenant=glob")
    visitor.page.go_back()

    assert visitor.page.url.endswith("?tenant=acme")
    expect(visitor.page.get_by_label("Tenant")).to_have_value("acme")


def test_a_visitor_switches_tenants(visit: OPEN_VISIT) -> None:
    """N2: a token for all tenants chooses one in the header, and the address names the choice."""
    visitor = visit()
    visitor.page.get_by_label("Tenant").fill("glob")
    visitor.page.keyboard.press("Enter")
    visitor.page.wait_for_url("**/console/?tenant=glob")
    text = visitor.page.locator("main").inner_text()

    assert "glob-4" in text
    assert "acme" not in text


def test_another_tenant_is_refused(visit: OPEN_VISIT) -> None:
    """N2: the token of a tenant is refused for another tenant, on an accessible page."""
    visitor = visit(token={"subject": None, "tenant_id": "glob", "rights": ["read"]}, errors=True)
    refused = visitor.goto("/console/?tenant=acme")

    assert refused.status == 403
    expect(visitor.page.get_by_role("alert")).to_contain_text("another tenant")
    assert visitor.accessibility_problems() == []
    for width in (360, 3840):
        visitor.page.set_viewport_size({"width": width, "height": 800})
        assert visitor.overflow() == 0


def test_an_expired_token_ends_the_visit(visit: OPEN_VISIT) -> None:
    """N2: after the token has expired, the next page is the sign-in form."""
    visitor = visit(token={"expires_in_s": 2.5})
    visitor.page.wait_for_timeout(2600)
    visitor.page.get_by_role("link", name="Overview").click()

    expect(visitor.page.get_by_label("Token")).to_be_visible()


def test_scripts_cannot_read_the_session(visit: OPEN_VISIT) -> None:
    """N2: scripts cannot read the session cookie."""
    visitor = visit()

    assert visitor.page.evaluate("document.cookie") == ""
    [cookie] = visitor.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")


def test_the_policy_forbids_inline_scripts(visit: OPEN_VISIT) -> None:
    """N3: the policy blocks an injected script or style, and the browser reports it."""
    visitor = visit(errors=True)
    visitor.page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.hacked = 1";
          document.body.append(script);
          document.body.setAttribute("style", "color: red");
          const image = document.createElement("img");
          image.src = "http://127.0.0.2:9/x.png";
          document.body.append(image);
        }"""
    )
    visitor.page.wait_for_timeout(300)
    violated = [visitor for visitor in visitor.problems if "policy violated" in visitor]

    assert not visitor.is_hacked()
    assert sum("script-src" in text for text in violated) == 1
    assert sum("style-src" in text for text in violated) == 1
    assert sum("img-src" in text for text in violated) == 1
