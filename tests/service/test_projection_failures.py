"""Failures of a projection over HTTP: in pages, with their number."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import seriatim
from seriatim.core.event import DEFAULT_TENANT
from seriatim.factory import open_read_model, read_model_url
from tests.integration.readmodel_support import make_failure, make_step, seats
from tests.service.conftest import Serve
from tests.service.http_calls import make_caller, make_event

FAILURES = 1003


def test_failures_are_listed_in_pages(serving: Serve, tmp_path: Path) -> None:
    """N1: a response has at most 1,000 failures and the number of all; a client reads all."""
    url = f"sqlite:///{tmp_path}/log.db"
    service = serving(url)
    caller = make_caller(service)
    caller.append(*[make_event() for _ in range(3)])
    log = service.service.log
    failed = [(make_failure(position + 1), "parked") for position in range(FAILURES)]
    with closing(open_read_model(read_model_url(url))) as model:
        model.create_projection(seats, DEFAULT_TENANT, log.identity())
        token = model.claim("seats", "runner", 60)
        made = make_step(0, 3, failures=failed)
        made.last_event_id = log.store.event_id_at(3) or ""
        model.commit(seats, made, token=token or 0)
        model.set_failure_status("seats", 1, "passed", again=False)

    [standing] = caller("GET", "/v1/projections").json["projections"]
    first = caller("GET", "/v1/projections/failures", name="seats").json
    rest = caller("GET", "/v1/projections/failures", name="seats", after=1000).json
    refused = caller("GET", "/v1/projections/failures", name="seats", limit=1001)
    with seriatim.open(f"http://127.0.0.1:{service.port}", token=service.token()) as remote:
        every = remote.projections.failures("seats")

    assert standing["failures"] == FAILURES
    assert (len(first["failures"]), first["count"], first["unresolved"]) == (1000, 1003, 1002)
    assert [one["failure"]["position"] for one in rest["failures"]] == [1001, 1002, 1003]
    assert refused.code == "invalid_argument"
    assert [one.failure.position for one in every] == list(range(1, FAILURES + 1))


@pytest.mark.parametrize("after", [-1, "x"])
def test_positions_of_failures_are_checked(serving: Serve, after: object) -> None:
    """L3: a malformed position is refused before the read model is read."""
    caller = make_caller(serving())

    refused = caller("GET", "/v1/projections/failures", name="seats", after=after)

    assert refused.code == "invalid_argument"
