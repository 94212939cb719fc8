"""Exports to Delta and Iceberg tables: each event once."""

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import seriatim
from seriatim import InvalidArgument, LogIdentityChanged
from seriatim.pipeline.archive.archiver import archive
from seriatim.pipeline.archive.catalog import list_segments, read_segment
from seriatim.pipeline.columns import EVENT_COLUMNS
from seriatim.pipeline.lake.delta import export_delta
from seriatim.pipeline.lake.iceberg import export_iceberg
from seriatim.pipeline.lake.table_export import ExportReport
from tests.pipeline.archive.support import fill, fill_every_shape
from tests.pipeline.crash_driver import describe_job, kill_at_points


class Lake(Protocol):
    """A Delta or Iceberg table."""

    name: str
    arguments: tuple[Any, ...]

    def export(self, spark: SparkSession, url: str, **options: object) -> ExportReport:
        """Export a log to the table."""
        ...

    def rows(self) -> pa.Table:
        """Return the rows of the table by position."""
        ...


class Delta:
    """A Delta table in a folder."""

    name = "delta"

    def __init__(self, folder: Path) -> None:
        self.arguments = (str(folder / "table"),)

    def export(self, spark: SparkSession, url: str, **options: Any) -> ExportReport:
        """Export a log to the table."""
        return export_delta(spark, url, *self.arguments, **options)

    def rows(self) -> pa.Table:
        """Return the rows of the table by position."""
        return DeltaTable(self.arguments[0]).to_pyarrow_table().sort_by("position")


class Iceberg:
    """An Iceberg table of a catalog in a SQLite file."""

    name = "iceberg"

    def __init__(self, folder: Path) -> None:
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
        catalog["warehouse"] = f"file://{folder}/warehouse"
        self.arguments = ("logs.events", catalog)

    def export(self, spark: SparkSession, url: str, **options: Any) -> ExportReport:
        """Export a log to the table."""
        return export_iceberg(spark, url, *self.arguments, **options)

    def rows(self) -> pa.Table:
        """Return the rows of the table by position."""
        table = load_catalog("seriatim", **self.arguments[1]).load_table("logs.events")
        return table.scan().to_arrow().sort_by("position")


@pytest.fixture(params=[Delta, Iceberg], ids=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """A table that does not exist yet."""
    lake: Lake = request.param(tmp_path)
    return lake


def expected(spark: SparkSession, url: str, folder: Path) -> list[dict[str, Any]]:
    """Return the events of a log in the columns of the pipeline."""
    at = str(folder / "expected")
    archive(spark, url, at, seal_tail=True)
    return [
        row
        for segment in list_segments(at)
        for batch in read_segment(at, segment)
        for row in batch.to_pylist()
    ]


def comparable_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows whose metadata do not depend on the reader's order of keys."""
    return [
        row | {"metadata": sorted(row["metadata"])}
        for row in table.select(EVENT_COLUMNS).to_pylist()
    ]


def positions(lake: Lake) -> list[int]:
    """Return the positions in a table."""
    found: list[int] = lake.rows().column("position").to_pylist()
    return found


def test_a_table_contains_the_log(
    spark: SparkSession, log_url: str, lake: Lake, tmp_path: Path
) -> None:
    """J1: a table has every event with all columns, and a second export adds none."""
    last = fill_every_shape(log_url)

    first = lake.export(spark, log_url, file_events=4)
    second = lake.export(spark, log_url, file_events=4)

    assert (first.position, first.events, second.position, second.events) == (last, last, last, 0)
    rows = [
        row | {"metadata": sorted(row["metadata"])} for row in expected(spark, log_url, tmp_path)
    ]
    assert comparable_rows(lake.rows()) == rows


def test_an_export_continues_after_the_last_position(
    spark: SparkSession, log_url: str, lake: Lake
) -> None:
    """J1: the next run continues after the last exported position."""
    fill(log_url, 25)
    lake.export(spark, log_url, file_events=5, until=17)
    assert positions(lake) == list(range(1, 18))

    fill(log_url, 10)
    report = lake.export(spark, log_url, file_events=5)

    assert (report.events, report.position) == (18, 35)
    assert positions(lake) == list(range(1, 36))


def test_an_empty_log_gives_an_empty_table(spark: SparkSession, log_url: str, lake: Lake) -> None:
    """J1: an empty log is exported to an empty table, one event to one row."""
    seriatim.open(log_url).close()
    assert lake.export(spark, log_url).position == 0
    assert lake.rows().num_rows == 0
    fill(log_url, 1)
    assert lake.export(spark, log_url).position == 1
    assert positions(lake) == [1]


def test_another_log_is_refused(
    spark: SparkSession, log_url: str, lake: Lake, another_url: Callable[[], str]
) -> None:
    """F8: a table with events of another log is refused."""
    fill(log_url, 5)
    lake.export(spark, log_url)
    other = another_url()
    fill(other, 9)

    with pytest.raises(LogIdentityChanged, match="belongs to log"):
        lake.export(spark, other)
    assert positions(lake) == [1, 2, 3, 4, 5]


def test_restored_log_is_refused(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """F8: a log with a lower head, another event or a new epoch is refused."""
    path = tmp_path / "log.db"
    url = f"sqlite:///{path}"
    fill(url, 5)
    backup = path.read_bytes()
    fill(url, 5)
    lake.export(spark, url)
    after = path.read_bytes()
    path.write_bytes(backup)
    with pytest.raises(LogIdentityChanged, match="ends at 5, the table at 10"):
        lake.export(spark, url)
    fill(url, 6)
    with pytest.raises(LogIdentityChanged, match="another event at position 10"):
        lake.export(spark, url)

    path.write_bytes(after)
    with closing(seriatim.open(url)) as log:
        log.store.raise_epoch()
    fill(url, 1)
    with pytest.raises(LogIdentityChanged, match="epoch"):
        lake.export(spark, url)
    assert lake.export(spark, url, accept_epoch=True).position == 11
    assert lake.export(spark, url).position == 11
    assert positions(lake) == list(range(1, 12))


@pytest.mark.slow
def test_exporters_killed_at_a_commit(
    spark: SparkSession, postgres_url: str, tmp_path: Path
) -> None:
    """J1: after a kill before or after a commit the next export has each event once."""
    fill(postgres_url, 55)
    killed: list[tuple[Lake, str, int]] = []
    for point, there in (("before the second commit", 20), ("after the second commit", 40)):
        folder = tmp_path / str(there)
        folder.mkdir()
        killed += [(Delta(folder), point, there), (Iceberg(folder), point, there)]

    kill_at_points(
        *(
            describe_job(lake.name, point, postgres_url, *lake.arguments, file_events=10)
            for lake, point, _ in killed
        )
    )

    for lake, _, there in killed:
        assert positions(lake) == list(range(1, there + 1))
        report = lake.export(spark, postgres_url, file_events=10)
        assert (report.position, report.events) == (55, 55 - there)
        assert positions(lake) == list(range(1, 56))


def test_concurrent_exporters(spark: SparkSession, tmp_path: Path, lake: Lake) -> None:
    """J1: of two concurrent exporters each event is exported by one."""
    url = f"sqlite:///{tmp_path}/log.db"
    fill(url, 100)
    lake.export(spark, url, file_events=5, until=5)
    start = threading.Barrier(2)
    reports: list[ExportReport] = []

    def run() -> None:
        start.wait()
        reports.append(lake.export(spark, url, file_events=5))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [report.position for report in reports] == [100, 100]
    assert sum(report.events for report in reports) == 95
    assert positions(lake) == list(range(1, 101))


def test_invalid_arguments_are_refused(spark: SparkSession, log_url: str, tmp_path: Path) -> None:
    """L1: a file size below 1 and a table without a namespace are refused."""
    fill(log_url, 1)
    with pytest.raises(InvalidArgument, match="file_events"):
        export_delta(spark, log_url, str(tmp_path / "t"), file_events=0)
    with pytest.raises(InvalidArgument, match=r"namespace\.name"):
        export_iceberg(spark, log_url, "events", {})


def test_a_delta_table_on_s3(spark: SparkSession, log_url: str, s3_url: str) -> None:
    """J1: a Delta table on S3 has each event once."""
    fill(log_url, 10)

    assert export_delta(spark, log_url, s3_url, file_events=4).events == 10
    assert export_delta(spark, log_url, s3_url, file_events=4).events == 0
