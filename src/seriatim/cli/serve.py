"""The command `seriatim serve`: serve the log over HTTP."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seriatim.cli.command_session import (
    AccessUrl,
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogFormatOption,
    LogUrl,
    Otel,
    TenantOption,
    command_session,
    parse_log_format,
)
from seriatim.cli.project import load_projection
from seriatim.cli.registry import RegistryUrl
from seriatim.core.builtin_folds import BUILTIN_FOLDS
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.core.limits import MIB
from seriatim.factory import absolute_url, access_url, open_access, open_log, redact_url
from seriatim.telemetry.log_format import write_all_logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from seriatim.api.server import ServiceLocation
    from seriatim.console.app import Console
    from seriatim.wire.messages import StorageResponse

logger = logging.getLogger("seriatim.api")

_FIRST_TOKEN = "`seriatim token create` turns it on."  # noqa: S105 - not a secret
Host = Annotated[str, typer.Option("--host", help="The address to listen on.")]
Port = Annotated[
    int, typer.Option("--port", min=0, max=65_535, help="The port; 0 selects any free port.")
]
Processes = Annotated[
    int, typer.Option("--processes", min=1, max=256, help="The number of processes.")
]
Certificate = Annotated[
    Path | None,
    typer.Option("--certificate", help="The TLS certificate; enables TLS.", show_default=False),
]
CertificateKey = Annotated[
    Path | None,
    typer.Option("--key", help="The private key of the certificate.", show_default=False),
]
EventsPerSecond = Annotated[
    float,
    typer.Option(
        "--events-per-second",
        min=0,
        help="The number of events a tenant may append per second; 0 sets no limit.",
    ),
]
BytesPerSecond = Annotated[
    float,
    typer.Option(
        "--bytes-per-second",
        min=0,
        help="The request bytes a tenant may send per second; 0 sets no limit.",
    ),
]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option(
        "--cors",
        metavar="ORIGIN",
        help="Allow requests from this web origin; may be repeated.",
        show_default=False,
    ),
]
TenantMemory = Annotated[
    int,
    typer.Option(
        "--tenant-memory-mib",
        min=1,
        help="The memory for a tenant's request bodies and unsent responses, per process.",
    ),
]
GracePeriod = Annotated[
    float,
    typer.Option("--grace-s", min=1, help="The maximum number of seconds from SIGTERM until exit."),
]
Projections = Annotated[
    list[str] | None,
    typer.Option(
        "--projection",
        metavar="MODULE:NAME",
        help="A projection of yours: the console steps through its states, and jobs may verify "
        "and rebuild it; may be repeated. The shipped ones are always included.",
        show_default=False,
    ),
]
LogRequests = Annotated[
    bool,
    typer.Option("--log-requests", help="Log every request, not only failures of the service."),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen on a non-local address without TLS. Use it only if a proxy in front "
        "terminates TLS.",
    ),
]
Checkpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoints",
        metavar="PLACE",
        help="Display the publisher with these checkpoints; may be repeated.",
        show_default=False,
    ),
]
Archives = Annotated[
    list[str] | None,
    typer.Option(
        "--archive",
        metavar="PLACE",
        help="Display this archive; may be repeated.",
        show_default=False,
    ),
]


def serve(
    ctx: typer.Context,
    host: Host = "127.0.0.1",
    port: Port = 8420,
    processes: Processes = 1,
    certificate: Certificate = None,
    key: CertificateKey = None,
    insecure: Insecure = False,
    events_per_second: EventsPerSecond = 0.0,
    bytes_per_second: BytesPerSecond = 0.0,
    tenant_memory_mib: TenantMemory = 128,
    grace_s: GracePeriod = 30.0,
    cors: CorsOrigins = None,
    projection: Projections = None,
    log_requests: LogRequests = False,
    otel: Otel = None,
    log_format: LogFormatOption = "text",
    access: AccessUrl = None,
    registry: RegistryUrl = None,
    checkpoints: Checkpoints = None,
    archive: Archives = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Serve the log over HTTP until interrupted; accepted requests are completed."""
    common = CommonOptions(url, tenant, as_json)
    with command_session(ctx, common, whole_log=True) as command, ExitStack() as stack:
        try:
            from seriatim.api.server import ServiceLocation
            from seriatim.api.server import serve as run_service
            from seriatim.api.service import SHIPPED_PROJECTIONS, ServiceSettings

            # Each process loads the projections itself, because functions cannot be sent to it.
            make_mount = partial(_make_console, tuple(projection or ()))
            make_mount()  # fails early with a clear error
        except ModuleNotFoundError as error:
            msg = "the service needs an extra: pip install 'seriatim[server]'"
            raise BackendFailure(msg, retryable=False) from error
        format_ = parse_log_format(log_format)
        stack.callback(write_all_logs(format_))
        location = ServiceLocation(
            url=absolute_url(command.url),
            host=host,
            port=port,
            certificate=None if certificate is None else str(certificate),
            key=None if key is None else str(key),
            access=access,
            registry=registry,
            read_storage=_make_storage_reader(checkpoints or [], archive or []),
        )
        settings = ServiceSettings(
            open_on_loopback=_allows_anonymous(
                command, location, insecure=insecure, as_log=format_ == "json"
            ),
            events_per_s=events_per_second,
            bytes_per_s=bytes_per_second,
            processes=processes,
            tenant_memory_bytes=tenant_memory_mib * MIB,
            grace_s=grace_s,
            cors_origins=tuple(cors or ()),
            projections=(*SHIPPED_PROJECTIONS, *(projection or ())),
            log_requests=log_requests,
            log_format=format_,
            otel=otel,
        )
        announce = partial(_announce_address, command, as_log=format_ == "json")
        with suppress(KeyboardInterrupt):  # a requested shutdown is a success
            run_service(location, settings, announce, make_mount)


def _make_console(projections: tuple[str, ...]) -> Console:
    """Make the console of a process, with the projections that are given as `module:name`.

    Raises:
        InvalidArgument: If one cannot be loaded, or has the name of another one.

    """
    from seriatim.console.app import ConsoleSettings
    from seriatim.console.routes import make_console

    loaded = tuple(map(load_projection, projections))
    names = [projection.name for projection in (*BUILTIN_FOLDS, *loaded)]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        msg = f"two projections have the name {duplicate}: choose one for --projection"
        raise InvalidArgument(msg, details={"argument": "projection"})
    return make_console(ConsoleSettings(projections=loaded))


def _announce_address(command: CommandSession, address: str, *, as_log: bool) -> None:
    """Report where the service listens."""
    _announce(command, f"serving {redact_url(command.url)} at {address}", as_log=as_log)
    _announce(command, f"console at {address}/console/", as_log=as_log)


def _make_storage_reader(
    checkpoints: list[str], archives: list[str]
) -> Callable[[], StorageResponse] | None:
    """Return a function that reads the checkpoints and archives of pipelines, None for none.

    Raises:
        BackendFailure: The extra `spark` is not installed.
    """
    if not checkpoints and not archives:
        return None
    try:
        from seriatim.pipeline.publish.storage_report import read_storage
    except ModuleNotFoundError as error:
        msg = "--checkpoints and --archive need an extra: pip install 'seriatim[spark]'"
        raise BackendFailure(msg, retryable=False) from error
    return partial(read_storage, checkpoints, archives)


def _announce(command: CommandSession, message: str, *, as_log: bool) -> None:
    """Print a notice, or log it if logs are written as JSON for machines."""
    if as_log:
        logger.info(message)
    else:
        command.notice(message)


def _allows_anonymous(
    command: CommandSession, location: ServiceLocation, *, insecure: bool, as_log: bool = False
) -> bool:
    """Return whether the service accepts requests without a token, and report it.

    Only an embedded log on a loopback address is open, and only until its first token is created.

    Raises:
        InvalidArgument: If tokens would be sent unencrypted to a non-local address.

    """
    from seriatim.api.server import is_embedded
    from seriatim.api.service import is_loopback

    embedded, loopback = is_embedded(command.url), is_loopback(location.host)
    if not loopback and location.certificate is None and not insecure:
        msg = (
            f"{location.host} is reachable from other machines, and tokens must not be sent "
            "unencrypted: set --certificate and --key, or --insecure if a proxy in front "
            "terminates TLS"
        )
        raise InvalidArgument(msg, details={"argument": "host"})
    with open_log(command.url):  # creates a missing log, and fails early with a clear error
        pass
    if _has_tokens(command.url, location.access):
        return False
    if embedded and loopback:
        warning = ": any process on this machine can read and append. " + _FIRST_TOKEN
        if as_log:
            logger.warning("AUTHENTICATION IS OFF%s", warning)
        else:
            command.stderr.print(f"[bold yellow]AUTHENTICATION IS OFF[/]{warning}", soft_wrap=True)
        return True
    msg = (
        f"{redact_url(command.url)} has no tokens yet, so every request will be refused: "
        "seriatim token create --service NAME --tenant TENANT --rights append,read"
    )
    _announce(command, msg, as_log=as_log)
    return False


def _has_tokens(url: str, access: str | None) -> bool:
    if access is None and url.startswith("memory:"):
        return False
    with closing(open_access(access or access_url(url))) as store:
        return store.has_tokens()
