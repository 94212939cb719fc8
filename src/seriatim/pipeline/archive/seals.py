"""The manifest of an archive: whose it is, and a seal for each segment of it.

    archive.json                          the log's identity; made once, by the first archiver
    segments/<first>-<last>-<nonce>.parquet   the events; without a seal it is a leftover
    seals/<first>.json                    made once: this file holds the events from there on
    epochs/<epoch>.json                   made once: the archive was compared in this epoch (F8)

Seals are made in order, each from the position after the last sealed one, and none is ever made
twice or changed; so whatever dies when, the sealed segments are one gapless range from 1.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from seriatim.core.errors import BackendFailure
from seriatim.core.indexes import StoredIndex
from seriatim.core.kinds import EventType, StreamKind
from seriatim.pipeline.digest import added, digest_number

FORMAT = "seriatim-archive"
VERSION = 1  # of this layout, and of the columns in the segments

HEADER = "archive.json"
_Entry = TypeVar("_Entry")
_SEGMENT = re.compile(r"segments/(\d{20})-(\d{20})-.*")


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Whose events an archive holds."""

    format: str = FORMAT
    version: int = VERSION
    log_id: str


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The log's declarations when a segment was sealed, which its restored copy needs as well."""

    kinds: list[StreamKind] = []
    types: list[EventType] = []
    indexes: list[StoredIndex] = []


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """The seal of one segment: its range, its file, and what proves both.

    `digest` is that of its events, `total` that of all events from 1 to its last; `tip` is the id
    of the last event.
    """

    version: int = VERSION
    log_id: str
    epoch: int
    first: int
    last: int
    count: int
    tip: str
    digest: str
    total: str
    file: str
    bytes: int
    sha256: str
    declared: Declared = Declared()

    @property
    def name(self) -> str:
        """The name of its seal."""
        return f"seals/{self.first:020d}.json"


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """That an archive was found equal to its log, up to a position, in a later epoch."""

    epoch: int
    last: int

    @property
    def name(self) -> str:
        """The name it is stored under."""
        return f"epochs/{self.epoch:020d}.json"


def file_name(first: int, last: int, nonce: str) -> str:
    """Return a name for the file of a segment that no other attempt has."""
    return f"segments/{first:020d}-{last:020d}-{nonce}.parquet"


def first_of(name: str) -> int | None:
    """Return the first position of the segment that a file was written for."""
    found = _SEGMENT.fullmatch(name)
    return None if found is None else int(found[1])


def encoded(entry: msgspec.Struct) -> bytes:
    """Return an entry of the manifest as it is stored."""
    return msgspec.json.format(msgspec.json.encode(entry), indent=1)


def decoded_header(raw: bytes) -> Header:
    """Return the header of an archive, or say why it is none."""
    header = _decoded(raw, Header, HEADER)
    if header.format != FORMAT or header.version > VERSION:
        msg = f"{HEADER} is {header.format!r:.40} version {header.version}, not known here"
        raise BackendFailure(msg, details={"name": HEADER}, retryable=False)
    return header


def decoded_segment(raw: bytes, name: str) -> Segment:
    """Return a seal, or say why it is none."""
    segment = _decoded(raw, Segment, name)
    if segment.version > VERSION:
        msg = f"{name} is of version {segment.version}: upgrade the package"
        raise BackendFailure(msg, details={"name": name}, retryable=False)
    if segment.name != name or segment.count != segment.last - segment.first + 1:
        raise broken(f"{name} does not say what its name says", name)
    return segment


def decoded_epoch(raw: bytes, name: str) -> Epoch:
    """Return the mark of an epoch."""
    return _decoded(raw, Epoch, name)


def _decoded(raw: bytes, kind: type[_Entry], name: str) -> _Entry:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise broken(f"{name} is damaged: {error}", name) from None


def broken(problem: str, name: str) -> BackendFailure:
    """Make the error for an archive that is not what it was when it was sealed."""
    msg = f"the archive is broken: {problem}; restore it from a copy, or archive anew elsewhere"
    return BackendFailure(msg, details={"name": name}, retryable=False)


def chain_problem(before: Segment | None, segment: Segment, log_id: str) -> str | None:
    """Say why a seal does not follow the one before it."""
    expected = 1 if before is None else before.last + 1
    if segment.first != expected:
        return f"the seal from position {expected} is missing; the next is {segment.name}"
    if segment.log_id != log_id:
        return f"{segment.name} is of another log"
    sums = [digest_number(segment.digest)]
    if before is not None:
        sums.append(digest_number(before.total))
    if added(sums) != digest_number(segment.total):
        return f"the digests of {segment.name} and of those before it do not add up"
    return None
