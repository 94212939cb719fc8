"""The local engine with the methods of a projector on Spark, so that tests can use either."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, Self

from seriatim import Projection
from seriatim.config import Settings
from seriatim.core.event import DEFAULT_TENANT
from seriatim.factory import absolute_url, open_read_model, open_store, read_model_url
from seriatim.runs.local_projection import BATCH_EVENTS, LocalProjection
from seriatim.runs.projection_runner import LEASE_S, run_projection
from seriatim.runs.rebuild import Proof, rebuild_projection, verify_projection
from seriatim.store.readmodel import operations
from seriatim.store.readmodel.port import FailureRecord, Progress


class LocalJob(LocalProjection):
    """A projection on the local engine, with connections of its own."""

    def __init__(
        self,
        projection: Projection,
        url: str,
        *,
        target: str | None = None,
        tenant_id: str = DEFAULT_TENANT,
        batch_events: int = BATCH_EVENTS,
    ) -> None:
        self.url = absolute_url(url)
        self.target = absolute_url(target or read_model_url(url, tenant_id))
        store = open_store(url, Settings(), create=False)
        super().__init__(
            projection,
            store,
            open_read_model(self.target),
            tenant_id=tenant_id,
            batch_events=batch_events,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self.model), closing(self.store):
            pass

    def run(
        self,
        *,
        live: bool = False,
        checkpoint: str | None = None,  # noqa: ARG002 - only Spark has checkpoints
        lease_s: float = LEASE_S,
        until: Callable[[], bool] | None = None,
    ) -> Progress:
        """Catch up, or follow the log."""
        return run_projection(self, live=live, lease_s=lease_s, until=until)

    def rebuild(self, *, accept: bool = False) -> Proof:
        """Rebuild in a shadow."""
        return rebuild_projection(self, accept=accept)

    def verify(self) -> Proof:
        """Compare with a fold of the log."""
        return verify_projection(self)

    def status(self) -> Progress | None:
        """Return the progress."""
        return self.model.progress(self.projection.name)

    def failures(self) -> list[FailureRecord]:
        """Return the failures."""
        return operations.find_failures(self.model, self.projection.name)

    def __getattr__(self, action: str) -> Any:
        """Return an operation: retry, skip, pause or resume."""
        operation = getattr(operations, action)
        return lambda *arguments: operation(self.model, self.projection.name, *arguments)
