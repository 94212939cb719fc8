"""The results of reconciliations: immutable objects beside the checkpoints of their publisher.

    <place>/reconciliations/00001767225600000000-9f3c….json

The latest intact record counts. Incomplete ones are ignored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

import msgspec

from seriatim.core.errors import NotFound
from seriatim.core.event import LogIdentity
from seriatim.core.times import format_us, parse_us
from seriatim.pipeline.object_storage import ObjectStorage, open_storage
from seriatim.pipeline.publish.checkpoint import (
    CheckpointStore,
    decode_object,
    digest_of,
    encode_object,
)

RECORD_FOLDER = "reconciliations"
_NAME = re.compile(rf"{RECORD_FOLDER}/(\d{{20}})-[0-9a-f]{{16}}\.json")
_KEPT = 2  # the last one, and its predecessor in case the last one is incomplete


class ReconciliationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing the topics of a target with a log.

    Attributes:
        target: The target, and the tenant whose events were compared.
        log_id: The log.
        epoch: Its epoch.
        until: The last position that was compared.
        finished_at: When the comparison ended, by the clock of its machine.
        equal: Whether the topics hold exactly the log, duplicates aside.
        events: The number of events of the log that were compared.
        messages: The number of messages that were read.
        findings: The number of findings of each kind that was found.
    """

    target: str
    log_id: str
    epoch: int
    until: int
    finished_at: str
    equal: bool
    events: int
    messages: int
    findings: dict[str, int]


def name_target(target: object, tenant_id: str | None) -> str:
    """Return the name under which a target and a tenant are stored."""
    return f"{target} of {'every tenant' if tenant_id is None else tenant_id}"


def is_published_to(place: str, target: str) -> bool:
    """Return whether a place holds checkpoints of a publisher with this target."""
    last = CheckpointStore(open_storage(place), target).load_last()
    return last is not None and last.target == target


def keep_record(
    place: str | ObjectStorage,
    target: str,
    log: LogIdentity,
    until: int,
    *,
    equal: bool,
    events: int,
    messages: int,
    findings: Mapping[str, int],
) -> ReconciliationRecord:
    """Store the result of a reconciliation, and remove obsolete ones."""
    record = ReconciliationRecord(
        target=target,
        log_id=log.log_id,
        epoch=log.epoch,
        until=until,
        finished_at=format_us(time.time_ns() // 1000),
        equal=equal,
        events=events,
        messages=messages,
        findings={name: count for name, count in findings.items() if count},
    )
    storage, data = open_storage(place), encode_object(record)
    moment = parse_us(record.finished_at) or 0
    storage.put_if_absent(f"{RECORD_FOLDER}/{moment:020d}-{digest_of(data)}.json", data)
    for name in _list_names(storage)[:-_KEPT]:
        storage.remove(name)
    return record


def load_record(storage: ObjectStorage) -> ReconciliationRecord | None:
    """Return the latest intact record of a place, or None."""
    for name in reversed(_list_names(storage)):
        try:
            found = decode_object(storage.read(name), ReconciliationRecord)
        except NotFound:
            continue  # another reconciliation has just removed it after writing a later one
        if found is not None:
            return found
    return None


def _list_names(storage: ObjectStorage) -> list[str]:
    return [name for name in storage.list_names(RECORD_FOLDER) if _NAME.fullmatch(name)]
