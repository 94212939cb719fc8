"""Rebuild and verify: a shadow folded from nothing, compared, and put in the old one's place."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa

from seriatim.core.errors import BackendFailure, Conflict, NotFound, ProjectionFailed
from seriatim.core.event import LogIdentity
from seriatim.core.fold import Digest
from seriatim.core.projection import Table
from seriatim.log.cursors import problem_with
from seriatim.pipeline.failures import noted_errors
from seriatim.pipeline.options import source_options
from seriatim.pipeline.project import frames
from seriatim.pipeline.project.applying import Side, apply_batch
from seriatim.pipeline.project.folding import FrameLoader, Loader
from seriatim.pipeline.project.job import Job, Report
from seriatim.pipeline.project.leasing import kept_lease
from seriatim.pipeline.project.outcome import Outcome, outcome_of
from seriatim.pipeline.project.watching import watched
from seriatim.pipeline.scan import count_events
from seriatim.pipeline.wanted import Scan
from seriatim.store.readmodel.moment import Found, Moment
from seriatim.store.readmodel.port import Progress, Step

_LEASE_S = 30.0
_ROUNDS = 5  # how often the shadow runs after the live tables before these are held still
_HELD_ROUNDS = 60
_PART_EVENTS = 2_000_000  # events a task folds at most, if keys are even


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


def rebuild(job: Job, *, accept: bool = False) -> Proof:
    """Fold the whole log into a shadow, compare it with what is there, and switch.

    With an unchanged declaration a difference blocks the switch, unless it is accepted.
    """
    live = job.model.progress(job.projection.name)
    job.model.check_replaceable(job.projection)  # now, and not after hours of work
    with _shadow(job) as side:
        if live is not None and _comparable(job, live):
            _fold_all(job, side, live.position)
            proof = _compared(job, side)
            if not proof.equal and not accept:
                raise _unequal(job, proof)
        else:
            _fold_all(job, side, job.store.head())
            proof = _described(job)
        _switch(job, side)
        return msgspec.structs.replace(proof, switched=True)


def replace(job: Job) -> None:
    """Fold the whole log into a shadow and switch to it, without comparing."""
    with _shadow(job) as side:
        _fold_all(job, side, job.store.head())
        _switch(job, side)


def verify(job: Job) -> Proof:
    """Fold the whole log into a shadow and compare; nothing else changes."""
    live = job.model.progress(job.projection.name)
    if live is None:
        msg = f"projection {job.projection.name} has no read model yet: seriatim project run"
        raise NotFound(msg, details={"projection": job.projection.name})
    job.check(live)
    with _shadow(job) as side:
        _fold_all(job, side, live.position)
        return _compared(job, side)


def _comparable(job: Job, live: Progress) -> bool:
    """Tell whether the live tables come from this declaration and this log."""
    seen = LogIdentity(live.log_id, live.epoch)
    same_log = problem_with(job.store, seen, live.position, live.tip) is None
    return same_log and live.declaration == job.projection.declaration


@contextmanager
def _shadow(job: Job) -> Iterator[Side]:
    """Make a shadow of one's own, keep others from it, and take it away whatever happens."""
    name, owner = job.projection.name, uuid.uuid4().hex
    known = job.model.progress(name, shadow=True)
    if known is None or not known.owner:
        job.model.drop(job.projection, shadow=True)  # what a killed rebuild left
        job.begin(shadow=True)
    token = job.model.claim(name, owner, _LEASE_S, shadow=True)
    if token is None:
        msg = f"projection {name} is being rebuilt or verified already"
        raise Conflict(msg, details={"projection": name})
    try:
        with kept_lease(job.target, name, token, _LEASE_S, shadow=True):
            yield Side(token, shadow=True, owner=owner)
    finally:
        left = job.model.progress(name, shadow=True)
        if left is not None and left.token == token:
            job.model.drop(job.projection, shadow=True)


def _fold_all(job: Job, side: Side, until: int) -> None:
    """Fold the log from its beginning to a position, every part storing its own keys."""
    began = time.monotonic()
    if not until:
        return

    def tell(share: float) -> None:
        position = int(until * share)
        pace = position / max(time.monotonic() - began, 1e-6)
        job.watcher(Report(job.projection.name, "rebuild", position, until, pace))

    tell(0.0)
    parts = job.spread * -(-until // (job.spread * _PART_EVENTS))  # all cores to the end
    with watched(job.spark, tell, job.stages(parts)):
        outcome = _loaded(job, side, until, parts)
    first = outcome.first_failure
    if first is not None and job.projection.on_failure == "stop":
        raise job.stopped(first)
    side.read += outcome.read
    _check_count(job, side, until)
    step = Step(after=0, until=until, tip=job.tip(until), failures=outcome.step.failures)
    job.model.commit(job.projection, step, token=side.token, shadow=True)
    tell(1.0)


def _check_count(job: Job, side: Side, until: int) -> None:
    """Raise `BackendFailure` if fewer events reached the shadow than the log holds up to here."""
    read = None if job.projection.is_frame else side.read  # a DataFrame's reads are Spark's own
    if until > side.counted:
        _compare_count(job, read, side.counted, until)
    side.read, side.counted = 0, until


def _compare_count(job: Job, read: int | None, after: int, until: int) -> None:
    """Raise `BackendFailure` unless so many events were read as the log holds in a range.

    Without a number, the events are counted by a read of their own; only an archive can then
    hold other events than the log.
    """
    if read is None and job.archive is None:
        return
    expected = _stored_count(job, after, until)
    # Spark counts a repeated stage twice: only a read of its own is exact.
    if read is None or read > expected:
        read = job.events(after, until).select("position").count()
    if read != expected:
        check = "seriatim archive verify" if job.archive else "seriatim verify"
        msg = (
            f"projection {job.projection.name} read {read} events after position {after} and "
            f"up to {until}, the log holds {expected}: nothing was switched; run {check}"
        )
        details = {"position": until, "read": read, "expected": expected}
        raise BackendFailure(msg, details=details, retryable=False)


def _stored_count(job: Job, after: int, until: int) -> int:
    """Return how many events of a range the log holds for this projection."""
    wanted = source_options(job.options).scan
    if not wanted.filtered:
        return until - after  # positions have no gaps
    # In a task: the driver may hold a SQLite log open, and must not open it by another library.
    counter = _Counter(job.url, wanted, after, until)
    found = job.spark.range(0, 1, 1, 1).mapInArrow(counter, "events long").collect()
    return sum(row[0] for row in found)


class _Counter(msgspec.Struct, frozen=True):
    """Counts the wanted events of a range of the log, in the database."""

    url: str
    wanted: Scan
    after: int
    until: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the count once; the task's own row means nothing."""
        with noted_errors():
            for _ in batches:
                count = count_events(self.url, self.wanted, self.after, self.until)
                yield pa.RecordBatch.from_pydict({"events": [count]})


def _loaded(job: Job, side: Side, until: int, parts: int) -> Outcome:
    if job.projection.is_frame:
        rows = frames.transformed(job.events(0, until), job.projection, job.tenant_id)
        loader = FrameLoader(projection=job.sent, target=job.target, until=until, owner=side.owner)
        return outcome_of(job.projection, frames.stored(rows, loader).toArrow())
    loader_of_keys = Loader(
        projection=job.projection, target=job.target, shadow=True, owner=side.owner
    )
    return job.outcome((0, until), loader_of_keys, spread=parts)


def _advance(job: Job, side: Side, until: int) -> int:
    """Bring the shadow to a position, in batches as a run has them; return the position."""
    known = job.model.progress(job.projection.name, shadow=True)
    at = known.position if known else 0
    while at < until:
        end = min(until, at + job.batch_events)
        at = apply_batch(job, (at, end), at, side)
    return at


def _switch(job: Job, side: Side) -> None:
    _check_count(job, side, _advance(job, side, job.store.head()))
    while not job.model.switch(job.projection):
        live = job.model.progress(job.projection.name)
        _check_count(job, side, _advance(job, side, live.position if live else 0))


def _described(job: Job) -> Proof:
    """Tell what the shadow holds, when there is nothing to compare it with."""
    with job.model.moment() as moment:
        shadow = moment.progress(job.projection.name, shadow=True)
        made = moment.digest(job.projection, shadow=True)
    return Proof(
        projection=job.projection.name,
        position=shadow.position if shadow else 0,
        rows=made.count,
        digest=made.text(),
        stored_digest=None,
    )


def _compared(job: Job, side: Side) -> Proof:
    """Compare both at one moment in which they stand at one position."""
    name = job.projection.name
    for _ in range(_ROUNDS):
        if (proof := _compared_now(job)) is not None:
            return proof
        live = job.model.progress(name)
        _advance(job, side, live.position if live else 0)
    # The log grows faster than this follows: hold the runner for the last step.
    with job.model.hold(name, side.token):
        for _ in range(_HELD_ROUNDS):
            if (proof := _compared_now(job)) is not None:
                return proof
            time.sleep(0.5)
            live = job.model.progress(name)
            _advance(job, side, live.position if live else 0)
    msg = f"projection {name} could not be held still to be compared: pause it, and try again"
    raise Conflict(msg, details={"projection": name})


def _compared_now(job: Job) -> Proof | None:
    with job.model.moment() as moment:
        live = moment.progress(job.projection.name)
        shadow = moment.progress(job.projection.name, shadow=True)
        if live is None or shadow is None or live.position != shadow.position:
            return None
        stored, expected = Digest(), Digest()
        difference = None
        for table in job.projection.tables:
            for pair in _paired(job, moment, table):
                for side, digest in zip(pair, (stored, expected), strict=True):
                    if side is not None:
                        digest.add(table, side[0], side[1])
                if difference is None:
                    difference = _difference(table, *pair)
        return Proof(
            projection=job.projection.name,
            position=live.position,
            rows=expected.count,
            digest=expected.text(),
            stored_digest=stored.text(),
            difference=difference,
        )


def _paired(job: Job, moment: Moment, table: Table) -> Iterator[tuple[Found | None, Found | None]]:
    """Walk both tables in the order of their key, side by side."""
    walks = [moment.rows(job.projection, table, shadow=shadow) for shadow in (False, True)]
    left, right = (next(walk, None) for walk in walks)
    while left is not None or right is not None:
        order = _place(table, left), _place(table, right)
        takes = left is not None and (right is None or order[0] <= order[1])
        takes_too = right is not None and (left is None or order[1] <= order[0])
        yield (left if takes else None), (right if takes_too else None)
        left = next(walks[0], None) if takes else left
        right = next(walks[1], None) if takes_too else right


def _place(table: Table, found: Found | None) -> tuple[Any, ...]:
    return () if found is None else (found[0], *(found[1][name] for name in table.key))


def _difference(table: Table, left: Found | None, right: Found | None) -> Difference | None:
    one = left or right
    if one is None or (left is not None and right is not None and left[:2] == right[:2]):
        return None
    return Difference(
        table=table.name,
        tenant_id=one[0],
        key={name: one[1][name] for name in table.key},
        stored=left[1] if left else None,
        expected=right[1] if right else None,
    )


def _unequal(job: Job, proof: Proof) -> ProjectionFailed:
    where = proof.difference
    key = where.key if where else {}
    msg = (
        f"projection {job.projection.name} does not equal its log at position {proof.position}: "
        f"the first difference is in table {where.table if where else '?'} at key {key}; nothing "
        "was switched. Raise the version of the declaration if its code has changed, or accept it"
    )
    details = {"projection": proof.projection, "position": proof.position, "key": key}
    return ProjectionFailed(msg, details=details)
