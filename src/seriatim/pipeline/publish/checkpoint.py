"""How far a log was published, in a folder or a bucket: objects that are only created.

    <place>/checkpoints/00000000000000001042-9f3c….json

The highest one that is whole counts. A torn one is passed by, a missing one means that publishing
begins anew: events may be published again, none is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256

import msgspec

from seriatim.core.canonical import canonical_text
from seriatim.core.errors import Conflict, LogIdentityChanged, NotFound
from seriatim.core.event import LogIdentity
from seriatim.pipeline.archive.place import Place

FOLDER = "checkpoints"
_NAME = re.compile(rf"{FOLDER}/(\d{{20}})-[0-9a-f]{{16}}\.json")
_KEPT = 2  # the last one, and one before it should that be torn


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was delivered: everything of this log up to a position, to this target."""

    log_id: str
    epoch: int
    target: str
    position: int
    tip: str
    written_at: str
    # The last events by tenant and id, which a second look need not send again. Checkpoints once
    # kept ids without tenants, as `recent`: those tell no events apart, and are not read.
    delivered: tuple[tuple[str, str], ...] = ()

    @property
    def data(self) -> bytes:
        """The checkpoint as it is stored, with its own digest."""
        body = canonical_text(msgspec.to_builtins(self))
        return f"{body}\n{sha256(body.encode()).hexdigest()}\n".encode()

    @property
    def name(self) -> str:
        """The object that holds it; another publisher's of the same position has another name."""
        return f"{FOLDER}/{self.position:020d}-{sha256(self.data).hexdigest()[:16]}.json"


class Checkpoints:
    """The checkpoints of one publisher."""

    def __init__(self, place: Place, target: str) -> None:
        self._place = place
        self._target = target

    def last(self) -> Checkpoint | None:
        """Return the highest checkpoint that is whole."""
        for name in reversed(self._names()):
            try:
                found = parsed(self._place.read(name))
            except NotFound:
                continue  # another publisher has just moved on
            if found is not None:
                return found
        return None

    def move(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, and remove what it makes useless."""
        last = self.last()
        if last is not None and last.position > checkpoint.position:
            msg = (
                f"the checkpoint stands at {last.position} already, not before "
                f"{checkpoint.position}: another publisher writes to the same place"
            )
            raise Conflict(msg, details={"position": last.position})
        self._place.create(checkpoint.name, checkpoint.data)
        self._tidy(self._names())

    def _tidy(self, names: Iterable[str]) -> None:
        for name in sorted(names)[:-_KEPT]:
            self._place.remove(name)

    def _names(self) -> list[str]:
        return [name for name in self._place.names(FOLDER) if _NAME.fullmatch(name)]

    def check(self, last: Checkpoint, log: LogIdentity, head: int, tip: str | None) -> None:
        """Refuse a checkpoint of another log, another target, or a future that was lost."""
        problem = None
        if last.log_id != log.log_id:
            problem = "belongs to another log"
        elif last.epoch != log.epoch:
            problem = f"is of epoch {last.epoch}, the log is in epoch {log.epoch}"
        elif last.position > head:
            problem = f"stands at {last.position}, the log ends at {head}"
        elif last.position and tip != last.tip:
            problem = f"has seen another event at position {last.position}"
        if problem is not None:
            msg = (
                f"the publisher's checkpoint {problem}: the log was restored or replaced; see what "
                "its topics hold (seriatim reconcile), then name another place for checkpoints"
            )
            raise LogIdentityChanged(msg, details={"position": last.position})
        if last.target != self._target:
            msg = f"the checkpoint is of {last.target}, not of {self._target}: name another place"
            raise Conflict(msg, details={"target": last.target})


def parsed(data: bytes) -> Checkpoint | None:
    """Return the checkpoint that an object holds, None if it is torn."""
    body, _, digest = data.partition(b"\n")
    if sha256(body).hexdigest().encode() != digest.strip():
        return None
    try:
        return msgspec.json.decode(body, type=Checkpoint)
    except msgspec.ValidationError:
        return None
