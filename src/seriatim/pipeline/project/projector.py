"""Everything that can be done with a projection, in one place."""

from __future__ import annotations

from collections.abc import Callable

from seriatim.pipeline.failures import translated
from seriatim.pipeline.project import rebuilding
from seriatim.pipeline.project.job import Job
from seriatim.pipeline.project.rebuilding import Proof
from seriatim.pipeline.project.running import LEASE_S, Runner
from seriatim.store.readmodel import operating
from seriatim.store.readmodel.port import FailureRecord, Progress


class Projector(Job):
    """A projection of a log: run it, prove it, rebuild it, and mend what failed."""

    def run(
        self,
        *,
        live: bool = False,
        checkpoint: str | None = None,
        lease_s: float = LEASE_S,
        until: Callable[[], bool] | None = None,
    ) -> Progress:
        """Catch up with the log's end, or follow it; one runner works, others wait.

        A live run ends when `until` is true. Its stream leaves Spark's own notes in `checkpoint`,
        by default a folder that is thrown away: where a run goes on, the cursor says.
        """
        ends = until or (lambda: False)
        runner = Runner(self, live=live, checkpoint=checkpoint, lease_s=lease_s, until=ends)
        return runner.run()

    def rebuild(self, *, accept: bool = False) -> Proof:
        """Fold the whole log anew beside what is there, compare, and switch at once."""
        with translated():
            return rebuilding.rebuild(self, accept=accept)

    def verify(self) -> Proof:
        """Prove that the read model equals a fold of its log, or name the first difference."""
        with translated():
            return rebuilding.verify(self)

    def status(self) -> Progress | None:
        """Return how far it has come, None before its first run."""
        return self.model.progress(self.projection.name)

    def failures(self) -> list[FailureRecord]:
        """Return the events that it could not take."""
        return operating.failures(self.model, self.projection.name)

    def retry(self, position: int | None = None) -> int:
        """Try failures again in the next run, all or the one at a position; tell how many."""
        return operating.retry(self.model, self.projection.name, position)

    def skip(self, position: int) -> None:
        """Pass over the event at a position, now and in every rebuild."""
        operating.skip(self.model, self.projection.name, position)

    def pause(self) -> None:
        """Hold the projection where it is until it is resumed."""
        operating.pause(self.model, self.projection.name)

    def resume(self) -> None:
        """Let a paused projection go on."""
        operating.resume(self.model, self.projection.name)
