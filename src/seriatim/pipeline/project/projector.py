"""Everything that can be done with a projection, in one place."""

from __future__ import annotations

from seriatim.core.errors import NotFound
from seriatim.pipeline.project import mending, rebuilding
from seriatim.pipeline.project.job import Job
from seriatim.pipeline.project.rebuilding import Proof
from seriatim.pipeline.project.running import LEASE_S, Runner
from seriatim.store.readmodel.port import FailureRecord, Progress


class Projector(Job):
    """A projection of a log: run it, prove it, rebuild it, and mend what failed."""

    def run(
        self, *, live: bool = False, checkpoint: str | None = None, lease_s: float = LEASE_S
    ) -> Progress:
        """Catch up with the log's end, or follow it for ever; one runner works, others wait.

        Spark's own notes go to `checkpoint`, by default a folder that is thrown away: where a
        run goes on is what the read model's cursor says.
        """
        return Runner(self, live=live, checkpoint=checkpoint, lease_s=lease_s).run()

    def rebuild(self, *, accept: bool = False) -> Proof:
        """Fold the whole log anew beside what is there, compare, and switch at once."""
        return rebuilding.rebuild(self, accept=accept)

    def verify(self) -> Proof:
        """Prove that the read model equals a fold of its log, or name the first difference."""
        return rebuilding.verify(self)

    def status(self) -> Progress | None:
        """Return how far it has come, None before its first run."""
        return self.model.progress(self.projection.name)

    def failures(self) -> list[FailureRecord]:
        """Return the events that it could not take."""
        return mending.failures(self)

    def retry(self, position: int | None = None) -> int:
        """Try failures again in the next run, all or the one at a position; tell how many."""
        return mending.retry(self, position)

    def skip(self, position: int) -> None:
        """Pass over the event at a position, now and in every rebuild."""
        mending.skip(self, position)

    def pause(self) -> None:
        """Hold the projection where it is until it is resumed."""
        self._known()
        self.model.set_status(self.projection.name, "paused")

    def resume(self) -> None:
        """Let a paused projection go on."""
        if self._known().status == "paused":
            self.model.set_status(self.projection.name, "ready")

    def _known(self) -> Progress:
        found = self.status()
        if found is None:
            msg = f"projection {self.projection.name} has no read model yet: seriatim project run"
            raise NotFound(msg, details={"projection": self.projection.name})
        return found
