"""Rebuild and verify: a shadow folded from nothing, compared, and put in the old one's place."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from seriatim.core.errors import Conflict, NotFound, ProjectionFailed
from seriatim.core.fold import Digest
from seriatim.core.projection import Table
from seriatim.pipeline.project import frames
from seriatim.pipeline.project.applying import apply_batch
from seriatim.pipeline.project.folding import FrameLoader, Loader
from seriatim.pipeline.project.outcome import outcome_of
from seriatim.pipeline.project.projector import Projector, Report
from seriatim.store.readmodel.moment import Found, Moment
from seriatim.store.readmodel.port import Progress, Step

_LEASE_S = 3600.0
_NEAR = 10_000  # events behind the live tables at which these are held still for the last step
_HOLD_ROUNDS = 20


class Difference(msgspec.Struct, frozen=True):
    """The first row in which a read model and its log differ; None where there is none."""

    table: str
    tenant_id: str
    key: dict[str, Any]
    stored: dict[str, Any] | None
    expected: dict[str, Any] | None


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild or a verification found: two digests at one position."""

    projection: str
    position: int
    rows: int
    digest: str
    stored_digest: str | None
    difference: Difference | None = None
    switched: bool = False

    @property
    def equal(self) -> bool:
        """Whether the read model equals its log."""
        return self.difference is None and self.digest == (self.stored_digest or self.digest)


def rebuild(job: Projector, *, accept: bool = False) -> Proof:
    """Fold the whole log into a shadow, compare it with what is there, and switch.

    With an unchanged declaration a difference blocks the switch, unless it is accepted.
    """
    with _shadow(job) as token:
        at = _fold_all(job, token)
        live = job.model.progress(job.projection.name)
        same = live is not None and _comparable(job, live)
        if same:
            proof = _compared(job, token, at)
        else:
            proof = _described(job)
        if not proof.equal and not accept:
            raise _unequal(job, proof)
        _switch(job, token)
        return msgspec.structs.replace(proof, switched=True)


def verify(job: Projector) -> Proof:
    """Fold the whole log into a shadow and compare; nothing else changes."""
    live = job.model.progress(job.projection.name)
    if live is None:
        msg = f"projection {job.projection.name} has no read model yet: seriatim project run"
        raise NotFound(msg, details={"projection": job.projection.name})
    job.check(live)
    with _shadow(job) as token:
        return _compared(job, token, _fold_all(job, token, until=live.position))


def _comparable(job: Projector, live: Progress) -> bool:
    """Tell whether both were made by one declaration from one log."""
    identity = job.store.identity()
    return live.declaration == job.projection.declaration and (live.log_id, live.epoch) == (
        identity.log_id,
        identity.epoch,
    )


@contextmanager
def _shadow(job: Projector) -> Iterator[int]:
    """Make a shadow of one's own, and take it away whatever happens."""
    name, owner = job.projection.name, uuid.uuid4().hex
    known = job.model.progress(name, shadow=True)
    if known is not None and known.owner:
        msg = f"projection {name} is being rebuilt or verified already"
        raise Conflict(msg, details={"projection": name})
    job.model.drop(job.projection, shadow=True)  # what a killed rebuild left
    job.begin(shadow=True)
    token = job.model.claim(name, owner, _LEASE_S, shadow=True)
    if token is None:
        msg = f"projection {name} is being rebuilt or verified already"
        raise Conflict(msg, details={"projection": name})
    try:
        yield token
    finally:
        left = job.model.progress(name, shadow=True)
        if left is not None and left.token == token:
            job.model.drop(job.projection, shadow=True)
