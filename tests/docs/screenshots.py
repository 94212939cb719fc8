"""Take the pictures of the console in docs/assets: `make screenshots`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Page

from seriatim.console.page import PREFIX
from seriatim.console.routes import ROUTES
from tests.fixtures.chromium import run_browser
from tests.service.http_calls import Caller, make_event
from tests.service.service_process import run_service_process

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
PICTURES = {
    "overview": f"{PREFIX}/?tenant=shop",
    "events": f"{PREFIX}/events?tenant=shop",
    "event": f"{PREFIX}/event?tenant=shop&id=order-7-paid",
    "stream": f"{PREFIX}/stream?tenant=shop&type=order&id=7",
}
BYTES_MAX = 200_000
_STEPS = ("placed", "paid", "packed", "shipped")


def fill(caller: Caller) -> None:
    """Append the history of some orders."""
    caller.tenant = "shop"
    for order in range(1, 25):
        for number, step in enumerate(_STEPS[: 1 + order % 4]):
            caused = {"causation_id": f"order-{order}-{_STEPS[number - 1]}"} if number else {}
            event = make_event(
                f"order.{step}",
                {"order": order, "total_cents": 1995 * order, "step": number + 1},
                event_id=f"order-{order}-{step}",
                stream_type="order",
                stream_id=str(order),
                correlation_id=f"checkout-{order}",
                tags=[f"customer:{order % 5}"],
                **caused,
            )
            response = caller.append(event)
            assert response.status == 201, response.body


def take(page: Page, folder: Path) -> list[Path]:
    """Take a picture of each listed page for which the console has a route."""
    known = {PREFIX + route.path for route in ROUTES}
    taken = []
    for name, address in PICTURES.items():
        if address.partition("?")[0] in known:
            page.goto(address)
            taken.append(folder / f"console-{name}.png")
            page.screenshot(path=taken[-1])
    return taken


def take_all(folder: Path) -> list[Path]:
    """Run a service with orders, and write pictures of its console to a folder."""
    with (
        tempfile.TemporaryDirectory() as home,
        run_service_process(f"sqlite:///{home}/shop.db") as service,
        run_browser() as browser,
    ):
        caller = service.caller(subject="operations")
        fill(caller)
        page = browser.new_page(
            base_url=service.at,
            viewport={"width": 1180, "height": 720},
            color_scheme="light",
            reduced_motion="reduce",
        )
        page.goto(f"{PREFIX}/sign-in")
        page.get_by_label("Token").fill(caller.token or "")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"**{PREFIX}/")
        return take(page, folder)


if __name__ == "__main__":
    for path in take_all(ASSETS):
        print(path.relative_to(ASSETS.parents[1]), path.stat().st_size)  # noqa: T201 - a script
