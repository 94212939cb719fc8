"""Jobs keep the settings of a user's Spark session and are correct with them (I3)."""

from __future__ import annotations

import importlib
import textwrap
import threading
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

import seriatim
import seriatim.spark
from seriatim import NewEvent
from seriatim.pipeline.source.data_source import PUSHDOWN_SETTING
from seriatim.spark import Projector, activity, audit, events, register, session
from tests.pipeline.project.support import rows_of, stored_digest

OWN = {
    "spark.sql.session.timeZone": "Asia/Kolkata",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "7",
    "spark.sql.execution.arrow.pyspark.enabled": "false",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.ansi.enabled": "false",
}


@pytest.fixture
def user_session(spark: SparkSession) -> SparkSession:
    """A session of a user with settings of their own."""
    own = spark.newSession()
    for key, value in OWN.items():
        own.conf.set(key, value)
    return own


@pytest.mark.usefixtures("spark")
def test_the_example_of_the_module_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F1: the example in the docstring of `seriatim.spark` runs."""
    monkeypatch.chdir(tmp_path)
    example = textwrap.dedent((seriatim.spark.__doc__ or "").partition("Example:\n")[2])
    space: dict[str, Any] = {}

    exec(compile(example, "seriatim.spark", "exec"), space)  # noqa: S102 - our own docstring

    assert space["projector"].projection.name == "activity"


def test_local_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    """Workers do not import the archive of PySpark, which is compiled at every start."""
    find = f.udf(lambda _: importlib.import_module("pyspark.worker").__file__, t.StringType())

    [row] = spark.range(1).select(find("id").alias("file")).collect()

    assert row["file"] == str(Path(pyspark.__file__).parent / "worker.py")


@pytest.mark.parametrize("chosen", [None, "true", "false"])
def test_register_keeps_the_users_settings(
    user_session: SparkSession, tmp_path: Path, chosen: str | None
) -> None:
    """J2: register enables push-down unless the user has set it; the events are the same."""
    url = f"sqlite:///{tmp_path}/log.db"
    with seriatim.open(url) as log:
        for number in range(6):
            log.append([NewEvent("even" if number % 2 == 0 else "odd", {"n": number})])
    if chosen is not None:
        user_session.conf.set(PUSHDOWN_SETTING, chosen)
    before = {key: user_session.conf.get(key) for key in OWN}
    register(user_session)
    read = (
        user_session.read.format("seriatim").options(url=url, columns="position,event_type").load()
    )
    found = read.where("event_type = 'odd' and position > 2").orderBy("position").collect()

    assert user_session.conf.get(PUSHDOWN_SETTING) == (chosen or "true")
    assert {key: user_session.conf.get(key) for key in OWN} == before
    assert [tuple(row) for row in found] == [(4, "odd"), (6, "odd")]
    assert events(user_session, url, types=["odd"]).count() == 3


@pytest.mark.parametrize("threaded", [False, True], ids=["same thread", "another thread"])
def test_own_session_keeps_the_users_settings(
    spark: SparkSession, user_session: SparkSession, monkeypatch: pytest.MonkeyPatch, threaded: bool
) -> None:
    """J2: with Spark running, `session` makes a separate session on it, from any thread."""
    monkeypatch.setattr(
        "seriatim.pipeline.source.spark_session._current", []
    )  # as if the user had started Spark
    before = {key: spark.conf.get(key) for key in OWN}
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    sessions: list[SparkSession] = []

    def make() -> None:
        sessions.append(session(settings={"spark.sql.shuffle.partitions": "5"}))

    try:
        if threaded:
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
        else:
            make()
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Kolkata"
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before["spark.sql.session.timeZone"]))

    assert {key: spark.conf.get(key) for key in OWN} == before
    assert {key: user_session.conf.get(key) for key in OWN} == OWN
    assert sessions[0].conf.get("spark.sql.session.timeZone") == "UTC"
    assert sessions[0].conf.get("spark.sql.shuffle.partitions") == "5"
    assert sessions[0].sparkContext is spark.sparkContext
    assert session() is sessions[0]


def test_jobs_do_not_depend_on_the_users_settings(
    spark: SparkSession, user_session: SparkSession, tmp_path: Path
) -> None:
    """I3: hours are in UTC in any session, and jobs leave its settings unchanged."""
    url = f"sqlite:///{tmp_path}/log.db"
    with seriatim.open(url) as log:
        for minute in (5, 35, 55):
            log.append([NewEvent("thing", occurred_at=f"2026-01-01T10:{minute:02}:00Z")])
    digests = []
    for number, one in enumerate((spark, user_session)):
        with Projector(one, activity, url, target=f"sqlite:///{tmp_path}/{number}.db") as job:
            job.run()
            digests.append(stored_digest(job))
            [row] = rows_of(job).values()
            assert (row["hour"].isoformat(), row["events"]) == ("2026-01-01T10:00:00+00:00", 3)
            assert job.verify().equal
    assert digests[0] == digests[1]
    times = [audit(one, url).types[0].first_recorded_at for one in (spark, user_session)]
    assert times[0] == times[1]
    assert {key: user_session.conf.get(key) for key in OWN} == OWN
