"""Running the service: one process or several, over one address, until they are told to end."""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from seriatim.api.app import App
from seriatim.api.connection import HttpConnection
from seriatim.api.service import Service, ServiceSettings
from seriatim.api.shutdown_deadline import FINAL_RESPONSES_S, ShutdownDeadline, kill_all
from seriatim.config import Settings
from seriatim.config.telemetry import share_metrics
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.core.extras import explain_missing_module
from seriatim.core.guard import DEFAULT_GUARD, Guard
from seriatim.factory import (
    access_url,
    default_settings,
    open_access,
    open_log,
    open_registry,
    registry_url,
    sqlite_path,
)
from seriatim.telemetry.log_format import write_all_logs
from seriatim.telemetry.span_export import export_spans

try:
    import uvicorn
    from uvicorn.supervisors import Multiprocess
except ModuleNotFoundError as error:
    raise explain_missing_module(error) from error

logger = logging.getLogger("seriatim.api")

_BACKLOG = 2048
_SWITCH_S = 0.0005
_MALLOC = ((-3, 256 * 1024), (-1, 8 * 1024 * 1024), (-8, 4))  # mmap and trim thresholds, arenas
_COLLECT_AFTER = 20_000  # new objects: hardly any of a request's is left when it is answered


class ServiceLocation(msgspec.Struct, frozen=True, kw_only=True):
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
    place: ServiceLocation,
    serving: ServiceSettings,
    settings: Settings | None = None,
    guard: str | Guard = DEFAULT_GUARD,
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
        made.data_directory = f"{Path(sqlite_path(beside)).absolute().parent}/"
    return made


Opener = Callable[[ServiceLocation, ServiceSettings], Service]


def make_app(
    place: ServiceLocation, serving: ServiceSettings, opener: Opener = make_service
) -> App:
    """Return an application; it opens its log when the server starts."""
    return App(
        partial(opener, place, serving),
        log_requests=serving.log_requests,
        lifespan_context=partial(_observed, serving),
        grace_s=serving.grace_s if serving.own_process else None,
    )


def make_process_app(place: ServiceLocation, serving: ServiceSettings) -> App:
    """Return the application of a process that does nothing else."""
    shorten_switch_interval()
    configure_malloc()
    own = msgspec.structs.replace(serving, own_process=True)
    return make_app(place, own, make_frozen_service)


def shorten_switch_interval() -> None:
    """Let the threads that read for tails in while the event loop is busy."""
    # By Python's own 5 ms at each change of threads, an event would come 30 ms late.
    sys.setswitchinterval(_SWITCH_S)


def configure_malloc() -> None:
    """Let glibc give the memory of large bodies and answers back to the system at once."""
    # By default it keeps what threads have freed: several times what is in use.
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC:
            mallopt(option, value)


def make_frozen_service(place: ServiceLocation, serving: ServiceSettings) -> Service:
    """Open everything, and leave what is there now, which stays, to no later collection."""
    made = make_service(place, serving)
    # To look through all of it takes 75 ms, in which nobody is answered.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    return made


@contextmanager
def _observed(serving: ServiceSettings) -> Iterator[None]:
    """Write logs and send spans, each process for itself."""
    stop = None if serving.log_format is None else write_all_logs(serving.log_format)
    try:
        with export_spans("seriatim-serve", enabled=serving.otel):
            yield
    finally:
        if stop is not None:
            stop()


def make_config(
    place: ServiceLocation,
    serving: ServiceSettings,
    make: Callable[[ServiceLocation, ServiceSettings], App] = make_app,
    **more: Any,
) -> uvicorn.Config:
    """Return how uvicorn serves it."""
    return uvicorn.Config(
        partial(make, place, serving),
        factory=True,
        host=place.host,
        port=place.port,
        http=HttpConnection,
        loop="auto",
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=max(1, int(serving.grace_s - FINAL_RESPONSES_S)),
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
        workers=serving.processes,
        **more,
    )


class _Processes(Multiprocess):
    """Several processes, which end with this one within the grace period."""

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], grace_s: float
    ) -> None:
        super().__init__(config, sockets=sockets)
        # Each ends by itself at the same time; one that is stopped cannot, and is killed.
        self._deadline = ShutdownDeadline(grace_s, lambda: kill_all(self.processes))

    def terminate_all(self) -> None:
        """End all processes."""
        self._deadline.begin()
        super().terminate_all()


def _bound(place: ServiceLocation) -> socket.socket:
    """Take the address, or say who may have it; uvicorn would end the process instead."""
    made = socket.socket(socket.AF_INET6 if ":" in place.host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((place.host, place.port))
    except OSError as error:
        made.close()
        raise _not_bound(place, error) from None
    made.set_inheritable(True)
    return made


def _not_bound(place: ServiceLocation, error: OSError) -> BackendFailure:
    at = f"{place.host}:{place.port}"
    if error.errno == errno.EADDRINUSE:
        msg = f"another process listens at {at} already: stop it, or serve at another --port"
    elif error.errno == errno.EACCES:
        msg = f"this user may not listen at {at}: take a --port from 1024 on"
    else:
        msg = f"this machine cannot listen at {at} ({error.strerror}): check --host and --port"
    return BackendFailure(msg, details={"host": place.host, "port": place.port}, retryable=False)


def serve(
    place: ServiceLocation, serving: ServiceSettings, announce: Callable[[str], None]
) -> None:
    """Serve until told to end, and tell where; what was accepted is finished."""
    if serving.processes > 1 and place.url.startswith("memory:"):
        msg = "a log in memory is one process's own: serve it with one process"
        raise InvalidArgument(msg, details={"argument": "processes"})
    config = make_config(place, serving, make_process_app)
    listening = _bound(place)
    listening.listen(_BACKLOG)  # who is told the address may call at once, and waits for the start
    scheme = "http" if place.certificate is None else "https"
    host = f"[{place.host}]" if ":" in place.host else place.host
    announce(f"{scheme}://{host}:{listening.getsockname()[1]}")
    # The server sends itself again what it was ended by: to be told to end is no failure.
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        if serving.processes == 1:
            uvicorn.Server(config).run(sockets=[listening])
        else:
            with share_metrics():
                _Processes(config, [listening], serving.grace_s).run()
    finally:
        signal.signal(signal.SIGTERM, before)
