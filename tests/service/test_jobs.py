"""Jobs over HTTP: a projection is rebuilt and verified by child processes of the service."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from seriatim.access.jobs import JOBS_MAX, JobStore
from seriatim.api.job_runner import QUEUED_MAX
from seriatim.core.errors import Conflict, LimitExceeded, NotFound
from seriatim.core.event import NewEvent
from seriatim.factory import access_url, open_access, open_read_model, read_model_url
from seriatim.store.engine import Engine
from tests.faults.support import wait_until
from tests.fixtures.service import RunningService, run_service
from tests.service.conftest import sqlite_in
from tests.service.http_calls import Caller, ServiceResponse, make_caller

SPARK_S = 240.0  # one start of Spark, on a busy machine
ACTIVITY = {"kind": "verify", "projection": "activity", "reason": "as every week"}


def start(caller: Caller, **more: object) -> ServiceResponse:
    """Start a job."""
    return caller("POST", "/v1/jobs", {**ACTIVITY, **more})


def get(caller: Caller, job_id: str) -> dict[str, Any]:
    """Return the state of a job."""
    found: dict[str, Any] = caller("GET", "/v1/jobs/one", id=job_id).json["job"]
    return found


def finish(caller: Caller, response: ServiceResponse) -> dict[str, Any]:
    """Wait until a job has ended, and return it."""
    assert response.status == 201, response
    job_id = response.json["job"]["job_id"]
    done = ("succeeded", "failed")
    wait_until(lambda: get(caller, job_id)["status"] in done, "finished", within_s=SPARK_S)
    return get(caller, job_id)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a log."""
    return sqlite_in(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def jobs(request: pytest.FixtureRequest, url: str) -> Iterator[JobStore]:
    """The job store of a log, without a service."""
    at = url if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with closing(open_access(access_url(at))) as access, closing(access.open_jobs()) as store:
        yield store


def test_a_projection_is_rebuilt_and_verified(url: str) -> None:
    """I3, I4, N4: both jobs run on Spark, prove equal digests, and report a changed row."""
    with run_service(url) as service:
        ops = make_caller(service, subject="ops")
        service.service.view("default").append([NewEvent("x", stream=("order", "1"))] * 3)
        rebuilt = finish(ops, start(ops, kind="rebuild"))
        assert (rebuilt["status"], rebuilt["error"]) == ("succeeded", ""), rebuilt
        with (
            closing(open_read_model(read_model_url(url))) as model,
            model.engine.autocommit() as session,
        ):
            session.run("update activity set events = events + 1")
        verified = finish(ops, start(ops))
        assert verified["status"] == "succeeded", verified
        assert verified["result"]["digest"] == rebuilt["result"]["digest"]
        assert verified["result"]["equal"] is False
        assert verified["result"]["difference"]["key"]
        accepted = finish(ops, start(ops, kind="rebuild_accept", reason="restored by hand"))
        listed = ops("GET", "/v1/jobs").json["jobs"]
        entries = ops("GET", "/v1/operations").json["operations"][::-1]
    assert (accepted["status"], accepted["result"]["equal"]) == ("succeeded", False)
    assert accepted["result"]["digest"] == rebuilt["result"]["digest"]
    kinds = ["rebuild", "verify", "rebuild_accept"]
    assert [one["kind"] for one in reversed(listed)] == kinds
    assert listed[0]["started_at"] <= listed[0]["finished_at"]
    started = [entry for entry in entries if entry["action"] == "projection_job_started"]
    assert [(entry["target"]["kind"], entry["actor_id"]) for entry in started] == [
        (kind, "ops") for kind in kinds
    ]
    assert [entry["reason"] for entry in started].count("restored by hand") == 1
    switched = [entry for entry in entries if entry["action"] == "projection_rebuilt"]
    assert [(entry["reason"], entry["target"]["accept"]) for entry in switched] == [
        (f"job {rebuilt['job_id']}", False),
        (f"job {accepted['job_id']}", True),
    ]


def test_a_job_ends_with_its_service(url: str) -> None:
    """K3: jobs of a stopped service fail within the grace period, and their processes end."""
    with run_service(url) as service:
        ops = make_caller(service)
        running, queued = (
            start(ops, projection=name).json["job"]["job_id"]
            for name in ("activity", "decision_graph")
        )
        wait_until(lambda: get(ops, running)["status"] == "running", "running", within_s=30)
        twice = start(ops, kind="rebuild")
        pids = [process.pid for process in service.service.jobs._processes.values()]
    assert (twice.status, twice.code) == (409, "conflict")
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)
    with closing(open_access(access_url(url))) as access, closing(access.open_jobs()) as store:
        found = [store.get(job_id) for job_id in (running, queued)]
    assert {(one.status, one.error) for one in found} == {("failed", "the service was stopped")}


def test_a_job_has_a_time_limit(url: str) -> None:
    """K3: a job over its time limit fails with an error that names the limit."""
    with run_service(url, job_timeout_s=0.01) as service:
        ops = make_caller(service)
        done = finish(ops, start(ops))

    assert (done["status"], "took longer than 0.01 s" in done["error"]) == ("failed", True)


def test_a_failing_command_is_reported(url: str) -> None:
    """L2: the error of a failed command is the error of its job."""
    with run_service(url, projections=("nowhere_at_all:seats",)) as service:
        ops = make_caller(service)
        done = finish(ops, start(ops, projection="seats"))

    assert done["status"] == "failed"
    assert "nowhere_at_all" in done["error"]


@pytest.mark.parametrize("name", ["os:system", "nobody", "tests.integration:seats"])
def test_only_projections_of_the_service_are_run(quick: RunningService, name: str) -> None:
    """K2: a projection that the service was not started with is not found."""
    refused = start(make_caller(quick), projection=name)

    assert (refused.status, refused.code) == (404, "not_found")
    assert make_caller(quick)("GET", "/v1/jobs").json == {"jobs": []}


def test_malformed_job_requests_are_refused(quick: RunningService) -> None:
    """L3: malformed fields are refused, and a job that does not exist is not found."""
    ops = make_caller(quick)

    unexplained = {"kind": "rebuild_accept", "reason": " "}
    for wrong in ({"kind": "erase"}, {"projection": ""}, {"reason": "x" * 501}, unexplained):
        assert start(ops, **wrong).code == "invalid_argument"
    assert ops("GET", "/v1/jobs", limit=101).status == 400
    assert ops("GET", "/v1/jobs/one", id="nobody").code == "not_found"


def test_without_spark_a_fold_runs_on_the_local_engine(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10: without PySpark a job folds in its own process; a DataFrame projection needs Spark."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "pyspark" else find(name, *a)
    )
    with run_service(url) as service:
        ops = make_caller(service)
        service.service.view("default").append([NewEvent("x", stream=("order", "1"))] * 3)
        folded = finish(ops, start(ops, kind="rebuild", projection="aggregate_states"))
        transformed = finish(ops, start(ops, kind="rebuild", projection="activity"))

    assert (folded["status"], folded["error"]) == ("succeeded", ""), folded
    assert (folded["result"]["rows"], folded["result"]["switched"]) == (1, True)
    assert transformed["status"] == "failed"
    assert "only Spark runs" in transformed["error"]


def test_unfinished_jobs_of_a_process_are_bounded(quick: RunningService) -> None:
    """K3: a process refuses a job when its queue is full."""
    runner = quick.service.jobs
    runner._open = {str(number) for number in range(QUEUED_MAX)}
    try:
        with pytest.raises(LimitExceeded, match="queued_jobs"):
            runner.submit("verify", "activity", "default", actor_id="ops", reason="")
    finally:
        runner._open = set()


def add(jobs: JobStore, projection: str = "seats") -> str:
    """Add a job and return its id."""
    return jobs.add("verify", projection, "acme", actor_id="ops", reason="").job_id


def set_beat(jobs: JobStore, seconds_ago: int) -> None:
    """Move the last update of every job into the past."""
    engine: Engine = jobs._engine
    with engine.autocommit() as session:
        values = {"us": seconds_ago * 1_000_000}
        table = f"{engine.schema_prefix}seriatim_jobs"
        session.run(f"update {table} set beat_us = beat_us - :us", values)


def test_a_job_without_updates_fails(jobs: JobStore) -> None:
    """L2: a job without updates for a minute fails, and its projection can be verified again."""
    first = add(jobs)
    assert jobs.update(first, ("starting",))
    set_beat(jobs, 50)
    with pytest.raises(Conflict):
        add(jobs)
    set_beat(jobs, 20)
    second = add(jobs)

    assert (jobs.get(first).status, jobs.get(second).status) == ("failed", "queued")
    assert "has ended" in jobs.get(first).error
    assert not jobs.update(first, ())
    jobs.finish(first, "succeeded", result=None, error="")
    assert jobs.get(first).status == "failed"


def test_old_jobs_are_pruned(jobs: JobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3: the oldest finished jobs over the bound are deleted, unfinished ones are kept."""
    assert JOBS_MAX == 1000
    monkeypatch.setattr("seriatim.access.jobs.JOBS_MAX", 2)
    waiting = add(jobs, "waiting")
    ids = []
    for _ in range(4):
        ids.append(add(jobs))
        jobs.finish(ids[-1], "succeeded", result={"equal": True}, error="")
    last = add(jobs)

    assert {one.job_id for one in jobs.newest(10)} == {waiting, ids[-1], last}
    with pytest.raises(NotFound):
        jobs.get(ids[0])
