"""A worker's eye on the registry: what is open there, and whether it can be reached at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from seriatim.core.errors import BackendFailure
from seriatim.delivery.registry import Registry
from seriatim.telemetry.job_metrics import JobMetrics

_EVERY_S = 2.0


@contextmanager
def watched(registry: Registry, handler: str, metrics: JobMetrics | None) -> Iterator[None]:
    """Tell the registry's state to metrics while a block runs, also while its tasks wait for it."""
    if metrics is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_watch,
        args=(registry, handler, metrics, ended),
        name="seriatim-monitor",
        daemon=True,
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(registry: Registry, handler: str, metrics: JobMetrics, ended: threading.Event) -> None:
    own: Registry | None = None
    while True:
        try:
            own = own or registry.another(on_outage="fail_fast")
            counts = {one.status: one.count for one in own.counts() if one.handler == handler}
            metrics.registry(handler, counts, away=False)
        except BackendFailure:
            metrics.registry(handler, {}, away=True)
        if ended.wait(_EVERY_S):
            break
    if own is not None:
        own.close()
