"""What read models say of themselves, and what one step does to them."""

from __future__ import annotations

from typing import Literal

import msgspec

from seriatim.core.fold import Failure, Kept, Owner
from seriatim.store.engine import Purpose

Status = Literal["ready", "paused", "failed"]
FailureStatus = Literal["stopped", "parked", "skipped", "passed"]

PURPOSE = Purpose(
    what="the read model",
    option="--target",
    last_table="seriatim_failures",
    remake="rebuild the projection",
    durable=False,  # a lost last batch is folded again: rows and cursor are lost together
)


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a projection has come, in which log; `owner` is who runs it now, if anybody.

    `held_until` is set while a rebuild or verification holds it still to be compared; the hold is
    renewed while that job lives, and ends by itself when the job was killed.
    """

    name: str
    shadow: bool
    tenant_id: str
    declaration: str
    position: int
    log_id: str
    epoch: int
    tip: str
    status: Status
    updated_at: str
    owner: str
    token: int
    held_until: str | None = None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where a projection stands; `lag` counts positions of the log that it has not passed.

    `held_until` is set while a rebuild or verification holds it still, as in `Progress`.
    """

    name: str
    position: int
    lag: int
    updated_at: str
    status: Status
    running: bool
    failures: int
    held_until: str | None = None


class FailureRecord(msgspec.Struct, frozen=True):
    """A failure that is kept, what became of it, and whether its key is to be folded anew."""

    failure: Failure
    status: FailureStatus
    failed_at: str
    again: bool


class Step(msgspec.Struct, kw_only=True):
    """What one batch of the log (`after`, `until`] does to a read model, in one transaction."""

    after: int
    until: int
    tip: str
    rows: dict[str, list[Kept]] = msgspec.field(default_factory=dict)
    own: dict[Owner, Kept] = msgspec.field(default_factory=dict)  # rows that are states
    states: dict[Owner, tuple[int, str]] = msgspec.field(default_factory=dict)
    failures: list[tuple[Failure, FailureStatus]] = msgspec.field(default_factory=list)
