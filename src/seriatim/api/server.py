"""Run the service in one or more processes that share an address, until SIGTERM or SIGINT."""

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

import msgspec

from seriatim.api.app import App, Mount
from seriatim.api.connection import HttpConnection
from seriatim.api.process_lifecycle import FINAL_RESPONSES_S, ShutdownDeadline, kill_all
from seriatim.api.service import Service, ServiceSettings
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
from seriatim.wire.messages import StorageResponse

try:
    import uvicorn
    from uvicorn.supervisors import Multiprocess
except ModuleNotFoundError as error:
    raise explain_missing_module(error) from error

logger = logging.getLogger("seriatim.api")

_BACKLOG = 2048
_SWITCH_INTERVAL_S = 0.0005
_MALLOC = ((-3, 256 * 1024), (-1, 8 * 1024 * 1024), (-8, 4))  # mmap and trim thresholds, arenas
_GC_THRESHOLD = 20_000  # new objects: few objects of a request outlive its response


class ServiceLocation(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a service: its databases, its socket, and its TLS files.

    Attributes:
        url: The URL of the log.
        access: The URL of tokens and quotas; by default next to the log.
        registry: The URL of the processed-event registry; by default next to the log.
        host: The address to listen on.
        port: The port to listen on; 0 for any free one.
        certificate: The file of the TLS certificate; None for plain HTTP.
        key: The file of its private key.
        read_storage: Reads checkpoints and archives.

    Example:
        from seriatim.server import ServiceLocation

        location = ServiceLocation(url="sqlite:///app.db", host="0.0.0.0", port=443)
    """

    url: str
    access: str | None = None
    registry: str | None = None
    host: str = "127.0.0.1"
    port: int = 8420
    certificate: str | None = None
    key: str | None = None
    # Reads checkpoints and archives; given by the command line, since it needs the extra `spark`.
    read_storage: Callable[[], StorageResponse] | None = None


def is_embedded(url: str) -> bool:
    """Return whether a log is stored in a file or in memory."""
    return url.startswith(("sqlite:", "memory:"))


def make_service(
    place: ServiceLocation,
    serving: ServiceSettings,
    settings: Settings | None = None,
    guard: str | Guard = DEFAULT_GUARD,
) -> Service:
    """Open the log and the access store of one process.

    Args:
        place: The addresses.
        serving: The settings of the service.
        settings: The settings of the log; from the environment by default.
        guard: The guard of the log.
    """
    configured = settings or default_settings()
    log_settings = msgspec.structs.replace(configured, read_timeout_s=serving.request_timeout_s)
    log = open_log(place.url, settings=log_settings, guard=guard)
    folder = None
    if place.url.startswith("memory:"):  # tokens need a file, deleted with the log
        folder = tempfile.TemporaryDirectory(prefix="seriatim-")
    store_url = place.url if folder is None else f"sqlite:///{folder.name}/memory.db"
    registry = place.registry or registry_url(store_url)
    try:
        access = open_access(place.access or access_url(store_url))
    except BaseException:
        log.close()
        raise
    open_existing_registry = partial(open_registry, registry, create=False)
    service = Service(log, access, serving, open_existing_registry, place.url)
    service.read_storage = place.read_storage
    if folder is not None:
        service.on_stop = folder.cleanup
    if store_url.startswith("sqlite:"):
        service.data_directory = f"{Path(sqlite_path(store_url)).absolute().parent}/"
    return service


Opener = Callable[[ServiceLocation, ServiceSettings], Service]
MountFactory = Callable[[], Mount]


def make_app(
    place: ServiceLocation,
    serving: ServiceSettings,
    opener: Opener = make_service,
    make_mount: MountFactory | None = None,
) -> App:
    """Make the application; it opens its log when the server starts.

    Args:
        place: The addresses.
        serving: The settings of the service.
        opener: Opens the service.
        make_mount: Makes the part that handles other paths, such as the console.

    Example:
        from seriatim.server import ServiceLocation, ServiceSettings, make_app

        app = make_app(ServiceLocation(url="sqlite:///app.db"), ServiceSettings())
    """
    return App(
        partial(opener, place, serving),
        log_requests=serving.log_requests,
        lifespan_context=partial(_export_telemetry, serving),
        grace_s=serving.grace_s if serving.own_process else None,
        mount=None if make_mount is None else make_mount(),
    )


def make_process_app(
    place: ServiceLocation, serving: ServiceSettings, make_mount: MountFactory | None = None
) -> App:
    """Make the application of a process that runs only the service, and tune the process."""
    shorten_switch_interval()
    configure_malloc()
    process_settings = msgspec.structs.replace(serving, own_process=True)
    return make_app(place, process_settings, make_frozen_service, make_mount)


def shorten_switch_interval() -> None:
    """Let threads that read for tails run while the event loop is busy."""
    # With Python's default of 5 ms per switch, events reach tails 30 ms late.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def configure_malloc() -> None:
    """Make glibc return the memory of large bodies and responses to the system at once."""
    # By default it keeps memory freed by threads: several times the memory in use.
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in _MALLOC:
            mallopt(option, value)


def make_frozen_service(place: ServiceLocation, serving: ServiceSettings) -> Service:
    """Open the service, and exclude all existing objects from garbage collection."""
    service = make_service(place, serving)
    # A full collection of these objects takes 75 ms, in which no request is served.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    return service


@contextmanager
def _export_telemetry(serving: ServiceSettings) -> Iterator[None]:
    """Write logs and export spans of this process."""
    stop_logging = None if serving.log_format is None else write_all_logs(serving.log_format)
    try:
        with export_spans("seriatim-serve", enabled=serving.otel):
            yield
    finally:
        if stop_logging is not None:
            stop_logging()


def make_config(
    place: ServiceLocation,
    serving: ServiceSettings,
    make: Callable[[ServiceLocation, ServiceSettings], App] = make_app,
) -> uvicorn.Config:
    """Make the configuration of uvicorn."""
    return uvicorn.Config(
        partial(make, place, serving),
        factory=True,
        host=place.host,
        port=place.port,
        http=HttpConnection,
        loop="auto",
        lifespan="on",
        access_log=False,
        proxy_headers=False,  # any client could forge them
        log_config=None,
        server_header=False,
        date_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=max(1, int(serving.grace_s - FINAL_RESPONSES_S)),
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
        workers=serving.processes,
    )


class _WorkerProcesses(Multiprocess):
    """Worker processes, which end with this one within the grace period."""

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], grace_s: float
    ) -> None:
        super().__init__(config, sockets=sockets)
        # Each worker has a deadline of its own, but a stopped one (SIGSTOP) has to be killed.
        self._deadline = ShutdownDeadline(grace_s, lambda: kill_all(self.processes))

    def terminate_all(self) -> None:
        """End all processes."""
        self._deadline.begin()
        super().terminate_all()


def _bind(place: ServiceLocation) -> socket.socket:
    """Bind the address; uvicorn would end the process if that fails.

    Raises:
        BackendFailure: The address is in use, or may not be bound.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in place.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((place.host, place.port))
    except OSError as error:
        listener.close()
        raise _bind_error(place, error) from None
    listener.set_inheritable(True)
    return listener


def _bind_error(place: ServiceLocation, error: OSError) -> BackendFailure:
    address = f"{place.host}:{place.port}"
    if error.errno == errno.EADDRINUSE:
        msg = f"another process listens at {address}: stop it, or choose another --port"
    elif error.errno == errno.EACCES:
        msg = f"this user may not listen at {address}: choose a --port from 1024 on"
    else:
        msg = f"this machine cannot listen at {address} ({error.strerror}): check --host and --port"
    return BackendFailure(msg, details={"host": place.host, "port": place.port}, retryable=False)


def serve(
    place: ServiceLocation,
    serving: ServiceSettings,
    announce: Callable[[str], None],
    make_mount: MountFactory | None = None,
) -> None:
    """Run the service until SIGTERM or SIGINT; accepted requests are finished.

    Args:
        place: The addresses.
        serving: The settings.
        announce: Called with the URL of the service once it accepts connections.
        make_mount: Makes the part that handles other paths, such as the console; called in each
            process.

    Raises:
        InvalidArgument: Several processes cannot share a log in memory.
        BackendFailure: The address cannot be bound.

    Example:
        from seriatim.server import ServiceLocation, ServiceSettings, serve

        serve(ServiceLocation(url="sqlite:///app.db", port=8420), ServiceSettings(), print)
    """
    if serving.processes > 1 and place.url.startswith("memory:"):
        msg = "a log in memory belongs to one process: serve it with --processes 1"
        raise InvalidArgument(msg, details={"argument": "processes"})
    config = make_config(place, serving, partial(make_process_app, make_mount=make_mount))
    listener = _bind(place)
    listener.listen(_BACKLOG)  # clients may connect from now on, and wait for the start
    scheme = "http" if place.certificate is None else "https"
    host = f"[{place.host}]" if ":" in place.host else place.host
    server = uvicorn.Server(config)
    early_signals: list[int] = []  # that arrive before uvicorn handles them, as the log is opened

    def record_signal(signal_number: int, _: object) -> None:
        early_signals.append(signal_number)
        server.should_exit = True

    # uvicorn raises the signal again after shutdown; SIGTERM must not count as a failure.
    previous_handler = signal.signal(signal.SIGTERM, record_signal)
    try:
        announce(f"{scheme}://{host}:{listener.getsockname()[1]}")
        if serving.processes == 1:
            server.run(sockets=[listener])
        else:
            with share_metrics():
                processes = _WorkerProcesses(config, [listener], serving.grace_s)
                processes.signal_queue.extend(early_signals)
                processes.run()
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
