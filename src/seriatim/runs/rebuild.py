"""Rebuild and verify: fold the whole log into a shadow, compare it, and switch to it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from seriatim.core.errors import BackendFailure, Conflict, NotFound, ProjectionFailed
from seriatim.core.event import LogIdentity
from seriatim.core.fold import RowDigest
from seriatim.core.projection import Table
from seriatim.runs.job_loop import ProgressReporter
from seriatim.runs.projection_batch import apply_range
from seriatim.runs.projection_job import ModelLease, ProjectionJob
from seriatim.runs.projection_lease import hold_lease
from seriatim.store.log_identity import find_cursor_problem
from seriatim.store.readmodel.model import ReadModelSnapshot, TableRow
from seriatim.store.readmodel.port import Progress

_LEASE_S = 30.0
_COMPARE_ATTEMPTS = 5  # attempts to compare while the live tables advance, before they are held
_HELD_COMPARE_ATTEMPTS = 60


class RowDifference(msgspec.Struct, frozen=True):
    """The first row in which a read model and its log differ.

    Attributes:
        table: The name of the table.
        tenant_id: The tenant of the row.
        key: The key of the row.
        stored: The row of the read model, None if it is missing.
        expected: The row that the log produces, None if there is none.

    """

    table: str
    tenant_id: str
    key: dict[str, Any]
    stored: dict[str, Any] | None
    expected: dict[str, Any] | None


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a rebuild or a verification: digests of both tables at one position.

    Attributes:
        projection: The name of the projection.
        position: The position at which the tables were compared.
        rows: The number of rows that the log produces.
        digest: The digest of these rows.
        stored_digest: The digest of the live tables, None if there were none to compare with.
        difference: The first row that differs, None if there is none.
        switched: Whether the rebuilt tables have replaced the live ones.

    """

    projection: str
    position: int
    rows: int
    digest: str
    stored_digest: str | None
    difference: RowDifference | None = None
    switched: bool = False

    @property
    def equal(self) -> bool:
        """Whether the read model equals the fold of its log."""
        return self.difference is None and self.digest == (self.stored_digest or self.digest)


def rebuild_projection(job: ProjectionJob, *, accept: bool = False) -> Proof:
    """Fold the whole log into a shadow, compare it with the live tables, and switch.

    Args:
        job: The projection.
        accept: Whether to switch although the tables differ.

    Raises:
        ProjectionFailed: The declaration is unchanged and the tables differ, or an event failed.
        Conflict: Another rebuild or verification is running, or the tables cannot be replaced.
        BackendFailure: Fewer or more events were read than the log holds.

    """
    live = job.model.progress(job.projection.name)
    job.model.check_replaceable(job.projection)  # fail now, not after hours of work
    with job.translate_errors(), _open_shadow(job) as lease:
        if live is not None and _is_comparable(job, live):
            _fold_all(job, lease, live.position)
            proof = _compare(job, lease)
            if not proof.equal and not accept:
                raise _difference_error(job, proof)
        else:
            _fold_all(job, lease, job.store.head())
            proof = _describe_shadow(job)
        _switch(job, lease)
        return msgspec.structs.replace(proof, switched=True)


def rebuild_without_comparison(job: ProjectionJob) -> None:
    """Fold the whole log into a shadow and switch to it without a comparison."""
    with _open_shadow(job) as lease:
        _fold_all(job, lease, job.store.head())
        _switch(job, lease)


def verify_projection(job: ProjectionJob) -> Proof:
    """Fold the whole log into a shadow and compare it with the live tables; change nothing.

    Raises:
        NotFound: The projection has not run yet.
        Conflict: The declaration has changed, or another rebuild or verification is running.
        LogIdentityChanged: The log was restored or replaced.

    """
    live = job.model.progress(job.projection.name)
    if live is None:
        msg = f"projection {job.projection.name} has no read model yet: run seriatim project run"
        raise NotFound(msg, details={"projection": job.projection.name})
    job.check_progress(live)
    with job.translate_errors(), _open_shadow(job) as lease:
        _fold_all(job, lease, live.position)
        return _compare(job, lease)


def _is_comparable(job: ProjectionJob, live: Progress) -> bool:
    """Return whether the live tables were built from this declaration and this log."""
    identity = LogIdentity(live.log_id, live.epoch)
    same_log = find_cursor_problem(job.store, identity, live.position, live.last_event_id) is None
    return same_log and live.declaration == job.projection.declaration


@contextmanager
def _open_shadow(job: ProjectionJob) -> Iterator[ModelLease]:
    """Create a shadow, hold its lease during the block, and drop it afterwards."""
    name, owner = job.projection.name, uuid.uuid4().hex
    progress = job.model.progress(name, shadow=True)
    if progress is None or not progress.owner:
        job.model.drop(job.projection, shadow=True)  # left by a killed rebuild
        job.begin(shadow=True)
    token = job.model.claim(name, owner, _LEASE_S, shadow=True)
    if token is None:
        msg = f"projection {name} is already being rebuilt or verified: wait until that has ended"
        raise Conflict(msg, details={"projection": name})
    try:
        with hold_lease(job.model, name, token, _LEASE_S, shadow=True):
            yield ModelLease(token, shadow=True, owner=owner)
    finally:
        # After a switch there is no shadow; without the lease it belongs to another process.
        remaining = job.model.progress(name, shadow=True)
        if remaining is not None and remaining.token == token:
            job.model.drop(job.projection, shadow=True)


def _fold_all(job: ProjectionJob, lease: ModelLease, until: int) -> None:
    """Fold the log from its beginning up to a position."""
    if not until:
        return
    progress = ProgressReporter(job.projection.name, job.on_progress)

    def report(fraction: float) -> None:
        progress.advance("rebuild", int(until * fraction), until)

    report(0.0)
    job.build_shadow(lease, until, report)
    _check_count(job, lease, until)
    report(1.0)


def _check_count(job: ProjectionJob, lease: ModelLease, until: int) -> None:
    """Raise `BackendFailure` unless the shadow has read as many events as the log holds."""
    if until <= lease.counted_until:
        return
    after, read = lease.counted_until, lease.events_read
    lease.events_read, lease.counted_until = 0, until
    stored = job.count_stored(after, until)
    # An engine may count the events of a repeated task twice, and not at all if it does not see
    # them: only a separate read is exact.
    if stored is None or read == stored:
        return
    if read > stored or job.projection.is_frame:
        read = job.count_read(after, until)
    if read != stored:
        msg = (
            f"projection {job.projection.name} read {read} events after position {after} and "
            f"up to {until}, the log holds {stored}: the tables were not switched; run "
            f"{job.check_command}"
        )
        details = {"position": until, "read": read, "expected": stored}
        raise BackendFailure(msg, details=details, retryable=False)


def _advance(job: ProjectionJob, lease: ModelLease, until: int) -> int:
    """Apply batches to the shadow up to a position; return the position reached."""
    progress = job.model.progress(job.projection.name, shadow=True)
    position = progress.position if progress else 0
    while position < until:
        end = min(until, position + job.batch_events)
        position = apply_range(job, position, end, lease)
    return position


def _switch(job: ProjectionJob, lease: ModelLease) -> None:
    """Switch to the shadow when it has caught up with the live tables."""
    # The switch refuses while the live tables are ahead of the shadow: nobody may see a read model
    # that goes back.
    _check_count(job, lease, _advance(job, lease, job.store.head()))
    while not job.model.switch(job.projection):
        live = job.model.progress(job.projection.name)
        _check_count(job, lease, _advance(job, lease, live.position if live else 0))


def _describe_shadow(job: ProjectionJob) -> Proof:
    """Return the result of a rebuild that has no live tables to compare with."""
    with job.model.snapshot() as snapshot:
        shadow = snapshot.progress(job.projection.name, shadow=True)
        digest = snapshot.compute_digest(job.projection, shadow=True)
    return Proof(
        projection=job.projection.name,
        position=shadow.position if shadow else 0,
        rows=digest.count,
        digest=digest.text(),
        stored_digest=None,
    )


def _compare(job: ProjectionJob, lease: ModelLease) -> Proof:
    """Compare live tables and shadow in a snapshot in which both are at the same position."""
    name = job.projection.name
    for _ in range(_COMPARE_ATTEMPTS):
        if (proof := _compare_now(job)) is not None:
            return proof
        live = job.model.progress(name)
        _advance(job, lease, live.position if live else 0)
    # The live tables advance faster than the shadow: hold the runner for the last step.
    with job.model.hold(name, lease.token):
        for _ in range(_HELD_COMPARE_ATTEMPTS):
            if (proof := _compare_now(job)) is not None:
                return proof
            time.sleep(0.5)
            live = job.model.progress(name)
            _advance(job, lease, live.position if live else 0)
    msg = f"projection {name} advances too fast to be compared: pause it, and try again"
    raise Conflict(msg, details={"projection": name})


def _compare_now(job: ProjectionJob) -> Proof | None:
    """Compare in one snapshot; return None if the positions differ."""
    # A snapshot, because the live tables advance meanwhile. Rows are merged by key as they are
    # read, so that tables of any size are compared in little memory.
    with job.model.snapshot() as snapshot:
        live = snapshot.progress(job.projection.name)
        shadow = snapshot.progress(job.projection.name, shadow=True)
        if live is None or shadow is None or live.position != shadow.position:
            return None
        stored, expected = RowDigest(), RowDigest()
        difference = None
        for table in job.projection.tables:
            for pair in _pair_rows(job, snapshot, table):
                for row, digest in zip(pair, (stored, expected), strict=True):
                    if row is not None:
                        digest.add(table, row[0], row[1])
                if difference is None:
                    difference = _find_difference(table, *pair)
        return Proof(
            projection=job.projection.name,
            position=live.position,
            rows=expected.count,
            digest=expected.text(),
            stored_digest=stored.text(),
            difference=difference,
        )


def _pair_rows(
    job: ProjectionJob, snapshot: ReadModelSnapshot, table: Table
) -> Iterator[tuple[TableRow | None, TableRow | None]]:
    """Merge the rows of live table and shadow by key; None where one lacks the row."""
    cursors = [snapshot.rows(job.projection, table, shadow=shadow) for shadow in (False, True)]
    live, shadow = (next(cursor, None) for cursor in cursors)
    while live is not None or shadow is not None:
        live_key, shadow_key = _sort_key(table, live), _sort_key(table, shadow)
        take_live = live is not None and (shadow is None or live_key <= shadow_key)
        take_shadow = shadow is not None and (live is None or shadow_key <= live_key)
        yield (live if take_live else None), (shadow if take_shadow else None)
        live = next(cursors[0], None) if take_live else live
        shadow = next(cursors[1], None) if take_shadow else shadow


def _sort_key(table: Table, row: TableRow | None) -> tuple[Any, ...]:
    return () if row is None else (row[0], *(row[1][name] for name in table.key))


def _find_difference(
    table: Table, left: TableRow | None, right: TableRow | None
) -> RowDifference | None:
    """Return the difference of a pair of rows, or None if they are equal."""
    row = left or right
    if row is None or (left is not None and right is not None and left[:2] == right[:2]):
        return None
    return RowDifference(
        table=table.name,
        tenant_id=row[0],
        key={name: row[1][name] for name in table.key},
        stored=left[1] if left else None,
        expected=right[1] if right else None,
    )


def _difference_error(job: ProjectionJob, proof: Proof) -> ProjectionFailed:
    difference = proof.difference
    key = difference.key if difference else {}
    msg = (
        f"projection {job.projection.name} differs from its log at position {proof.position}: "
        f"the first difference is in table {difference.table if difference else '?'} at key {key}; "
        "nothing was switched. If the code has changed, raise the version of the declaration; "
        "otherwise accept the difference (--accept)"
    )
    details = {"projection": proof.projection, "position": proof.position, "key": key}
    return ProjectionFailed(msg, details=details)
