"""Checks of the database and the places of pipelines, over HTTP."""

from __future__ import annotations

from seriatim.store.port import Finding
from tests.fixtures.service import RunningService
from tests.service.http_calls import make_caller, make_event


def test_an_operator_of_all_tenants_reads_the_checks(service: RunningService) -> None:
    """L3: an operator of all tenants reads the findings of `doctor`, without paths of files."""
    response = make_caller(service)("GET", "/v1/doctor")

    assert response.status == 200
    checks = {finding["check"] for finding in response.json["findings"]}
    assert "schema" in checks
    directory = service.service.data_directory
    assert not directory or directory not in response.body.decode()


def test_findings_are_cached_between_requests(quick: RunningService) -> None:
    """L3: three requests in a row run the checks once."""
    runs: list[int] = []
    diagnose = quick.service.diagnose
    read = diagnose._read

    def read_once() -> list[Finding]:
        runs.append(1)
        return read()

    diagnose._read = read_once
    caller = make_caller(quick)
    responses = [caller("GET", "/v1/doctor").json for _ in range(3)]

    assert len(runs) == 1
    assert responses[0] == responses[2]


def test_checks_and_storage_need_an_operator_of_all_tenants(quick: RunningService) -> None:
    """K2: other tokens get 403 for the checks, the storage of pipelines and the log's size."""
    for path in ("/v1/doctor", "/v1/storage", "/v1/log/size"):
        for token in ({"tenant_id": "acme"}, {"rights": ["read"]}):
            assert make_caller(quick, **token)("GET", path).status == 403


def test_storage_is_empty_without_configured_locations(quick: RunningService) -> None:
    """N1: a service without configured storage reports neither publishers nor archives."""
    response = make_caller(quick)("GET", "/v1/storage")

    assert response.json == {"publishers": [], "archives": []}


def test_the_size_of_the_log_grows_with_it(service: RunningService) -> None:
    """N1, M2: the size is that of the tables or the file, and at least that of new payloads."""
    caller = make_caller(service)
    before = caller("GET", "/v1/log/size").json
    caller.append(*(make_event(payload={"text": f"{n:064}" * 1000}) for n in range(40)))
    after = caller("GET", "/v1/log/size").json

    assert after["bytes"] > before["bytes"] > 0
    if service.service.log.store.name == "sqlite":
        assert after["index_bytes"] is None
    else:
        assert 0 < after["index_bytes"] < after["bytes"]
