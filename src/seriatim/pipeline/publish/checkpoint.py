"""Checkpoints of a publisher: immutable objects in a folder or a bucket.

    <place>/checkpoints/00000000000000001042-9f3c….json

The highest intact checkpoint is valid. An incomplete one is ignored. Without any, publishing starts
at the beginning: events may be published again, but none is omitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import TypeVar

import msgspec

from seriatim.core.canonical import canonical_text
from seriatim.core.errors import Conflict, LogIdentityChanged, NotFound
from seriatim.core.event import LogIdentity
from seriatim.pipeline.object_storage import ObjectStorage

T = TypeVar("T")
CHECKPOINT_FOLDER = "checkpoints"
_NAME = re.compile(rf"{CHECKPOINT_FOLDER}/(\d{{20}})-[0-9a-f]{{16}}\.json")
_KEPT = 2  # the last one, and its predecessor in case the last one is incomplete


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The position up to which a log was delivered to a target."""

    log_id: str
    epoch: int
    target: str
    position: int
    last_event_id: str = msgspec.field(name="tip")  # the stored name must not change
    written_at: str
    # The last delivered events by tenant and id, which a lookback does not send again. Earlier
    # versions stored ids without tenants in `recent`; these are ambiguous and not read.
    delivered: tuple[tuple[str, str], ...] = ()

    @property
    def encoded(self) -> bytes:
        """The stored form."""
        return encode_object(self)

    @property
    def object_name(self) -> str:
        """The object name; different checkpoints of one position have different names."""
        return f"{CHECKPOINT_FOLDER}/{self.position:020d}-{digest_of(self.encoded)}.json"


class CheckpointStore:
    """Reads and writes the checkpoints of one publisher."""

    def __init__(self, place: ObjectStorage, target: str) -> None:
        self._place = place
        self._target = target

    def load_last(self) -> Checkpoint | None:
        """Return the highest intact checkpoint, or None."""
        for name in reversed(self._names()):
            try:
                checkpoint = parse_checkpoint(self._place.read(name))
            except NotFound:
                continue  # another publisher has just removed it after writing a later one
            if checkpoint is not None:
                return checkpoint
        return None

    def advance(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and remove obsolete ones.

        Raises:
            Conflict: A checkpoint of a later position exists.

        """
        # This check narrows the race between two publishers, and the lease prevents it. If both
        # fail, the highest checkpoint is valid, and events are sent twice but never omitted.
        last = self.load_last()
        if last is not None and last.position > checkpoint.position:
            msg = (
                f"the checkpoint is already at position {last.position}, after "
                f"{checkpoint.position}: another publisher writes to the same place; stop it, or "
                "give each publisher its own place"
            )
            raise Conflict(msg, details={"position": last.position})
        self._place.put_if_absent(checkpoint.object_name, checkpoint.encoded)
        self._remove_obsolete(self._names())

    def _remove_obsolete(self, names: Iterable[str]) -> None:
        for name in sorted(names)[:-_KEPT]:
            self._place.remove(name)

    def _names(self) -> list[str]:
        return [name for name in self._place.list_names(CHECKPOINT_FOLDER) if _NAME.fullmatch(name)]

    def check(
        self, last: Checkpoint, log: LogIdentity, head: int, last_event_id: str | None
    ) -> None:
        """Check that a checkpoint belongs to this log and this target.

        Args:
            last: The checkpoint.
            log: The identity of the log.
            head: The head of the log.
            last_event_id: The id of the event at the checkpoint's position.

        Raises:
            LogIdentityChanged: The log was restored or replaced.
            Conflict: The checkpoint belongs to another target.

        """
        problem = None
        if last.log_id != log.log_id:
            problem = "belongs to another log"
        elif last.epoch != log.epoch:
            problem = f"is of epoch {last.epoch}, but the log is in epoch {log.epoch}"
        elif last.position > head:
            problem = f"is at position {last.position}, but the log ends at {head}"
        elif last.position and last_event_id != last.last_event_id:
            problem = f"was written for another event at position {last.position}"
        if problem is not None:
            msg = (
                f"the publisher's checkpoint {problem}: the log was restored or replaced. Compare "
                "its topics with the log (seriatim reconcile), then name another place for "
                "checkpoints"
            )
            raise LogIdentityChanged(msg, details={"position": last.position})
        if last.target != self._target:
            msg = (
                f"the checkpoint belongs to {last.target}, not to {self._target}: name another "
                "place for checkpoints"
            )
            raise Conflict(msg, details={"target": last.target})


def parse_checkpoint(data: bytes) -> Checkpoint | None:
    """Parse a stored checkpoint; return None if it is incomplete."""
    return decode_object(data, Checkpoint)


def encode_object(value: msgspec.Struct) -> bytes:
    """Return canonical JSON, and its digest to detect an incomplete write."""
    body = canonical_text(msgspec.to_builtins(value))
    return f"{body}\n{sha256(body.encode()).hexdigest()}\n".encode()


def decode_object(data: bytes, kind: type[T]) -> T | None:
    """Parse a stored object; return None if it is incomplete."""
    body, _, digest = data.partition(b"\n")
    if sha256(body).hexdigest().encode() != digest.strip():
        return None
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        return None


def digest_of(data: bytes) -> str:
    """Return the digest in the name of a stored object."""
    return sha256(data).hexdigest()[:16]
