"""Archivers that are killed, run concurrently or lose their connection."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from seriatim import BackendFailure
from seriatim.pipeline.archive.archiver import ArchiveReport, archive
from seriatim.pipeline.archive.catalog import list_segments
from seriatim.pipeline.archive.restore import restore
from seriatim.pipeline.archive.verification import verify_archive
from seriatim.pipeline.object_storage import open_storage
from tests.faults.support import wait_until
from tests.fixtures.postgres_server import PostgresServer
from tests.fixtures.proxy import TcpProxy
from tests.fixtures.s3_server import S3Server, environment
from tests.pipeline.archive.support import fill, head, records
from tests.pipeline.crash_driver import describe_job, kill_at_points, run_driver

START_S = 150.0


def leftovers(at: str) -> list[str]:
    """Return the files without a seal."""
    sealed = {segment.file for segment in list_segments(at)}
    return [name for name in open_storage(at).list_names("segments") if name not in sealed]


@pytest.mark.slow
def test_archivers_killed_at_a_seal(
    spark: SparkSession, postgres_server: PostgresServer, s3_url: str, tmp_path: Path
) -> None:
    """J1: after a kill sealed segments stay, and the next run continues."""
    points = {"before the second seal": 1, "after the second seal": 2}
    killed = []
    for point, sealed in points.items():
        log_url = postgres_server.create_database(f"killed_{sealed}")
        killed += [
            (point, sealed, f"sqlite:///{tmp_path}/{sealed}.db", f"{tmp_path}/archive-{sealed}"),
            (point, sealed, log_url, f"{s3_url}/{sealed}"),
        ]
    for _, _, log_url, _ in killed:
        fill(log_url, 35)

    kill_at_points(
        *(
            describe_job("archive", point, log_url, at, segment_events=10)
            for point, _, log_url, at in killed
        )
    )

    for point, sealed, log_url, at in killed:
        assert [segment.last for segment in list_segments(at)] == [10, 20][:sealed], (point, at)
        assert len(leftovers(at)) == 2 - sealed, (point, at)
        report = archive(spark, log_url, at, segment_events=10)
        assert report.end == 30
        assert leftovers(at) == []
        assert verify_archive(spark, log_url, at).ok
    for sealed in points.values():
        postgres_server.drop_database(f"killed_{sealed}")


@pytest.mark.slow
def test_an_archiver_killed_in_the_middle_of_a_file(
    spark: SparkSession, postgres_url: str, tmp_path: Path
) -> None:
    """J1: a partial file is not read and is removed by the next run."""
    log_url, at = postgres_url, str(tmp_path / "archive")
    fill(log_url, 60_000)
    with run_driver(describe_job("archive", "none", log_url, at, segment_events=60_000)):
        wait_until(lambda: list(Path(at).glob("segments/*.part")), "a file's begin", START_S)

    assert list_segments(at) == []
    assert leftovers(at)
    assert archive(spark, log_url, at, segment_events=60_000).end == 60_000
    assert leftovers(at) == []
    assert verify_archive(spark, log_url, at).ok


@pytest.mark.slow
def test_restores_killed_in_the_middle_are_continued(
    spark: SparkSession, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """J1: a restore continues a killed one, and the log equals the original."""
    databases = ("killed_log", "killed_copy")
    urls = [[f"sqlite:///{tmp_path}/{name}.db" for name in databases]]
    urls += [[postgres_server.create_database(name) for name in databases]]
    killed = [(*pair, f"{tmp_path}/archive-{n}") for n, pair in enumerate(urls)]
    for log_url, _, at in killed:
        fill(log_url, 9000)
        archive(spark, log_url, at, segment_events=4000, seal_tail=True)

    kill_at_points(
        *(describe_job("restore", "between two groups", at, copy) for _, copy, at in killed)
    )

    for log_url, copy, at in killed:
        there = head(copy)
        assert 0 < there < 9000
        report = restore(spark, at, copy)
        assert (report.there, report.restored) == (there, 9000 - there)
        assert records(copy) == records(log_url)
    for name in databases:
        postgres_server.drop_database(name)


def test_concurrent_archivers(spark: SparkSession, log_and_place: tuple[str, str]) -> None:
    """J1: of two archivers each segment is sealed by one, and both reports are right."""
    log_url, at = log_and_place
    fill(log_url, 200)
    reports: list[ArchiveReport] = []
    start = threading.Barrier(2)

    def run(size: int) -> None:
        start.wait()
        reports.append(archive(spark, log_url, at, segment_events=size))

    threads = [threading.Thread(target=run, args=(size,)) for size in (10, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [report.end for report in reports] == [200, 200]
    files = [one.file for report in reports for one in report.sealed]
    assert sorted(files) == sorted(segment.file for segment in list_segments(at))
    archive(spark, log_url, at, segment_events=10)
    assert leftovers(at) == []
    assert verify_archive(spark, log_url, at).ok


def test_concurrent_archivers_with_different_sizes(spark: SparkSession, tmp_path: Path) -> None:
    """J1: concurrent archivers with different segment sizes archive the log once."""
    url, at = f"sqlite:///{tmp_path}/log.db", str(tmp_path / "archive")
    fill(url, 200)
    start = threading.Barrier(2)
    reports: list[ArchiveReport] = []

    def run(size: int) -> None:
        start.wait()
        reports.append(archive(spark, url, at, segment_events=size, seal_tail=True))

    threads = [threading.Thread(target=run, args=(size,)) for size in (13, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [report.end for report in reports] == [200, 200]
    assert verify_archive(spark, url, at).ok


def test_events_appended_during_a_run(spark: SparkSession, log_url: str, tmp_path: Path) -> None:
    """J1: a run archives the log up to its head at the start; the next one continues."""
    at = str(tmp_path / "archive")
    fill(log_url, 100)

    report = archive(spark, log_url, at, segment_events=20, progress=lambda *_: fill(log_url, 20))

    assert (report.end, report.head) == (100, 100)
    assert archive(spark, log_url, at, segment_events=20).end == 200
    assert verify_archive(spark, log_url, at).ok


@pytest.fixture
def through_proxy(
    s3_url: str,
    s3_server: S3Server,
    proxy_to: Callable[[str], TcpProxy],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[str, TcpProxy]:
    """Return a bucket path on the S3 server, through a proxy."""
    proxy = proxy_to(s3_server.url)
    for name, value in environment(f"http://127.0.0.1:{proxy.port}").items():
        monkeypatch.setenv(name, value)
    return s3_url, proxy


def test_a_connection_cut_in_the_middle_of_a_segment(
    spark: SparkSession, postgres_url: str, through_proxy: tuple[str, TcpProxy]
) -> None:
    """J1: a segment whose connection was cut is written again completely."""
    at, proxy = through_proxy
    fill(postgres_url, 20_000)
    sent = 0

    def mid_segment(piece: bytes) -> bool:
        nonlocal sent
        sent = sent + len(piece) if sent or b".parquet" in piece else 0
        return sent > 50_000

    fault = proxy.cut_when(mid_segment, server_sees_it=False)

    report = archive(spark, postgres_url, at, segment_events=10_000)

    fault.wait()
    assert report.end == 20_000
    assert verify_archive(spark, postgres_url, at).ok


def test_an_outage_of_the_storage(
    spark: SparkSession, postgres_url: str, through_proxy: tuple[str, TcpProxy]
) -> None:
    """L2: an unreachable storage fails the run, and the next one continues."""
    at, proxy = through_proxy
    fill(postgres_url, 300)

    def gone(*_: int) -> None:
        proxy.cut(refuse=True)

    with pytest.raises(BackendFailure, match="the storage failed"):
        archive(spark, postgres_url, at, segment_events=50, progress=gone)
    proxy.resume()

    assert [segment.last for segment in list_segments(at)] == [50]
    assert archive(spark, postgres_url, at, segment_events=50).end == 300
    assert verify_archive(spark, postgres_url, at).ok
    assert leftovers(at) == []


def test_a_seal_with_a_lost_response(
    spark: SparkSession, postgres_url: str, through_proxy: tuple[str, TcpProxy]
) -> None:
    """J1: a repeated put of a seal recognises the seal of its own first attempt."""
    at, proxy = through_proxy
    fill(postgres_url, 20)
    fault = proxy.drop_replies_after(b"/seals/00000000000000000011.json HTTP", ends=b"")

    report = archive(spark, postgres_url, at, segment_events=10)

    fault.wait()
    assert [one.first for one in report.sealed] == [1, 11]
    assert report.sealed_by_others == 0
    assert verify_archive(spark, postgres_url, at).ok
