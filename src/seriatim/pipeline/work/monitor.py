"""Metrics about the registry while a worker runs: open events, and whether it is reachable."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from seriatim.core.errors import BackendFailure
from seriatim.delivery.registry import Registry
from seriatim.telemetry.job_metrics import JobMetrics

_INTERVAL_S = 2.0


@contextmanager
def watched(registry: Registry, handler: str, metrics: JobMetrics | None) -> Iterator[None]:
    """Report the state of the registry to metrics while a block runs.

    This happens in a thread, so that an outage is reported while tasks wait for the registry.
    """
    if metrics is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_report_state,
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


def _report_state(
    registry: Registry, handler: str, metrics: JobMetrics, ended: threading.Event
) -> None:
    own: Registry | None = None
    while True:
        try:
            # A separate connection, as the worker's thread uses the other one.
            own = own or registry.another(on_outage="fail_fast")
            counts = {one.status: one.count for one in own.counts() if one.handler == handler}
            metrics.registry(handler, counts, away=False)
        except BackendFailure:
            metrics.registry(handler, {}, away=True)
        if ended.wait(_INTERVAL_S):
            break
    if own is not None:
        own.close()
