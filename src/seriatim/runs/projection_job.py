"""A projection job: one projection, its log and its read model; an engine computes its batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from seriatim.core.errors import Conflict, LogIdentityChanged, ProjectionFailed
from seriatim.core.event import DEFAULT_TENANT, LogIdentity
from seriatim.core.fold import Failure, Fold, TenantKey
from seriatim.core.projection import Projection
from seriatim.runs.job_loop import ProgressCallback
from seriatim.store.log_identity import find_cursor_problem
from seriatim.store.port import Store
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import FailureStatus, Progress, ProjectionStep

PositionRange = tuple[int, int]  # after (exclusive) and until (inclusive)

Ended = Callable[[], bool]

_STATUS: dict[str, FailureStatus] = {"stop": "stopped", "park": "parked", "skip": "skipped"}


class FoldOutcome(msgspec.Struct):
    """The outcome of a batch.

    Attributes:
        step: The changes of the read model; `apply_batch` sets its range.
        position_range: The range of positions that the batch covers; None if it is not known.
        events_read: The number of events that were read.

    """

    step: ProjectionStep
    position_range: PositionRange | None
    events_read: int = 0

    @property
    def first_failure(self) -> Failure | None:
        """The failure with the lowest position, or None."""
        failures = (failure for failure, _ in self.step.failures)
        return min(failures, key=lambda failure: failure.position, default=None)


def get_failure_status(projection: Projection) -> FailureStatus:
    """Return the status of a new failure under the failure policy of a projection."""
    return _STATUS[projection.on_failure]


def build_step(fold: Fold) -> ProjectionStep:
    """Return the changes of a fold, as one step without its range."""
    projection, status = fold.projection, get_failure_status(fold.projection)
    step = ProjectionStep(after=0, until=0, last_event_id="")
    step.failures = [(failure, status) for failure in fold.failures]
    if projection.state is None:
        step.state_rows = dict(fold.state_rows())
        return step
    step.rows = {table: list(rows.values()) for table, rows in fold.rows.items() if rows}
    step.states = {
        owner: (position, fold.states[owner]) for owner, position in fold.changed.items()
    }
    return step


class ModelLease(msgspec.Struct):
    """The lease on the live tables of a read model, or on its shadow.

    Attributes:
        token: The token of the lease, which each commit compares.
        shadow: Whether it is the lease on the shadow.
        owner: The owner of the shadow.
        events_read: The number of events read since `counted_until`.
        counted_until: The position up to which the number of events was compared with the log.

    """

    token: int
    shadow: bool = False
    owner: str = ""
    events_read: int = 0
    counted_until: int = 0


class ProjectionJob(ABC):
    """A projection, its log and its read model; each engine is a subclass."""

    # Events per batch when an engine catches up; fewer per batch when it follows the log.
    batch_events: int
    # The lag from which large batches are faster than following the log.
    follow_max_lag: int

    def __init__(
        self,
        projection: Projection,
        store: Store,
        model: ReadModel,
        *,
        tenant_id: str = DEFAULT_TENANT,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        """Create a job.

        Args:
            projection: The declaration.
            store: The store of the log.
            model: The read model.
            tenant_id: The tenant to project, or `*` for all.
            on_progress: Called with a `RunReport` after each batch.

        """
        self.projection = projection
        self.store = store
        self.model = model
        self.tenant_id = tenant_id
        self.on_progress = on_progress or (lambda _: None)

    # -- the engine

    @abstractmethod
    def fold_range(self, after: int, until: int, *, shadow: bool) -> FoldOutcome:
        """Compute the changes of the events after one position and up to another."""

    @abstractmethod
    def fold_key(self, owner: TenantKey, until: int) -> tuple[FoldOutcome, list[int]]:
        """Fold one key from its first event; return the outcome and the positions of its events."""

    @abstractmethod
    def build_shadow(self, lease: ModelLease, until: int, report: Callable[[float], None]) -> None:
        """Fold the log up to a position into the empty shadow, and move the shadow's cursor there.

        Args:
            lease: The lease on the shadow, which counts the events read.
            until: The position.
            report: Called with the completed fraction.

        Raises:
            ProjectionFailed: An event failed, and the projection stops at failures.

        """

    @abstractmethod
    def count_stored(self, after: int, until: int) -> int | None:
        """Return how many events of a range the log holds for this projection; None: unknown."""

    @abstractmethod
    def count_read(self, after: int, until: int) -> int:
        """Read a range again, and return the number of events."""

    @abstractmethod
    def follow(
        self, position: int, lease: ModelLease, report: Callable[[int], None], ended: Ended
    ) -> None:
        """Apply new events until `ended` returns true, which is to be called often.

        Args:
            position: The position of the cursor.
            lease: The lease on the live tables.
            report: Called with each position that was reached.
            ended: Whether the runner must do something else.

        """

    def translate_errors(self) -> AbstractContextManager[None]:
        """Return a context in which the errors of the engine become Seriatim's."""
        return nullcontext()

    @property
    def check_command(self) -> str:
        """The command that finds the damage if a rebuild read too few events."""
        return "seriatim verify"

    # -- progress

    def event_id_at(self, position: int) -> str:
        """Return the id of the event at a position; it identifies the history up to there."""
        return (self.store.event_id_at(position) or "") if position else ""

    def begin(self, *, shadow: bool = False) -> Progress:
        """Return the projection's progress, created if it is new, after `check_progress`."""
        log = self.store.identity()
        progress = self.model.create_projection(self.projection, self.tenant_id, log, shadow=shadow)
        self.check_progress(progress)
        return progress

    def check_progress(self, progress: Progress) -> None:
        """Check that the read model was built from this declaration and this log.

        Raises:
            Conflict: The declaration has changed.
            LogIdentityChanged: The log was restored or replaced.

        """
        name = self.projection.name
        if progress.declaration != self.projection.declaration:
            msg = (
                f"the declaration of projection {name} has changed: run seriatim project rebuild "
                f"{name}"
            )
            raise Conflict(msg, details={"projection": name})
        identity = LogIdentity(progress.log_id, progress.epoch)
        problem = find_cursor_problem(
            self.store, identity, progress.position, progress.last_event_id
        )
        if problem is not None:
            msg = (
                f"projection {name} {problem}: the log was restored or replaced. Run seriatim "
                f"project rebuild {name} to build the read model from this log"
            )
            raise LogIdentityChanged(
                msg, details={"projection": name, "position": progress.position}
            )

    def stopped_error(self, failure: Failure) -> ProjectionFailed:
        """Build the error for an event that stops the projection."""
        name = self.projection.name
        msg = (
            f"projection {name} stopped at position {failure.position}: event "
            f"{failure.event_id} ({failure.event_type}) of key {failure.key!r:.200} failed with "
            f"{failure.reason}; fix the fold and run seriatim project retry {name}, or run "
            f"seriatim project skip {name} {failure.position}"
        )
        details: dict[str, Any] = {"projection": name, **msgspec.structs.asdict(failure)}
        return ProjectionFailed(msg, details=details)
