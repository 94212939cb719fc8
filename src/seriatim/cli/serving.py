"""`seriatim serve`: the log over HTTP, on the embedded default or on Postgres."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seriatim.cli.observing import LogFormat, Otel, checked_format
from seriatim.cli.registering import RegistryAt
from seriatim.cli.session import AccessAt, AsJson, Common, Session, Tenant, Url, session
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.opening import absolute_url, access_url, open_access, open_log, shown_url

if TYPE_CHECKING:
    from seriatim.api.serving import Place

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
    with session(ctx, Common(url, tenant, as_json), whole_log=True) as one:
        try:
            from seriatim.api.service import Serving  # noqa: PLC0415 - an extra
            from seriatim.api.serving import Place  # noqa: PLC0415
            from seriatim.api.serving import serve as run  # noqa: PLC0415
        except ModuleNotFoundError as error:
            msg = "the service needs its extra: pip install 'seriatim[server]'"
            raise BackendFailure(msg, retryable=False) from error
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
            open_on_loopback=_is_open(one, place, insecure=insecure),
            events_per_s=events_per_second,
            bytes_per_s=bytes_per_second,
            processes=processes,
            cors_origins=tuple(cors or ()),
            log_requests=log_requests,
            log_format=checked_format(log_format),
            otel=otel,
        )
        with suppress(KeyboardInterrupt):  # told to end, and it did when all was finished
            run(place, serving, lambda at: one.notice(f"serving {shown_url(one.url)} at {at}"))


def _is_open(one: Session, place: Place, *, insecure: bool) -> bool:
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
        one.err.print(
            "[bold yellow]NO TOKEN IS ASKED FOR[/]: anybody on this machine can read and append. "
            "The first `seriatim token create` ends that.",
            soft_wrap=True,
        )
        return True
    one.notice(
        f"no token was made for {shown_url(one.url)} yet, so nobody can call: "
        "seriatim token create --service NAME --tenant TENANT --rights append,read"
    )
    return False


def _any_token(url: str, access: str | None) -> bool:
    if access is None and url.startswith("memory:"):
        return False
    with closing(open_access(access or access_url(url))) as opened:
        return opened.any()
