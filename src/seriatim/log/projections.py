"""The projections of a log: wait for one, require that it is current, pause it, retry failures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from seriatim.core.backoff import Backoff
from seriatim.core.errors import (
    Conflict,
    Forbidden,
    InvalidArgument,
    LogIdentityChanged,
    NotFound,
    ProjectionOutOfDate,
    ProjectionTimeout,
    SeriatimError,
)
from seriatim.core.event import LogIdentity
from seriatim.core.fold import RowFormat
from seriatim.core.operation import ActionName, Operator, OperatorAction
from seriatim.core.projection import Projection, Table
from seriatim.core.tenants import ALL_TENANTS
from seriatim.log.arguments import (
    check_count,
    check_name,
    check_position,
    check_timeout,
    invalid_argument,
)
from seriatim.log.operator_journal import (
    check_expected_count,
    check_reason,
    local_operator,
    record_action,
)
from seriatim.runs.follower import FollowedRun, Follower, FollowerMetrics
from seriatim.runs.job_loop import ProgressCallback
from seriatim.runs.local_projection import BATCH_EVENTS, LocalProjection, check_local
from seriatim.runs.projection_runner import LEASE_S, run_projection
from seriatim.runs.rebuild import Proof, rebuild_projection, verify_projection
from seriatim.store.log_identity import find_cursor_problem
from seriatim.store.readmodel import operations
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import (
    FailureCounts,
    FailureRecord,
    Progress,
    ProjectionStanding,
)

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog

# A projection in the same process is often done within milliseconds; 0.1 s bounds the latency.
_POLL_BACKOFF = Backoff(first_s=0.002, cap_s=0.1, factor=1.5)


class ReadModelConnections:
    """The read models that a log has opened, one connection for each URL.

    Args:
        find: Opens the read model at a URL; returns None if there is none.
        default_url: Returns the default URL of a tenant's read model; None if there is none.
        create: Opens the read model at a URL, creating it if needed; None if the log cannot.
    """

    def __init__(
        self,
        find: Callable[[str], ReadModel | None],
        default_url: Callable[[str], str] | None,
        create: Callable[[str], ReadModel] | None = None,
    ) -> None:
        self._find_read_model = find
        self._default_url = default_url
        self._create = create
        # Keyed by process: connections inherited by a fork may be neither used nor closed.
        self._open: dict[tuple[int, str], ReadModel] = {}

    @property
    def has_default(self) -> bool:
        """Whether the log has a default read model."""
        return self._default_url is not None

    def default_url(self, tenant_id: str) -> str:
        """Return the default URL of a tenant's read model.

        Raises:
            InvalidArgument: The log has no default.
        """
        if self._default_url is None:
            msg = "this log has no default read model: name one with log.projections_at(url)"
            raise InvalidArgument(msg, details={"argument": "target"})
        return self._default_url(tenant_id)

    def create(self, url: str) -> ReadModel:
        """Open the read model at a URL with a connection of its own, creating it if needed.

        Raises:
            InvalidArgument: The log was opened without read models.
        """
        if self._create is None:
            msg = "this log was opened without read models: open it with seriatim.open(url)"
            raise InvalidArgument(msg, details={"argument": "target"})
        return self._create(url)

    def find(self, url: str) -> ReadModel | None:
        """Return the read model at a URL, or None if there is none yet."""
        key = (os.getpid(), url)
        if key in self._open:
            return self._open[key]
        opened = self._find_read_model(url)
        if opened is None:
            return None
        model = self._open.setdefault(key, opened)
        if model is not opened:  # another thread opened it first
            opened.close()
        return model

    def close(self) -> None:
        """Close all connections of this process."""
        for key in [key for key in self._open if key[0] == os.getpid()]:
            self._open.pop(key).close()


class Projections:
    """The projections of a log in one read model: run them here, wait for them, operate them.

    `run`, `follow`, `verify` and `rebuild` use the local engine, which folds in this process.
    `seriatim.spark.Projector` does the same on Spark. Both write the same tables, and a projection
    may be moved from one to the other at any time.
    """

    def __init__(self, log: BaseLog, target: str) -> None:
        self._log = log
        self._target = target

    # -- the local engine

    def run(
        self,
        projection: Projection,
        *,
        batch_events: int = BATCH_EVENTS,
        lease_s: float = LEASE_S,
        on_progress: ProgressCallback | None = None,
        until: Callable[[], bool] | None = None,
    ) -> Progress:
        """Update the tables of a projection to the head of the log, in this process.

        One runner works at a time, on either engine; others wait for its lease.

        Args:
            projection: The declaration.
            batch_events: How many positions a transaction covers at most.
            lease_s: The duration of the lease, in seconds.
            on_progress: Called with a `RunReport` after each batch.
            until: Ends the run when it returns true.

        Returns:
            The progress of the projection.

        Raises:
            ProjectionFailed: An event failed, and the projection stops at failures.
            Conflict: The projection is paused, or its declaration has changed.
            LogIdentityChanged: The log was restored or replaced.
            InvalidArgument: The projection is a DataFrame transformation, which needs Spark.

        Example:
            @projection("totals", key="stream", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            print(log.projections.run(totals).position)
        """
        check_count("batch_events", batch_events)
        with self._open_job(projection, batch_events, on_progress) as job:
            return run_projection(job, lease_s=lease_s, until=until)

    def follow(
        self,
        *projections: Projection,
        batch_events: int = BATCH_EVENTS,
        lease_s: float = LEASE_S,
        metrics: FollowerMetrics | None = None,
    ) -> Follower:
        """Keep projections up to date, each in a thread of this process, until stopped.

        A projection that fails does not stop the others, and continues when its failure is
        resolved.

        Args:
            projections: The declarations.
            batch_events: How many positions a transaction covers at most.
            lease_s: The duration of the lease, in seconds.
            metrics: Where positions and lags are reported, a `seriatim.telemetry.JobMetrics`.

        Returns:
            The running follower; leave its `with` block, or call `stop`, to end it.

        Raises:
            InvalidArgument: A projection is a DataFrame transformation, which needs Spark.

        Example:
            @projection("totals", key="stream", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            with log.projections.follow(totals):
                receipt = log.append([NewEvent("order.placed", stream=("order", "1"))])
                log.projections.wait_for("totals", receipt.last_position)
        """
        check_count("batch_events", batch_events)
        self._create_cursors(projections)

        def make_run(projection: Projection) -> FollowedRun:
            def run(ends: Callable[[], bool], report: ProgressCallback) -> None:
                with self._open_job(projection, batch_events, report) as job:
                    run_projection(job, live=True, lease_s=lease_s, until=ends)

            return FollowedRun(projection.name, "projection", run)

        return Follower([make_run(projection) for projection in projections], metrics)

    def verify(
        self, projection: Projection, *, on_progress: ProgressCallback | None = None
    ) -> Proof:
        """Compare the tables of a projection with a fold of the whole log; change nothing.

        Args:
            projection: The declaration.
            on_progress: Called with a `RunReport` after each batch.

        Returns:
            The digests of both, and the first difference if there is one.

        Raises:
            NotFound: The projection has not run yet.
            Conflict: The declaration has changed, or another rebuild or verification is running.
            LogIdentityChanged: The log was restored or replaced.

        Example:
            @projection("totals", key="stream", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            log.projections.run(totals)
            assert log.projections.verify(totals).equal
        """
        with self._open_job(projection, BATCH_EVENTS, on_progress) as job:
            return verify_projection(job)

    def rebuild(
        self,
        projection: Projection,
        *,
        accept: bool = False,
        reason: str = "",
        operator: Operator | None = None,
        on_progress: ProgressCallback | None = None,
    ) -> Proof:
        """Fold the whole log into shadow tables, compare them with the live ones, and switch.

        The live tables serve until the switch. The action is recorded in the operators' journal.

        Args:
            projection: The declaration.
            accept: Whether to switch although the tables differ.
            reason: Why, for the operators' journal.
            operator: Who does it; by default the user of this process.
            on_progress: Called with a `RunReport` after each batch.

        Returns:
            The digests of both tables, and the first difference if there is one.

        Raises:
            ProjectionFailed: The tables differ with an unchanged declaration, or an event failed.
            Conflict: Another rebuild or verification is running.

        Example:
            @projection("totals", key="stream", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            proof = log.projections.rebuild(totals, reason="the fold was fixed")
            print(proof.rows, proof.switched)
        """
        check_reason(reason)
        with self._open_job(projection, BATCH_EVENTS, on_progress) as job:
            proof = rebuild_projection(job, accept=accept)
        target = {"projection": projection.name, "accept": accept}
        self._record("projection_rebuilt", target, operator, reason)
        return proof

    def _create_cursors(self, projections: Sequence[Projection]) -> None:
        """Create the cursors of new projections, so that callers can wait for them at once."""
        for projection in projections:
            check_local(projection)
        with suppress(SeriatimError), closing(self._create_model()) as model:
            identity = self._log.store.identity()
            for projection in projections:
                # The thread of the projection meets the same error, and reports it.
                with suppress(Conflict):
                    model.create_projection(projection, self._log.tenant_id, identity)

    def rows(self, projection: Projection, table: str | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over the rows of a table in the order of its key, in one snapshot.

        The tables are ordinary ones: a program may also query them with SQL.

        Args:
            projection: The declaration.
            table: The name of the table; by default the first one.

        Raises:
            InvalidArgument: The projection has no such table.
            NotFound: The projection has not run yet.

        Example:
            @projection("totals", key="stream", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            log.projections.run(totals)
            for row in log.projections.rows(totals):
                print(row["stream"], row["orders"])
        """
        declared = projection.table(table) if table is not None else projection.tables[0]
        # Before the first row is requested, so that the caller's mistake is raised here.
        self.get_progress(projection.name)
        return self._iterate_rows(projection, declared)

    def _iterate_rows(self, projection: Projection, table: Table) -> Iterator[dict[str, Any]]:
        to_python = RowFormat(table).copy_for_fold
        with closing(self._create_model()) as model, model.snapshot() as snapshot:
            for tenant_id, row, _ in snapshot.rows(projection, table):
                if tenant_id == self._log.tenant_id:  # a read model may hold all tenants
                    yield to_python(row)

    def get_row(self, projection: Projection, key: str) -> dict[str, Any] | None:
        """Return the row of a key, or None if there is none.

        Args:
            projection: A declaration with `columns`, whose rows have the keys of the fold.
            key: The key, such as the seat `12A`.

        Raises:
            InvalidArgument: The projection has tables of its own; use `rows`.
            NotFound: The projection has not run yet.

        Example:
            @projection("totals", key="stream_id", columns={"orders": int}, events=["order.*"])
            def totals(row, event):
                return {"orders": row["orders"] + 1 if row else 1}

            log.projections.run(totals)
            print(log.projections.get_row(totals, "1"))
        """
        if projection.state is not None or projection.is_frame:
            msg = (
                f"the tables of projection {projection.name} have keys of their own: use "
                "log.projections.rows(projection, table), or SQL"
            )
            raise InvalidArgument(msg, details={"projection": projection.name})
        self.get_progress(projection.name)
        owner = self._log.tenant_id, key
        row = self._model(projection.name).load_states(projection, [owner]).get(owner)
        return None if row is None else RowFormat(projection.tables[0]).copy_for_fold(row)

    @contextmanager
    def _open_job(
        self, projection: Projection, batch_events: int, on_progress: ProgressCallback | None
    ) -> Iterator[LocalProjection]:
        """Open a job with a connection of its own to the read model."""
        check_local(projection)
        with closing(self._create_model()) as model:
            yield LocalProjection(
                projection,
                self._log.store,
                model,
                tenant_id=self._log.tenant_id,
                batch_events=batch_events,
                on_progress=on_progress,
            )

    def _create_model(self) -> ReadModel:
        return self._log.read_models.create(self._target)

    # -- progress

    def wait_for(self, name: str, position: int, timeout_s: float = 10.0) -> Progress:
        """Wait until a projection has reached a position, and return its progress.

        Args:
            name: The projection.
            position: A position of the log, such as `receipt.last_position`.
            timeout_s: How long to wait.

        Raises:
            ProjectionTimeout: The projection did not reach the position in time.
            NotFound: There is no such projection.
            InvalidArgument: The position is after the head.
            LogIdentityChanged: The log was restored or replaced.

        Example:
            receipt = log.append([NewEvent("order.placed", {"total": 12})])
            try:
                log.projections.wait_for("orders", receipt.last_position, timeout_s=0.1)
            except (NotFound, ProjectionTimeout) as error:
                print(error)
        """
        deadline = time.monotonic() + check_timeout(timeout_s, "timeout_s")
        self.check_position(position)
        for delay in poll_delays():
            progress = self.get_progress(name)
            if progress.position >= position:
                return progress
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            time.sleep(min(delay, remaining))
        raise wait_timeout_error(progress, position, timeout_s)

    def demand(self, name: str, position: int) -> Progress:
        """Return the progress of a projection if it has reached a position.

        Raises:
            ProjectionOutOfDate: The projection has not reached the position.
            NotFound: There is no such projection.

        Example:
            try:
                log.projections.demand("orders", log.head())
            except (NotFound, ProjectionOutOfDate) as error:
                print(error)
        """
        self.check_position(position)
        progress = self.get_progress(name)
        if progress.position < position:
            msg = f"projection {name} has reached {progress.position}, not {position}"
            raise _lag_error(ProjectionOutOfDate, msg, progress, position)
        return progress

    def status(self) -> list[ProjectionStanding]:
        """Return the position, lag and status of every projection.

        Example:
            for standing in log.projections.status():
                print(standing.name, standing.position, standing.lag)
        """
        model = self._log.read_models.find(self._target)
        if model is None:
            return []
        head = self._log.head()
        return [
            ProjectionStanding(
                name=progress.name,
                position=progress.position,
                # Not negative: a projection may have passed the head, which was read before.
                lag=max(0, head - progress.position),
                updated_at=progress.updated_at,
                status=progress.status,
                running=bool(progress.owner),
                failures=model.count_failures(progress.name).stored,
                held_until=progress.held_until,
            )
            for progress in model.list_progress()
            if not progress.shadow
        ]

    def failures(self, name: str) -> list[FailureRecord]:
        """Return the events that a projection could not process, and how each was resolved.

        Raises:
            NotFound: There is no such projection.

        Example:
            for standing in log.projections.status():
                print(standing.name, log.projections.failures(standing.name))
        """
        self.get_progress(name)
        return self._model(name).failures(name)

    def list_failures(
        self, name: str, tenant_id: str, *, after: int = 0, limit: int
    ) -> list[FailureRecord]:
        """Return a page of the failures of one tenant; see `failures`.

        Args:
            name: The projection.
            tenant_id: The tenant.
            after: Only failures after this position.
            limit: The maximum number of failures.

        Raises:
            NotFound: There is no such projection.

        Example:
            for standing in log.projections.status():
                page = log.projections.list_failures(standing.name, "default", limit=100)
        """
        self.get_progress(name)
        model = self._model(name)
        return model.failures(name, tenant_id=tenant_id, after=after, limit=limit)

    def count_failures(self, name: str, tenant_id: str) -> FailureCounts:
        """Count the failures of one tenant; see `failures`.

        Raises:
            NotFound: There is no such projection.

        Example:
            for standing in log.projections.status():
                counts = log.projections.count_failures(standing.name, "default")
                print(standing.name, counts.stored, counts.unresolved)
        """
        self.get_progress(name)
        return self._model(name).count_failures(name, tenant_id=tenant_id)

    # -- operators

    def pause(self, name: str, *, reason: str = "", operator: Operator | None = None) -> bool:
        """Stop a projection at its current position until it is resumed.

        Args:
            name: The projection.
            reason: Why, for the operators' journal.
            operator: Who does it; by default the user of this process.

        Returns:
            Whether the action was recorded in the operators' journal.

        Raises:
            NotFound: There is no such projection.
            Forbidden: It covers all tenants, and the operator is one tenant's.

        Example:
            for standing in log.projections.status():
                log.projections.pause(standing.name, reason="deploying")
        """
        model = self._open_for_operator(name, operator, all_tenants=True)
        check_reason(reason)
        operations.pause(model, name)
        return self._record("projection_paused", {"projection": name}, operator, reason)

    def resume(self, name: str, *, reason: str = "", operator: Operator | None = None) -> bool:
        """Resume a paused projection; see `pause`.

        Example:
            for standing in log.projections.status():
                log.projections.resume(standing.name)
        """
        model = self._open_for_operator(name, operator, all_tenants=True)
        check_reason(reason)
        operations.resume(model, name)
        return self._record("projection_resumed", {"projection": name}, operator, reason)

    def retry(
        self,
        name: str,
        position: int | None = None,
        *,
        expected_count: int | None = None,
        reason: str = "",
        operator: Operator | None = None,
    ) -> tuple[int, bool]:
        """Retry failures in the current run or the next one.

        Args:
            name: The projection.
            position: The position of one failed event; None for all.
            expected_count: How many failures the action must affect, or it is refused.
            reason: Why, for the operators' journal.
            operator: Who does it; by default the user of this process.

        Returns:
            The number of failures, and whether the action was recorded in the operators' journal.

        Raises:
            NotFound: There is no such projection or failure.
            Conflict: There are more or fewer failures than expected.

        Example:
            for standing in log.projections.status():
                log.projections.retry(standing.name, reason="the fold is fixed")
        """
        model, tenant_id = (
            self._open_for_operator(name, operator),
            self._get_confined_tenant(operator),
        )
        check_reason(reason)
        if expected_count is not None:
            actual = len(operations.find_retryable(model, name, position, tenant_id))
            check_expected_count(expected_count, actual)
        count = operations.retry(model, name, position, tenant_id)
        target = {"projection": name} | ({} if position is None else {"position": position})
        action: ActionName = "projection_failures_retried"
        return count, not count or self._record(action, target, operator, reason, count)

    def skip(
        self, name: str, position: int, *, reason: str = "", operator: Operator | None = None
    ) -> bool:
        """Skip a failed event, now and in every rebuild; its key continues after it.

        Args:
            name: The projection.
            position: The position of the failed event.
            reason: Why, for the operators' journal.
            operator: Who does it; by default the user of this process.

        Returns:
            Whether the action was recorded in the operators' journal.

        Raises:
            NotFound: There is no such projection or failure.

        Example:
            for standing in log.projections.status():
                for record in log.projections.failures(standing.name):
                    position = record.failure.position
                    log.projections.skip(standing.name, position, reason="bad data")
        """
        model, tenant_id = (
            self._open_for_operator(name, operator),
            self._get_confined_tenant(operator),
        )
        check_reason(reason)
        operations.skip(model, name, check_position("position", position), tenant_id)
        target = {"projection": name, "position": position}
        return self._record("projection_failure_skipped", target, operator, reason)

    def _open_for_operator(
        self, name: str, operator: Operator | None, *, all_tenants: bool = False
    ) -> ReadModel:
        """Return the read model of a projection that the operator may act on.

        With `all_tenants`, the action affects every tenant of the projection.
        """
        progress = self.find(name)
        if (
            all_tenants
            and progress.tenant_id == ALL_TENANTS
            and self._get_confined_tenant(operator) is not None
        ):
            msg = f"projection {name} covers all tenants: use a token for all tenants"
            raise Forbidden(msg, details={"projection": name})
        return self._model(name)

    def _get_confined_tenant(self, operator: Operator | None) -> str | None:
        """Return the tenant whose failures an operator may resolve, None for all."""
        return self._log.tenant_id if operator is not None and operator.confined else None

    def _record(
        self,
        action: ActionName,
        target: dict[str, Any],
        operator: Operator | None,
        reason: str,
        count: int = 1,
    ) -> bool:
        return record_action(
            self._log,
            OperatorAction(
                action=action,
                operator=operator or local_operator(),
                tenant_id=self._log.tenant_id,
                target=target,
                count=count,
                reason=reason,
            ),
        )

    # -- progress

    def check_position(self, position: object) -> None:
        """Raise `InvalidArgument` for a position after the head, which a wait might never reach."""
        if check_position("position", position) > (head := self._log.head()):
            raise invalid_argument("position", f"must not be after the head: {position} > {head}")

    def get_progress(self, name: str) -> Progress:
        """Return the progress of a projection of this log.

        Raises:
            NotFound: There is no such projection.
            Conflict: It belongs to another tenant.
            LogIdentityChanged: The log was restored or replaced since it last ran.
        """
        progress = self.find(name)
        identity = LogIdentity(progress.log_id, progress.epoch)
        problem = find_cursor_problem(
            self._log.store, identity, progress.position, progress.last_event_id
        )
        if problem is not None:
            msg = (
                f"projection {name} {problem}: the log was restored or replaced; "
                f"run seriatim project rebuild {name} to rebuild its read model"
            )
            raise LogIdentityChanged(msg, details={"projection": name})
        return progress

    def find(self, name: str) -> Progress:
        """Return the progress of a projection, also if the log was restored since it last ran.

        Raises:
            NotFound: There is no such projection.
            Conflict: It belongs to another tenant.

        Example:
            for standing in log.projections.status():
                print(log.projections.find(standing.name).owner)
        """
        progress = self._model(check_name("name", name)).progress(name)
        if progress is None:
            raise _not_found_error(name)
        if progress.tenant_id not in (self._log.tenant_id, ALL_TENANTS):
            msg = f"projection {name} belongs to another tenant: open the log of that tenant"
            raise Conflict(msg, details={"projection": name, "tenant_id": self._log.tenant_id})
        return progress

    def _model(self, name: str) -> ReadModel:
        model = self._log.read_models.find(self._target)
        if model is None:
            raise _not_found_error(name)
        return model


def poll_delays() -> Iterator[float]:
    """Return poll intervals that grow up to a maximum, without end."""
    return (_POLL_BACKOFF.delay_s(attempt) for attempt in count(1))


def wait_timeout_error(progress: Progress, position: int, seconds: float) -> SeriatimError:
    """Return the error for a projection that did not reach a position in time."""
    activity = "running" if progress.owner else "not running"
    msg = (
        f"projection {progress.name} has reached {progress.position}, not {position}, within "
        f"{seconds:g} s: it is {progress.status} and {activity}"
    )
    return _lag_error(ProjectionTimeout, msg, progress, position)


def _lag_error(
    kind: type[SeriatimError], msg: str, progress: Progress, position: int
) -> SeriatimError:
    details = {
        "projection": progress.name,
        "position": position,
        "reached": progress.position,
        "status": progress.status,
    }
    return kind(msg, details=details)


def _not_found_error(name: str) -> NotFound:
    msg = (
        f"there is no projection {name!r:.80} in this read model: create it with "
        "seriatim project run"
    )
    return NotFound(msg, details={"projection": name})
