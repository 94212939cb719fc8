"""The values of read models: progress, status, failures, and the result of one batch."""

from __future__ import annotations

from typing import Literal

import msgspec

from seriatim.core.fold import Failure, ReadModelRow, TenantKey
from seriatim.store.engine import EnginePurpose

ProjectionStatus = Literal["ready", "paused", "failed"]
FailureStatus = Literal["stopped", "parked", "skipped", "passed"]

READ_MODEL_PURPOSE = EnginePurpose(
    label="the read model",
    target_option="--target",
    last_table="seriatim_failures",
    recreate_hint="rebuild the projection",
    durable=False,  # rows and cursor are lost together, so a lost batch is folded again
)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The cursor of a projection, the identity of its log, and its current owner.

    `last_event_id` is the id of the event at `position`. `owner` is empty while nobody runs the
    projection. `held_until` is set while a rebuild or verification pauses it for a comparison; that
    job renews the hold, which expires if the job is killed.
    """

    name: str
    shadow: bool
    tenant_id: str
    declaration: str
    position: int
    log_id: str
    epoch: int
    last_event_id: str
    status: ProjectionStatus
    updated_at: str
    owner: str
    token: int
    held_until: str | None = None


class ProjectionStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a projection; `lag` counts the positions between its cursor and the head.

    `held_until` is set while a rebuild or verification pauses it, as in `Progress`.
    """

    name: str
    position: int
    lag: int
    updated_at: str
    status: ProjectionStatus
    running: bool
    failures: int
    held_until: str | None = None


class FailureRecord(msgspec.Struct, frozen=True):
    """A stored failure, its status, and whether its key will be folded again (`again`)."""

    failure: Failure
    status: FailureStatus
    failed_at: str
    again: bool


class FailureCounts(msgspec.Struct, frozen=True):
    """The number of stored failures, and of those that no operator has skipped (`unresolved`)."""

    stored: int
    unresolved: int


class ProjectionStep(msgspec.Struct, kw_only=True):
    """The changes that one batch (`after`, `until`] makes to a read model, in one transaction."""

    after: int
    until: int
    last_event_id: str
    rows: dict[str, list[ReadModelRow]] = msgspec.field(default_factory=dict)
    # Rows that are themselves the states.
    state_rows: dict[TenantKey, ReadModelRow] = msgspec.field(default_factory=dict)
    states: dict[TenantKey, tuple[int, str]] = msgspec.field(default_factory=dict)
    failures: list[tuple[Failure, FailureStatus]] = msgspec.field(default_factory=list)
