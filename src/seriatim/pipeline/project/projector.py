"""The projector: run, rebuild, verify and operate one projection."""

from __future__ import annotations

from collections.abc import Callable

from seriatim.core.operation import ActionName, OperatorAction
from seriatim.log.operator_journal import check_reason, local_operator, record_action
from seriatim.pipeline.project.job import SparkProjection
from seriatim.runs.projection_runner import LEASE_S, run_projection
from seriatim.runs.rebuild import Proof, rebuild_projection, verify_projection
from seriatim.store.readmodel import operations
from seriatim.store.readmodel.port import FailureRecord, Progress


class Projector(SparkProjection):
    """A projection of a log into a read model, with everything that can be done with it.

    Example:
        with Projector(spark, seats, "postgresql://…/shop") as projector:
            projector.run()

    """

    def run(
        self,
        *,
        live: bool = False,
        checkpoint: str | None = None,
        lease_s: float = LEASE_S,
        until: Callable[[], bool] | None = None,
    ) -> Progress:
        """Catch up to the head of the log, or with `live` follow it.

        One runner works at a time; others wait for its lease.

        Args:
            live: Whether to follow the log.
            checkpoint: Spark's checkpoint directory for a live run; by default a temporary one.
                The cursor in the read model decides where a run continues.
            lease_s: The duration of the lease.
            until: Ends the run when it returns true.

        Returns:
            The progress of the projection.

        Raises:
            ProjectionFailed: An event failed, and the projection stops at failures.
            Conflict: The projection is paused, or its declaration has changed.
            LogIdentityChanged: The log was restored or replaced.

        Example:
            progress = projector.run()
            print(progress.position)
        """
        self.checkpoint = checkpoint
        return run_projection(self, live=live, lease_s=lease_s, until=until)

    def rebuild(self, *, accept: bool = False, reason: str = "") -> Proof:
        """Fold the whole log into shadow tables, compare them with the live ones, and switch.

        Args:
            accept: Whether to switch although the tables differ.
            reason: Why, for the operators' journal.

        Returns:
            The digests of both tables, and the first difference if there is one.

        Raises:
            ProjectionFailed: The tables differ with an unchanged declaration, or an event failed.
            Conflict: Another rebuild or verification is running.
            BackendFailure: The log was not read completely; nothing was switched.

        Example:
            proof = projector.rebuild(reason="the fold was fixed", accept=True)
            print(proof.rows, proof.switched)
        """
        self._check_reason(reason)
        proof = rebuild_projection(self, accept=accept)
        self._record("projection_rebuilt", reason, accept=accept)
        return proof

    def verify(self) -> Proof:
        """Compare the read model with a fold of the whole log; change nothing.

        Returns:
            The digests of both, and the first difference if there is one.

        Raises:
            NotFound: The projection has not run yet.
            Conflict: The declaration has changed, or another rebuild or verification is running.
            LogIdentityChanged: The log was restored or replaced.

        Example:
            print(projector.verify().equal)
        """
        return verify_projection(self)

    def status(self) -> Progress | None:
        """Return the progress of the projection, or None before its first run.

        Example:
            if (progress := projector.status()) is not None:
                print(progress.position, progress.status)
        """
        return self.model.progress(self.projection.name)

    def failures(self) -> list[FailureRecord]:
        """Return the events that the projection could not process.

        Example:
            for record in projector.failures():
                print(record.failure.position, record.failure.reason)
        """
        return operations.find_failures(self.model, self.projection.name)

    # -- actions of operators, recorded if there is a journal

    def retry(self, position: int | None = None, *, reason: str = "") -> int:
        """Retry failed events in the next run.

        Args:
            position: The position of the event; None retries all failed events.
            reason: Why, for the operators' journal.

        Returns:
            The number of events that will be retried.

        Example:
            count = projector.retry(reason="the fold is fixed")
        """
        self._check_reason(reason)
        count = operations.retry(self.model, self.projection.name, position)
        if count:
            self._record("projection_failures_retried", reason, count, position=position)
        return count

    def skip(self, position: int, *, reason: str = "") -> None:
        """Skip a failed event, now and in every rebuild.

        Args:
            position: The position of the event.
            reason: Why, for the operators' journal.

        Example:
            for record in projector.failures():
                projector.skip(record.failure.position, reason="bad data")
        """
        self._check_reason(reason)
        operations.skip(self.model, self.projection.name, position)
        self._record("projection_failure_skipped", reason, position=position)

    def pause(self, *, reason: str = "") -> None:
        """Stop the projection at its current position until it is resumed.

        Example:
            projector.pause(reason="deploying")
        """
        self._check_reason(reason)
        operations.pause(self.model, self.projection.name)
        self._record("projection_paused", reason)

    def resume(self, *, reason: str = "") -> None:
        """Continue a paused projection.

        Example:
            projector.resume()
        """
        self._check_reason(reason)
        operations.resume(self.model, self.projection.name)
        self._record("projection_resumed", reason)

    def _check_reason(self, reason: str) -> None:
        """Check a reason before the action, so that the journal does not refuse it afterwards."""
        if self.journal is not None:
            check_reason(reason)

    def _record(
        self, action: ActionName, reason: str, count: int = 1, **target: bool | int | None
    ) -> None:
        """Record an action that has succeeded; a failure to record does not undo it."""
        if self.journal is None:
            return
        named = {"projection": self.projection.name, **target}
        entry = OperatorAction(
            action=action,
            operator=local_operator(),
            tenant_id=self.tenant_id,
            target={name: value for name, value in named.items() if value is not None},
            count=count,
            reason=reason,
        )
        record_action(self.journal, entry)
