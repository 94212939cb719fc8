"""The command `seriatim console`: show the log in a browser on this machine."""

from __future__ import annotations

import threading
import webbrowser
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.text import Text

from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.output import write_json
from seriatim.cli.registry import RegistryUrl
from seriatim.core.errors import BackendFailure, InvalidArgument
from seriatim.factory import absolute_url, redact_url
from seriatim.telemetry.log_format import write_all_logs

_NEVER_S = float("inf")
_GRACE_S = 3.0  # open pages must not delay the end after Ctrl-C

Port = Annotated[
    int, typer.Option("--port", min=0, max=65_535, help="The port; 0 selects any free port.")
]
OpenBrowser = Annotated[
    bool, typer.Option("--open/--no-open", help="Open the sign-in link in the browser.")
]
Operate = Annotated[
    bool,
    typer.Option("--operate", help="Allow the actions of operators, and dry runs of appends."),
]


def console(
    ctx: typer.Context,
    port: Port = 0,
    operate: Operate = False,
    open_browser: OpenBrowser = True,
    registry: RegistryUrl = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Show the log in the browser, on this machine only, until interrupted.

    The sign-in link works once. The session is read-only unless --operate is given, and the HTTP
    API accepts no requests.
    """
    common = CommonOptions(url, tenant, as_json)
    with (
        command_session(ctx, common, whole_log=True) as command,
        TemporaryDirectory(prefix="seriatim-console-") as folder,
    ):
        try:
            from seriatim.api.server import ServiceLocation, serve
            from seriatim.api.service import ServiceSettings
            from seriatim.console.app import ConsoleSettings, new_sign_in_code
            from seriatim.console.routes import make_console
        except ModuleNotFoundError as error:
            msg = "the console needs an extra: pip install 'seriatim[server]'"
            raise BackendFailure(msg, retryable=False) from error
        _check_log(command)
        code = new_sign_in_code()
        place = ServiceLocation(
            url=absolute_url(command.url),
            port=port,
            access=f"sqlite:///{Path(folder) / 'access.db'}",  # no tokens: the API stays closed
            registry=registry,
        )
        # Command records of the log are not purged: a console writes only what its actions write.
        settings = ServiceSettings(purge_every_s=_NEVER_S, grace_s=_GRACE_S)
        mount = partial(make_console, ConsoleSettings(sign_in_code=code, operate=operate))
        stop_logs = write_all_logs("text")
        try:
            with suppress(KeyboardInterrupt):  # a requested shutdown is a success
                serve(
                    place,
                    settings,
                    lambda address: _announce(command, address, code, open_browser=open_browser),
                    mount,
                )
        finally:
            stop_logs()


def _check_log(command: CommandSession) -> None:
    """Open the log once, so that a wrong URL is an error instead of a new log.

    Raises:
        InvalidArgument: The URL is that of a service.
        SeriatimError: The log does not exist, or cannot be opened.
    """
    url = command.url
    if url.startswith(("http:", "https:")):
        msg = f"a service has its own console: open {redact_url(url).rstrip('/')}/console/"
        raise InvalidArgument(msg, details={"argument": "url"})
    if not url.startswith("memory:"):
        command.open().close()


def _announce(command: CommandSession, address: str, code: str, *, open_browser: bool) -> None:
    link = f"{address}/console/sign-in?code={code}"
    if command.as_json:
        write_json({"url": f"{address}/console/", "sign_in_link": link}, flush=True)
    else:
        command.notice(f"console of {redact_url(command.url)}, stop it with Ctrl-C; sign in once:")
        command.stdout.print(Text(link, style="cyan"), soft_wrap=True)
    if open_browser:
        # In a thread: a browser of the terminal returns only when it is closed.
        threading.Thread(target=webbrowser.open, args=(link,), daemon=True).start()
