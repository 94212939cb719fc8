"""`seriatim serve`: the log over HTTP, on the embedded default or on Postgres."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seriatim.cli.observing import LogFormat, Otel, checked_format
from seriatim.cli.registering import RegistryAt
from seriatim.cli.session import AccessAt, AsJson, Common, Session, Tenant, Url, session
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.core.limits import MIB
from seriatim.opening import absolute_url, access_url, open_access, open_log, shown_url
from seriatim.telemetry.logs import write_every_log

if TYPE_CHECKING:
    from seriatim.api.serving import Place

logger = logging.getLogger("seriatim.api")

_FIRST_TOKEN = "The first `seriatim token create` ends that."  # noqa: S105 - no secret
Host = Annotated[str, typer.Option("--host", help="The address to listen on.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65_535, help="The port; 0 takes any.")]
Processes = Annotated[
    int, typer.Option("--processes", min=1, max=256, help="How many processes serve.")
]
Certificate = Annotated[
    Path | None,
    typer.Option("--certificate", help="Serve TLS with this certificate.", show_default=False),
]
Key = Annotated[
    Path | None, typer.Option("--key", help="The certificate's key.", show_default=False)
]
EventsPerS = Annotated[
    float,
    typer.Option("--events-per-second", min=0, help="A tenant's quota; 0 sets none."),
]
BytesPerS = Annotated[
    float, typer.Option("--bytes-per-second", min=0, help="A tenant's quota; 0 sets none.")
]
Cors = Annotated[
    list[str] | None,
    typer.Option(
        "--cors", metavar="ORIGIN", help="Let pages of this origin call.", show_default=False
    ),
]
TenantMemory = Annotated[
    int,
    typer.Option(
        "--tenant-memory-mib",
        min=1,
        help="Memory of a tenant's request bodies and unsent answers, in each process.",
    ),
]
Grace = Annotated[
    float,
    typer.Option("--grace-s", min=1, help="Seconds from SIGTERM until the process has ended."),
]
LogRequests = Annotated[
    bool, typer.Option("--log-requests", help="Log every request, not only what failed here.")
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        help="Listen beyond this machine without TLS: only behind a proxy that speaks it.",
    ),
]


def serve(  # noqa: PLR0913 - where, for whom, how much
    ctx: typer.Context,
    host: Host = "127.0.0.1",
    port: Port = 8420,
    processes: Processes = 1,
    certificate: Certificate = None,
    key: Key = None,
    insecure: Insecure = False,
    events_per_second: EventsPerS = 0.0,
    bytes_per_second: BytesPerS = 0.0,
    tenant_memory_mib: TenantMemory = 128,
    grace_s: Grace = 30.0,
    cors: Cors = None,
    log_requests: LogRequests = False,
    otel: Otel = None,
    log_format: LogFormat = "text",
    access: AccessAt = None,
    registry: RegistryAt = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Serve the log over HTTP until interrupted; what was accepted is finished."""
    common = Common(url, tenant, as_json)
    with session(ctx, common, whole_log=True) as one, ExitStack() as stack:
        try:
            from seriatim.api.service import Serving  # noqa: PLC0415 - an extra
            from seriatim.api.serving import Place  # noqa: PLC0415
            from seriatim.api.serving import serve as run  # noqa: PLC0415
        except ModuleNotFoundError as error:
            msg = "the service needs its extra: pip install 'seriatim[server]'"
            raise BackendFailure(msg, retryable=False) from error
        form = checked_format(log_format)
        stack.callback(write_every_log(form))
        place = Place(
            url=absolute_url(one.url),
            host=host,
            port=port,
            certificate=None if certificate is None else str(certificate),
            key=None if key is None else str(key),
            access=access,
            registry=registry,
        )
        serving = Serving(
            open_on_loopback=_is_open(one, place, insecure=insecure, as_log=form == "json"),
            events_per_s=events_per_second,
            bytes_per_s=bytes_per_second,
            processes=processes,
            tenant_memory_bytes=tenant_memory_mib * MIB,
            grace_s=grace_s,
            cors_origins=tuple(cors or ()),
            log_requests=log_requests,
            log_format=form,
            otel=otel,
        )
        say = partial(_say, one, as_log=serving.log_format == "json")
        with suppress(KeyboardInterrupt):  # told to end, and it did when all was finished
            run(place, serving, lambda at: say(f"serving {shown_url(one.url)} at {at}"))


def _say(one: Session, message: str, *, as_log: bool) -> None:
    """Tell a person, or the logs when they are for a machine."""
    if as_log:
        logger.info(message)
    else:
        one.notice(message)


def _is_open(one: Session, place: Place, *, insecure: bool, as_log: bool = False) -> bool:
    """Say how the service is guarded, and whether it asks for tokens at all."""
    from seriatim.api.service import is_loopback  # noqa: PLC0415 - an extra
    from seriatim.api.serving import is_embedded  # noqa: PLC0415

    embedded, loopback = is_embedded(one.url), is_loopback(place.host)
    if not loopback and place.certificate is None and not insecure:
        msg = (
            f"{place.host} is reached from other machines, where tokens must not travel in the "
            "clear: give --certificate and --key, or say --insecure behind a proxy that speaks TLS"
        )
        raise InvalidArgument(msg, details={"argument": "host"})
    with open_log(one.url):  # made if need be, and a clear error if it cannot be
        pass
    if _any_token(one.url, place.access):
        return False
    if embedded and loopback:
        told = ": anybody on this machine can read and append. " + _FIRST_TOKEN
        if as_log:
            logger.warning("NO TOKEN IS ASKED FOR%s", told)
        else:
            one.err.print(f"[bold yellow]NO TOKEN IS ASKED FOR[/]{told}", soft_wrap=True)
        return True
    msg = (
        f"no token was made for {shown_url(one.url)} yet, so nobody can call: "
        "seriatim token create --service NAME --tenant TENANT --rights append,read"
    )
    _say(one, msg, as_log=as_log)
    return False


def _any_token(url: str, access: str | None) -> bool:
    if access is None and url.startswith("memory:"):
        return False
    with closing(open_access(access or access_url(url))) as opened:
        return opened.any()
