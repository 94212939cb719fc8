"""The projector: run, rebuild, verify and operate one projection."""

from __future__ import annotations

from collections.abc import Callable

from seriatim.pipeline.project import rebuild
from seriatim.pipeline.project.job import ProjectionJob
from seriatim.pipeline.project.rebuild import Proof
from seriatim.pipeline.project.runner import LEASE_S, Runner
from seriatim.pipeline.spark_errors import translate_spark_errors
from seriatim.store.readmodel import operations
from seriatim.store.readmodel.port import FailureRecord, Progress


class Projector(ProjectionJob):
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

        """
        ends = until or (lambda: False)
        runner = Runner(self, live=live, checkpoint=checkpoint, lease_s=lease_s, until=ends)
        return runner.run()

    def rebuild(self, *, accept: bool = False) -> Proof:
        """Fold the whole log into shadow tables, compare them with the live ones, and switch.

        Args:
            accept: Whether to switch although the tables differ.

        Returns:
            The digests of both tables, and the first difference if there is one.

        Raises:
            ProjectionFailed: The tables differ with an unchanged declaration, or an event failed.
            Conflict: Another rebuild or verification is running.
            BackendFailure: The log was not read completely; nothing was switched.

        """
        with translate_spark_errors():
            return rebuild.rebuild(self, accept=accept)

    def verify(self) -> Proof:
        """Compare the read model with a fold of the whole log; change nothing.

        Returns:
            The digests of both, and the first difference if there is one.

        Raises:
            NotFound: The projection has not run yet.
            Conflict: The declaration has changed, or another rebuild or verification is running.
            LogIdentityChanged: The log was restored or replaced.

        """
        with translate_spark_errors():
            return rebuild.verify(self)

    def status(self) -> Progress | None:
        """Return the progress of the projection, or None before its first run."""
        return self.model.progress(self.projection.name)

    def failures(self) -> list[FailureRecord]:
        """Return the events that the projection could not process."""
        return operations.find_failures(self.model, self.projection.name)

    def retry(self, position: int | None = None) -> int:
        """Retry failed events in the next run.

        Args:
            position: The position of the event; None retries all failed events.

        Returns:
            The number of events that will be retried.

        """
        return operations.retry(self.model, self.projection.name, position)

    def skip(self, position: int) -> None:
        """Skip a failed event, now and in every rebuild.

        Args:
            position: The position of the event.

        """
        operations.skip(self.model, self.projection.name, position)

    def pause(self) -> None:
        """Stop the projection at its current position until it is resumed."""
        operations.pause(self.model, self.projection.name)

    def resume(self) -> None:
        """Continue a paused projection."""
        operations.resume(self.model, self.projection.name)
