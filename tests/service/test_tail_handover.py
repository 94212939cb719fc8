"""A tail between its last stored page and its first live event: no append is lost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim import NewEvent
from tests.faults.support import wait_until
from tests.fixtures.service import RunningService
from tests.service.conftest import sqlite_in
from tests.service.http_calls import make_caller, make_event, open_tail


def is_live(line: dict[str, Any]) -> bool:
    """Return whether a line contains the last event."""
    return bool(line["records"][-1]["event_type"] == "live")


@pytest.mark.parametrize("joins", ["a busy channel", "a new channel"])
def test_an_append_during_the_handover_is_delivered(
    serving: Callable[..., RunningService],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    joins: str,
) -> None:
    """E5: an append between the last read of stored events and the live tail is sent once.

    Reading the head returns only after the append was handed to the live tails of the same
    or another tenant: the hub is then ahead of the tail that joins it.
    """
    url = sqlite_in(tmp_path)
    service = serving(url)
    hub, log = service.service.hub, service.service.log
    own = make_caller(service, tenant_id="own")
    watching = own if joins == "a busy channel" else make_caller(service, tenant_id="other")
    own.append(make_event("past"))
    look = log.head
    looks: list[int] = []
    between: list[int] = []

    def look_then_append() -> int:
        looks.append(look())
        if len(looks) == 2:  # the stored events were read after the first call
            with seriatim.open(url, tenant_id="own") as beside:
                between.append(beside.append([NewEvent("between", {})]).last_position)
            wait_until(lambda: hub.head >= between[0], "the hub is ahead")
            if watching is own:
                assert next(live)["records"][0]["event_type"] == "between"
        return looks[-1]

    with open_tail(watching) as first:
        live = first.lines()
        next(live)  # the tail is live now
        monkeypatch.setattr(log, "head", look_then_append)
        with open_tail(own, after=0) as tail:
            lines = tail.lines()
            seen = list(itertools.takewhile(lambda line: "records" in line, lines))
            own.append(make_event("live"))  # the line without records said that the tail is live
            while not seen or not is_live(seen[-1]):
                seen += [line for line in [next(lines)] if "records" in line]

    types = [record["event_type"] for line in seen for record in line["records"]]
    assert types == ["past", "between", "live"]
