"""The local engine with the interface of a worker on Spark, so that tests can use either."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from seriatim import Handler
from seriatim.config import Settings
from seriatim.config.delivery import RegistrySettings
from seriatim.delivery.handler_loop import Counts
from seriatim.delivery.handler_runner import run_handler
from seriatim.delivery.local_handler import LocalHandler
from seriatim.factory import open_registry, open_store, registry_url
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.client import DeadLetterTopic


class LocalWorker(LocalHandler):
    """A handler on the local engine, with connections of its own."""

    def __init__(
        self,
        handler: Handler,
        *,
        url: str,
        registry: str | None = None,
        tenant_id: str | None = None,
        settings: RegistrySettings | None = None,
        dead_letters: Target | None = None,
        **options: Any,
    ) -> None:
        store = open_store(url, Settings(), create=False)
        super().__init__(
            handler,
            store,
            open_registry(registry or registry_url(url), settings or RegistrySettings()),
            tenant_id=tenant_id,
            dead_letters=None if dead_letters is None else DeadLetterTopic(dead_letters),
            **options,
        )
        self._own_store = store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.registry.close()
        self._own_store.close()

    def run(self, *, live: bool = False, until: Callable[[], bool] | None = None) -> Counts:
        """Catch up, or follow the log."""
        return run_handler(self, live=live, until=until)
