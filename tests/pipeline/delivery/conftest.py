"""Workers on each engine."""

from __future__ import annotations

import time
from typing import Any

import pytest

from seriatim import Handler
from seriatim.delivery.handler_loop import Counts
from seriatim.factory import open_registry, registry_url
from seriatim.pipeline.work.worker import Worker
from tests.pipeline.delivery.local_worker import LocalWorker


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of workers on both engines."""
    if "workers" in metafunc.fixturenames:
        metafunc.parametrize("workers", ["local", "spark"], indirect=True)


class Workers:
    """Opens and runs workers on one engine."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def open(self, handler: Handler, url: str, **options: Any) -> Worker | LocalWorker:
        """Open a worker on the log."""
        if self._spark is None:
            return LocalWorker(handler, url=url, **options)
        return Worker(self._spark, handler, url=url, **options)

    def run(self, handler: Handler, url: str, **options: Any) -> Counts:
        """Run a handler up to the end of the log."""
        with self.open(handler, url, **options) as worker:
            return worker.run()

    def run_until_settled(self, handler: Handler, url: str, **options: Any) -> None:
        """Run a handler until no event is claimed or waits for a retry."""
        registry = open_registry(options.get("registry") or registry_url(url))
        deadline = time.monotonic() + 60
        unsettled = ("failed", "claimed", "expired")
        with self.open(handler, url, **options) as worker:
            while any(count.status in unsettled for count in registry.counts()):
                assert time.monotonic() < deadline, registry.counts()
                worker.run()
                time.sleep(0.05)
            worker.run()
        registry.close()


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> Workers:
    """Workers on the engine of the test; Spark starts only for its own."""
    if request.param == "local":
        return Workers(None)
    return Workers(request.getfixturevalue("spark"))
