"""A visit of the console with a browser, which records everything that must not happen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Response

from seriatim.console.page import PREFIX

AA = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
TIMEOUT_MS = 30_000
_PAGES_MAX = 80
_PER_PATH = 3  # links to one page that differ in their parameters
_REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error("policy violated: " + event.violatedDirective + " by " + event.blockedURI);
});
"""
_FIND_UNREACHABLE = """
[...document.querySelectorAll("a[href], button, input, select, textarea, summary, [role=button]")]
  .filter((control) => control.checkVisibility() && control.type !== "hidden")
  .filter((control) => control.tabIndex < 0)
  .map((control) => control.outerHTML.slice(0, 200))
"""


class Visit:
    """One visitor's browser, with cookies of its own."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self.address = address
        self.context = browser.new_context(base_url=address, **options)
        self.context.set_default_timeout(TIMEOUT_MS)
        self.context.add_init_script(_REPORT_VIOLATIONS)
        self.problems: list[str] = []
        self.page = self.open_page()

    def open_page(self) -> Page:
        """Open another page of this visitor."""
        page = self.context.new_page()
        page.on("console", self._record_message)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self._check_host(request.url))
        return page

    def _record_message(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problems.append(f"{self.page.url}: {message.text}")

    def _check_host(self, url: str) -> None:
        if not url.startswith((self.address, "data:", "blob:", "about:")):
            self.problems.append(f"a request to another host: {url}")

    def sign_in(self, token: str) -> None:
        """Sign in through the form."""
        self.goto("/console/sign-in")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url("**/console/")

    def goto(self, path: str) -> Response:
        """Load an address."""
        response = self.page.goto(path)
        assert response is not None
        return response

    def links(self) -> list[str]:
        """Return the addresses of the console that the page links to."""
        addresses = []
        for link in self.page.locator("a[href]").all():
            href = link.get_attribute("href") or ""
            path = urlsplit(href).path
            if path.startswith(f"{PREFIX}/") and path != f"{PREFIX}/sign-in":
                addresses.append(href)
        return addresses

    def walk(self, start: str = "/console/") -> Iterator[str]:
        """Load every page that links lead to, and yield its address while it is loaded.

        Pages with parameters are loaded with a few of them: a list links to many events.
        """
        queue, seen, counts = [start], {start}, Counter[str]()
        while queue and sum(counts.values()) < _PAGES_MAX:
            address = queue.pop(0)
            path = urlsplit(address).path
            if counts[path] >= _PER_PATH:
                continue
            counts[path] += 1
            response = self.goto(address)
            assert response.status == 200, (address, response.status)
            new = [link for link in self.links() if link not in seen]
            seen.update(new)
            queue += new
            yield address

    def accessibility_problems(self) -> list[str]:
        """Return the findings of an accessibility check at the level AA."""
        violations = Axe().run(self.page, options=AA).response["violations"]
        return [
            f"{violation['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for violation in violations
            for node in violation["nodes"]
        ]

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        pixels: int = self.page.evaluate(script)
        return pixels

    def unreachable(self) -> list[str]:
        """Return the visible controls that the Tab key does not reach."""
        controls: list[str] = self.page.evaluate(_FIND_UNREACHABLE)
        return controls

    def is_hacked(self) -> bool:
        """Return whether a script in the contents of an event has run."""
        return bool(self.page.evaluate("window.hacked !== undefined"))

    def close(self) -> None:
        """Close the browser's windows."""
        self.context.close()
