"""The page of topics and archives: checkpoints, segments, and what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from seriatim.core.event import NewEvent
from seriatim.pipeline.archive.manifest import (
    HEADER_NAME,
    ArchiveHeader,
    Segment,
    encode_entry,
    make_file_name,
)
from seriatim.pipeline.object_storage import FolderStorage, open_storage
from seriatim.pipeline.publish.checkpoint import Checkpoint, CheckpointStore
from seriatim.pipeline.publish.reconciliation_record import RECORD_FOLDER, keep_record
from seriatim.pipeline.publish.storage_report import SEGMENTS_MAX, read_storage
from tests.console.console_service import ConsoleService, run_console
from tests.service.conftest import sqlite_in

TARGET = "kafka://broker/orders of every tenant"
WRITTEN_AT = "2026-01-01T00:00:00.000000Z"


@pytest.fixture
def console(tmp_path: Path) -> Iterator[ConsoleService]:
    """A console with two events, and places for checkpoints and archives."""
    with run_console(sqlite_in(tmp_path)) as service:
        service.service.view("default").append([NewEvent("noted", {}), NewEvent("noted", {})])
        service.service.read_storage = partial(
            read_storage, [str(tmp_path / "checkpoints")], [str(tmp_path / "archive")]
        )
        yield service


def write_checkpoint(console: ConsoleService, folder: Path, position: int, epoch: int = 1) -> None:
    """Store the checkpoint of a publisher."""
    log_id = console.service.log.identity().log_id
    checkpoint = Checkpoint(
        log_id=log_id,
        epoch=epoch,
        target=TARGET,
        position=position,
        last_event_id="",
        written_at=WRITTEN_AT,
    )
    CheckpointStore(open_storage(str(folder / "checkpoints")), TARGET).advance(checkpoint)


def write_archive(console: ConsoleService, folder: Path, segments: int) -> None:
    """Store the header of an archive, and seals of one event each."""
    log_id = console.service.log.identity().log_id
    storage = open_storage(str(folder / "archive"))
    assert isinstance(storage, FolderStorage)
    storage.put_if_absent(HEADER_NAME, encode_entry(ArchiveHeader(log_id=log_id)))
    for position in range(1, segments + 1):
        segment = Segment(
            log_id=log_id,
            epoch=1,
            first=position,
            last=position,
            count=1,
            last_event_id=f"event-{position}",
            digest=f"digest-{position}",
            total=f"total-{position}",
            file=make_file_name(position, position, "x"),
            bytes=10,
            sha256="0" * 64,
        )
        storage.put_if_absent(segment.seal_name, encode_entry(segment))


def test_checkpoints_and_segments_are_displayed(console: ConsoleService, tmp_path: Path) -> None:
    """N1: the page shows the position and lag of publishers, and the digests of segments."""
    write_checkpoint(console, tmp_path, 1)
    write_archive(console, tmp_path, 2)
    page = console.sign_in().get("/topics")

    assert page.status == 200
    assert f"{TARGET} behind 1 1" in page.text
    assert "Archived up to 2" in page.text
    for text in ("digest-1", "digest-2", "total-2", "complete"):
        assert text in page.text


def keep_result(console: ConsoleService, folder: Path, *, equal: bool, **findings: int) -> None:
    """Keep the result of a reconciliation."""
    keep_record(
        str(folder / "checkpoints"),
        TARGET,
        console.service.log.identity(),
        2,
        equal=equal,
        events=2,
        messages=3,
        findings=findings,
    )


def test_the_last_reconciliation_is_displayed(console: ConsoleService, tmp_path: Path) -> None:
    """N1, H5: the page shows the last verdict and findings, which are stored beside checkpoints."""
    write_checkpoint(console, tmp_path, 2)
    keep_result(console, tmp_path, equal=True, duplicates=1, missing=0)
    page = console.sign_in().get("/topics").text
    assert "equal up to 2" in page
    assert "duplicates 1" in page
    assert "missing" not in page

    keep_result(console, tmp_path, equal=False, missing=1)
    keep_result(console, tmp_path, equal=False, missing=1200)
    reconciliation = read_storage([str(tmp_path / "checkpoints")], []).publishers[0].reconciliation
    assert reconciliation is not None
    assert (reconciliation.equal, reconciliation.findings, reconciliation.until) == (
        False,
        {"missing": 1200},
        2,
    )
    assert len(list((tmp_path / "checkpoints" / RECORD_FOLDER).iterdir())) == 2
    newest = max((tmp_path / "checkpoints" / RECORD_FOLDER).iterdir())
    newest.write_bytes(newest.read_bytes()[:-20])
    previous = read_storage([str(tmp_path / "checkpoints")], []).publishers[0].reconciliation
    assert previous is not None
    assert previous.findings == {"missing": 1}


def test_a_reconciliation_of_an_earlier_epoch_is_marked(
    console: ConsoleService, tmp_path: Path
) -> None:
    """F8, H5: after a restore, a verdict from an earlier epoch is marked."""
    keep_result(console, tmp_path, equal=True)
    console.service.log.store.raise_epoch()
    page = console.sign_in().get("/topics").text

    assert "of an earlier log or epoch" in page
    assert "there is no checkpoint yet" in page


def test_a_long_archive_is_read_from_its_end(console: ConsoleService, tmp_path: Path) -> None:
    """N1: the report of an archive is bounded, for any number of segments."""
    write_archive(console, tmp_path, 2 * SEGMENTS_MAX)
    [archive] = read_storage([], [str(tmp_path / "archive")]).archives

    assert len(archive.segments) == SEGMENTS_MAX
    assert archive.segment_count == 2 * SEGMENTS_MAX
    assert archive.segments[0].last == archive.end == 2 * SEGMENTS_MAX


def test_a_checkpoint_of_an_earlier_epoch_is_marked(
    console: ConsoleService, tmp_path: Path
) -> None:
    """F8: after a restore, a checkpoint from another epoch is marked."""
    console.service.log.store.raise_epoch()
    write_checkpoint(console, tmp_path, 2)

    assert "of an earlier epoch" in console.sign_in().get("/topics").text


def test_missing_and_damaged_places_are_reported(console: ConsoleService, tmp_path: Path) -> None:
    """N1: the page reports a missing checkpoint and a damaged archive, and does not fail."""
    archive = tmp_path / "archive"
    archive.mkdir()
    (archive / HEADER_NAME).write_text("<script>alert(1)</script>")
    page = console.sign_in().get("/topics")

    assert page.status == 200
    assert "there is no checkpoint yet" in page.text
    assert "archive.json" in page.text
    assert "<script>alert" not in page.html


def test_only_operators_of_all_tenants_see_topics(console: ConsoleService, tmp_path: Path) -> None:
    """K2: only operators of all tenants see topics and archives."""
    write_checkpoint(console, tmp_path, 1)
    page = console.sign_in(tenant_id="default").get("/topics")

    assert page.status == 200
    assert TARGET not in page.text
    assert console.sign_in(rights=["read"]).get("/topics").status == 403
