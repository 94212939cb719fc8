"""Manifest of an archive: a header, a seal for each segment, and the epochs it was compared in.

    archive.json                              the log id; created once, by the first archiver
    segments/<first>-<last>-<nonce>.parquet   events; without a seal, the file is a leftover
    seals/<first>.json                        created once: the file of these events
    epochs/<epoch>.json                       created once: compared in this epoch (F8)

Seals are created in order, each from the position after the last sealed one. A seal is never
replaced or changed. So after a crash at any moment, the sealed segments are one gapless range
from position 1.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from seriatim.core.errors import BackendFailure
from seriatim.core.indexes import StoredIndex
from seriatim.core.kinds import EventType, StreamKind
from seriatim.pipeline.digest import add_digests, parse_digest

FORMAT = "seriatim-archive"
VERSION = 1  # of this layout and of the columns of segments

HEADER_NAME = "archive.json"
_Entry = TypeVar("_Entry")
_SEGMENT_NAME = re.compile(r"segments/(\d{20})-(\d{20})-.*")


class ArchiveHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of an archive: its format, and the log it belongs to."""

    format: str = FORMAT
    version: int = VERSION
    log_id: str


class ArchivedDeclarations(msgspec.Struct, frozen=True, kw_only=True):
    """The declarations of the log when a segment was sealed; a restore declares them again."""

    kinds: list[StreamKind] = []
    types: list[EventType] = []
    indexes: list[StoredIndex] = []


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """The seal of one segment, stored as JSON.

    Attributes:
        version: The version of the archive format.
        log_id: The id of the archived log.
        epoch: The epoch of the log when the segment was sealed.
        first: The first position.
        last: The last position.
        count: The number of events.
        last_event_id: The id of the last event.
        digest: The digest of the events of this segment.
        total: The digest of all events from position 1 to `last`.
        file: The name of the Parquet file.
        bytes: The size of the file.
        sha256: The SHA-256 of the file.
        declared: The declarations of the log.
    """

    version: int = VERSION
    log_id: str
    epoch: int
    first: int
    last: int
    count: int
    # Stored as "tip" in existing archives: the stored name must not change.
    last_event_id: str = msgspec.field(name="tip")
    digest: str
    total: str
    file: str
    bytes: int
    sha256: str
    declared: ArchivedDeclarations = ArchivedDeclarations()

    @property
    def seal_name(self) -> str:
        """The name of the seal's object in the archive."""
        return f"seals/{self.first:020d}.json"


class ComparedEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """A record that the archive, up to position `last`, equals its log in a later epoch."""

    epoch: int
    last: int

    @property
    def name(self) -> str:
        """The name of this record's object in the archive."""
        return f"epochs/{self.epoch:020d}.json"


def make_file_name(first: int, last: int, nonce: str) -> str:
    """Return the name of a segment's file; the nonce makes it unique to one attempt."""
    return f"segments/{first:020d}-{last:020d}-{nonce}.parquet"


def parse_first_position(name: str) -> int | None:
    """Return the first position in the name of a segment's file, None for another name."""
    match = _SEGMENT_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def encode_entry(entry: msgspec.Struct) -> bytes:
    """Encode an entry of the manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(entry), indent=1)


def decode_header(raw: bytes) -> ArchiveHeader:
    """Decode the header of an archive.

    Raises:
        BackendFailure: The header is damaged, or of an unknown format or version.
    """
    header = _decode(raw, ArchiveHeader, HEADER_NAME)
    if header.format != FORMAT or header.version > VERSION:
        msg = (
            f"{HEADER_NAME} has format {header.format!r:.40} version {header.version}, this "
            "package "
            f"reads {FORMAT} up to version {VERSION}: upgrade the package"
        )
        raise BackendFailure(msg, details={"name": HEADER_NAME}, retryable=False)
    return header


def decode_segment(raw: bytes, name: str) -> Segment:
    """Decode the seal of a segment.

    Args:
        raw: The stored JSON.
        name: The name of the object.

    Raises:
        BackendFailure: The seal is damaged, of an unknown version, or stored under another name.
    """
    segment = _decode(raw, Segment, name)
    if segment.version > VERSION:
        msg = f"{name} has version {segment.version}, newer than {VERSION}: upgrade the package"
        raise BackendFailure(msg, details={"name": name}, retryable=False)
    if segment.seal_name != name or segment.count != segment.last - segment.first + 1:
        raise damaged_archive_error(f"{name} contradicts its name or its own count", name)
    return segment


def decode_epoch(raw: bytes, name: str) -> ComparedEpoch:
    """Decode the record of an epoch.

    Raises:
        BackendFailure: The record is damaged.
    """
    return _decode(raw, ComparedEpoch, name)


def _decode(raw: bytes, kind: type[_Entry], name: str) -> _Entry:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise damaged_archive_error(f"{name} cannot be decoded: {error}", name) from None


def damaged_archive_error(problem: str, name: str) -> BackendFailure:
    """Return the error for an archive that differs from its state when it was sealed."""
    msg = f"the archive is damaged: {problem}; replace it by a copy, or archive to a new location"
    return BackendFailure(msg, details={"name": name}, retryable=False)


def find_chain_problem(before: Segment | None, segment: Segment, log_id: str) -> str | None:
    """Return why a seal does not continue the chain, None if it does.

    Args:
        before: The preceding seal, None for the first.
        segment: The seal to check.
        log_id: The log id of the archive's header.
    """
    expected = 1 if before is None else before.last + 1
    if segment.first != expected:
        return f"the seal from position {expected} is missing; the next is {segment.seal_name}"
    if segment.log_id != log_id:
        return f"{segment.seal_name} belongs to another log"
    sums = [parse_digest(segment.digest)]
    if before is not None:
        sums.append(parse_digest(before.total))
    if add_digests(sums) != parse_digest(segment.total):
        return f"the digests of {segment.seal_name} and of the seals before it do not add up"
    return None
