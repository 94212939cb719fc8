"""What publishers and archivers have stored beside a log: checkpoints and sealed segments."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from seriatim.core.errors import SeriatimError
from seriatim.factory import redact_url
from seriatim.pipeline.archive.manifest import HEADER_NAME, decode_header, decode_segment
from seriatim.pipeline.object_storage import open_storage
from seriatim.pipeline.publish.checkpoint import CheckpointStore
from seriatim.pipeline.publish.reconciliation_record import load_record
from seriatim.wire.messages import (
    ArchiveStatus,
    LastReconciliation,
    PublisherStatus,
    SealedSegment,
    StorageResponse,
)

SEGMENTS_MAX = 50
_SEALS = "seals"


def read_storage(checkpoints: Sequence[str], archives: Sequence[str]) -> StorageResponse:
    """Read what each publisher stored last, and the latest seals of each archive.

    Args:
        checkpoints: The places of checkpoints: folders or buckets.
        archives: The places of archives.
    """
    return StorageResponse(
        [_read_publisher(place) for place in checkpoints],
        [_read_archive(place) for place in archives],
    )


def _read_publisher(place: str) -> PublisherStatus:
    name = redact_url(place)
    try:
        storage = open_storage(place)
        checkpoint = CheckpointStore(storage, "").load_last()
        record = load_record(storage)
    except SeriatimError as error:
        return PublisherStatus(place=name, problem=error.message)
    reconciliation = (
        None
        if record is None
        else msgspec.convert(record, LastReconciliation, from_attributes=True)
    )
    if checkpoint is None:
        problem = "there is no checkpoint yet"
        return PublisherStatus(place=name, problem=problem, reconciliation=reconciliation)
    return PublisherStatus(
        place=name,
        target=checkpoint.target,
        position=checkpoint.position,
        log_id=checkpoint.log_id,
        epoch=checkpoint.epoch,
        written_at=checkpoint.written_at,
        reconciliation=reconciliation,
    )


def _read_archive(place: str) -> ArchiveStatus:
    """Read the header and the latest seals; a long archive is not read as a whole."""
    name = redact_url(place)
    try:
        storage = open_storage(place)
        header = decode_header(storage.read(HEADER_NAME))
        # The names of the seals give their number; only the last ones are read.
        seals = storage.list_names(_SEALS)
        segments = [decode_segment(storage.read(seal), seal) for seal in seals[-SEGMENTS_MAX:]]
    except SeriatimError as error:
        return ArchiveStatus(place=name, problem=error.message)
    return ArchiveStatus(
        place=name,
        log_id=header.log_id,
        end=segments[-1].last if segments else 0,
        digest=segments[-1].total if segments else "",
        segment_count=len(seals),
        segments=[
            SealedSegment(
                first=segment.first,
                last=segment.last,
                bytes=segment.bytes,
                digest=segment.digest,
                sha256=segment.sha256,
                file=segment.file,
            )
            for segment in reversed(segments)
        ],
    )
