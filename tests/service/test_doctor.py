"""Checks of the database and the places of pipelines, over HTTP."""

from __future__ import annotations

from seriatim.store.port import Finding
from tests.fixtures.service import RunningService
from tests.service.http_calls import make_caller, make_event


def test_an_operator_of_all_tenants_reads_the_checks(service: RunningService) -> None:
    """L3: the findings of `doctor`, without paths of files."""
    answer = make_caller(service)("GET", "/v1/doctor")

    assert answer.status == 200
    checks = {one["check"] for one in answer.json["findings"]}
    assert "schema" in checks
    directory = service.service.data_directory
    assert not directory or directory not in answer.body.decode()


def test_the_checks_run_once_for_many_requests(quick: RunningService) -> None:
    """L3: a page that refreshes itself does not run the checks each time."""
    runs: list[int] = []
    diagnose = quick.service.diagnose
    read = diagnose._read

    def read_once() -> list[Finding]:
        runs.append(1)
        return read()

    diagnose._read = read_once
    who = make_caller(quick)
    answers = [who("GET", "/v1/doctor").json for _ in range(3)]

    assert len(runs) == 1
    assert answers[0] == answers[2]


def test_checks_and_places_are_for_operators_of_all_tenants(quick: RunningService) -> None:
    """K2: they describe the database of all tenants."""
    for path in ("/v1/doctor", "/v1/storage", "/v1/log/size"):
        for token in ({"tenant_id": "acme"}, {"rights": ["read"]}):
            assert make_caller(quick, **token)("GET", path).status == 403


def test_without_places_there_is_nothing_to_display(quick: RunningService) -> None:
    """N1: a service that was started without places has neither publishers nor archives."""
    answer = make_caller(quick)("GET", "/v1/storage")

    assert answer.json == {"publishers": [], "archives": []}


def test_the_size_of_the_log_grows_with_it(service: RunningService) -> None:
    """N1, M2: the size is that of the tables or the file, and at least that of new payloads."""
    who = make_caller(service)
    before = who("GET", "/v1/log/size").json
    who.append(*(make_event(payload={"text": f"{n:064}" * 1000}) for n in range(40)))
    after = who("GET", "/v1/log/size").json

    assert after["bytes"] > before["bytes"] > 0
    if service.service.log.store.name == "sqlite":
        assert after["index_bytes"] is None
    else:
        assert 0 < after["index_bytes"] < after["bytes"]
