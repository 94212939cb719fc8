"""Running the service: one process or several, over one address, until they are told to end."""

from __future__ import annotations

import gc
import logging
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from uvicorn.supervisors import Multiprocess

from seriatim.api.app import App
from seriatim.api.connecting import Connection
from seriatim.api.service import Service, Serving
from seriatim.config import Settings
from seriatim.config.telemetry import metrics_shared
from seriatim.core.errors import InvalidArgument
from seriatim.core.guard import DEFAULT, Guard
from seriatim.opening import (
    access_url,
    default_settings,
    open_access,
    open_log,
    open_registry,
    registry_url,
    sqlite_path,
)
from seriatim.telemetry.exporting import spans_sent
from seriatim.telemetry.logs import write_logs

logger = logging.getLogger("seriatim.api")

GRACE_S = 30
_BACKLOG = 2048
_SWITCH_S = 0.0005
_COLLECT_AFTER = 20_000  # new objects: hardly any of a request's is left when it is answered


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a service finds its log and the rest, and where it listens."""

    url: str
    access: str | None = None
    registry: str | None = None
    host: str = "127.0.0.1"
    port: int = 8420
    certificate: str | None = None
    key: str | None = None


def is_embedded(url: str) -> bool:
    """Tell whether a log lies in a file or in memory."""
    return url.startswith(("sqlite:", "memory:"))


def make_service(
    place: Place,
    serving: Serving,
    settings: Settings | None = None,
    guard: str | Guard = DEFAULT,
) -> Service:
    """Open everything that one process of the service needs."""
    known = settings or default_settings()
    bounded = msgspec.structs.replace(known, read_timeout_s=serving.request_timeout_s)
    log = open_log(place.url, settings=bounded, guard=guard)
    folder = None
    if place.url.startswith("memory:"):  # tokens need a file, which ends with the log
        folder = tempfile.TemporaryDirectory(prefix="seriatim-")
    beside = place.url if folder is None else f"sqlite:///{folder.name}/memory.db"
    registry = place.registry or registry_url(beside)
    try:
        opened = open_access(place.access or access_url(beside))
    except BaseException:
        log.close()
        raise
    made = Service(log, opened, serving, partial(open_registry, registry, create=False))
    if folder is not None:
        made.on_stop = folder.cleanup
    if beside.startswith("sqlite:"):
        made.folder = f"{Path(sqlite_path(beside)).absolute().parent}/"
    return made


Opener = Callable[[Place, Serving], Service]


def make_app(place: Place, serving: Serving, opener: Opener = make_service) -> App:
    """Return an application; it opens its log when the server starts."""
    return App(
        partial(opener, place, serving),
        log_requests=serving.log_requests,
        around=partial(_observed, serving),
    )


def make_process(place: Place, serving: Serving) -> App:
    """Return the application of a process that does nothing else."""
    take_turns_quickly()
    return make_app(place, serving, settled_service)


def take_turns_quickly() -> None:
    """Let the threads that read for tails in while the event loop is busy."""
    # By Python's own 5 ms at each change of threads, an event would come 30 ms late.
    sys.setswitchinterval(_SWITCH_S)


def settled_service(place: Place, serving: Serving) -> Service:
    """Open everything, and leave what is there now, which stays, to no later collection."""
    made = make_service(place, serving)
    # To look through all of it takes 75 ms, in which nobody is answered.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    return made


@contextmanager
def _observed(serving: Serving) -> Iterator[None]:
    """Write logs and send spans, each process for itself."""
    stop = None if serving.log_format is None else write_logs(serving.log_format)
    try:
        with spans_sent("seriatim-serve", wanted=serving.otel):
            yield
    finally:
        if stop is not None:
            stop()


def configuration(
    place: Place, serving: Serving, make: Callable[[Place, Serving], App] = make_app, **more: Any
) -> uvicorn.Config:
    """Return how uvicorn serves it."""
    return uvicorn.Config(
        partial(make, place, serving),
        factory=True,
        host=place.host,
        port=place.port,
        http=Connection,
        loop="auto",
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
        workers=serving.processes,
        **more,
    )


def serve(place: Place, serving: Serving, tell: Callable[[str], None]) -> None:
    """Serve until told to end, and tell where; what was accepted is finished."""
    if serving.processes > 1 and place.url.startswith("memory:"):
        msg = "a log in memory is one process's own: serve it with one process"
        raise InvalidArgument(msg, details={"argument": "processes"})
    config = configuration(place, serving, make_process)
    listening = config.bind_socket()
    listening.listen(_BACKLOG)  # who is told the address may call at once, and waits for the start
    scheme = "http" if place.certificate is None else "https"
    host = f"[{place.host}]" if ":" in place.host else place.host
    tell(f"{scheme}://{host}:{listening.getsockname()[1]}")
    # The server sends itself again what it was ended by: to be told to end is no failure.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        if serving.processes == 1:
            uvicorn.Server(config).run(sockets=[listening])
        else:
            with metrics_shared():
                Multiprocess(config, sockets=[listening]).run()
    finally:
        signal.signal(signal.SIGTERM, before)
