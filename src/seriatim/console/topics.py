"""Topics and archive: publisher checkpoints and sealed segments."""

from __future__ import annotations

import time
from typing import Any

from seriatim.console.drawings import format_span
from seriatim.console.page import ConsolePage, ConsoleResponse, PageRoute
from seriatim.core.tenants import ALL_TENANTS
from seriatim.core.times import parse_us


async def show_topics(page: ConsolePage) -> ConsoleResponse:
    """Show the checkpoints of publishers and the segments of archives."""
    log = await page.get("/v1/log")
    storage = None  # topics and archives contain events of all tenants
    if page.caller.tenant_id == ALL_TENANTS:
        storage = await page.get("/v1/storage")
    now = time.time()
    publishers = [] if storage is None else storage["publishers"]
    archives = [] if storage is None else storage["archives"]
    return await page.render(
        "topics.html",
        allowed=storage is not None,
        publishers=[
            (
                publisher,
                describe_checkpoint(publisher, log, now),
                describe_comparison(publisher, log, now),
            )
            for publisher in publishers
        ],
        archives=[(archive, describe_archive(archive, log)) for archive in archives],
    )


def describe_checkpoint(
    publisher: dict[str, Any], log: dict[str, Any], now: float
) -> dict[str, Any]:
    """Return the lag and state of a publisher: `color`, `state`, `lag` and `age`."""
    if problem := publisher.get("problem"):
        return {"color": "warn", "state": problem, "lag": None, "age": ""}
    if publisher["log_id"] != log["log_id"]:
        return {"color": "bad", "state": "of another log", "lag": None, "age": ""}
    lag = log["head"] - publisher.get("position", 0)
    written_us = parse_us(publisher["written_at"]) or 0
    age = format_span(max(0.0, now - written_us / 1_000_000))
    if publisher["epoch"] != log["epoch"]:
        return {"color": "bad", "state": "of an earlier epoch", "lag": lag, "age": age}
    state = "behind" if lag else "complete"
    return {"color": "" if lag else "good", "state": state, "lag": lag, "age": age}


def describe_comparison(
    publisher: dict[str, Any], log: dict[str, Any], now: float
) -> dict[str, Any]:
    """Return the verdict of the last reconciliation: `color`, `state`, `age` and `findings`."""
    reconciliation = publisher.get("reconciliation")
    if reconciliation is None:
        return {"color": "", "state": "none", "age": "", "findings": ""}
    finished_us = parse_us(reconciliation["finished_at"]) or 0
    if (reconciliation["log_id"], reconciliation["epoch"]) != (log["log_id"], log["epoch"]):
        color, state = "warn", "of an earlier log or epoch"
    elif reconciliation["equal"]:
        color, state = "good", f"equal up to {reconciliation['until']:,}"
    else:
        color, state = "bad", f"different, up to {reconciliation['until']:,}"
    findings = ", ".join(f"{name} {count:,}" for name, count in reconciliation["findings"].items())
    age = format_span(max(0.0, now - finished_us / 1_000_000))
    return {"color": color, "state": state, "age": age, "findings": findings}


def describe_archive(archive: dict[str, Any], log: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an archive, and the number of events after its last segment."""
    if problem := archive.get("problem"):
        return {"color": "bad", "state": problem, "lag": None}
    if archive["log_id"] != log["log_id"]:
        return {"color": "bad", "state": "of another log", "lag": None}
    lag = log["head"] - archive.get("end", 0)
    return {"color": "" if lag else "good", "state": "behind" if lag else "complete", "lag": lag}


ROUTES: tuple[PageRoute, ...] = (
    PageRoute(
        method="GET", path="/topics", show=show_topics, title="Topics and archive", right="operate"
    ),
)
