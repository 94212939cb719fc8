"""The session of a command: its log, its output, and how errors become exit codes."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from seriatim.cli import exit_codes
from seriatim.cli.output import Terminal, escape_unprintable, silence_stdout
from seriatim.config import default_url
from seriatim.core.canonical import parse_strict_json
from seriatim.core.errors import BackendFailure, InvalidArgument, SeriatimError, ValidationError
from seriatim.core.extras import find_extra, missing_module_message
from seriatim.core.tenants import check_tenant
from seriatim.factory import Log, open_log
from seriatim.log.arguments import invalid_argument
from seriatim.telemetry.log_format import LogFormat, write_logs
from seriatim.telemetry.metrics import JobMetrics, Metrics, MetricsServer
from seriatim.telemetry.span_export import export_spans

FALLBACK_URL = "sqlite:///seriatim.db"

LogUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The log: sqlite:///file, postgresql://… or the address of a service. "
        f"[default: $SERIATIM_URL, else {FALLBACK_URL}]",
        show_default=False,
    ),
]
TenantOption = Annotated[
    str | None,
    typer.Option("--tenant", help="The tenant. [default: default]", show_default=False),
]
AccessUrl = Annotated[
    str | None,
    typer.Option(
        "--access",
        metavar="URL",
        help="The store of tokens and quotas: sqlite:///file or postgresql://…?schema=name. "
        "[default: next to the log]",
        show_default=False,
    ),
]
JsonOutput = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of text, errors included.")
]


class CommonOptions(msgspec.Struct, frozen=True):
    """The options that are accepted before and after the name of a command."""

    url: str | None = None
    tenant: str | None = None
    as_json: bool = False


class CommandSession:
    """The log and the output streams of one command."""

    def __init__(self, common: CommonOptions) -> None:
        self.as_json = common.as_json
        self.tenant = common.tenant
        self.explicit_url = common.url
        self.stdout = Terminal(highlight=False)
        self.stderr = Terminal(stderr=True, highlight=False)
        self._url = common.url or default_url()

    @property
    def url(self) -> str:
        """The URL of the log; if none is configured, the fallback, with a notice on stderr."""
        if self._url is None:
            self.notice(f"neither --url nor SERIATIM_URL is set: using {FALLBACK_URL}")
            self._url = FALLBACK_URL
        return self._url

    def open(self, *, create: bool = False) -> Log:
        """Open the log for the session's tenant; `create` allows creating a missing one."""
        return open_log(self.url, tenant_id=self.tenant, create=create)

    def notice(self, message: str) -> None:
        """Print a message that is not a result to stderr, unless the output is JSON."""
        if not self.as_json:
            self.stderr.print(Text(escape_unprintable(message), style="dim"))

    def print_error(self, error: SeriatimError) -> None:
        """Print an error to stderr as one line, or as the JSON that all interfaces share."""
        if self.as_json:
            sys.stderr.write(msgspec.json.encode(error.as_dict()).decode() + "\n")
            return
        line = Text(f"{error.code}: ", style="bold red")
        line.append(escape_unprintable(error.message), style="not bold default")
        if hint := exit_codes.suggest_cure(error):
            line.append(f" → {hint}", style="not bold default")
        self.stderr.print(line, soft_wrap=True)


@contextmanager
def command_session(
    ctx: typer.Context, common: CommonOptions, *, whole_log: bool = False
) -> Iterator[CommandSession]:
    """Run the body of a command; expected errors become exit codes instead of tracebacks.

    Args:
        ctx: The Typer context, which holds the options given before the command.
        common: The options given after the command.
        whole_log: Whether the command applies to all tenants. It then refuses `--tenant`, since a
            caller who names a tenant must not get the events of others.

    Yields:
        The session.

    Raises:
        typer.Exit: With the exit code of an error, after printing it.

    """
    command = CommandSession(merge_options(ctx, common))
    # SIGTERM is treated like Ctrl-C, so that leases and files are released in both cases.
    previous = signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        if whole_log and command.tenant is not None:
            raise invalid_argument(
                "tenant", "is not accepted here: this command applies to all tenants"
            )
        if command.tenant is not None:
            check_tenant(command.tenant, "tenant")
        yield command
        # Here, not at exit: a failure to write is reported like any other error.
        sys.stdout.flush()
    except SeriatimError as error:
        command.print_error(error)
        raise typer.Exit(exit_codes.exit_code(error)) from None
    except ModuleNotFoundError as error:
        extra = find_extra(error)
        if extra is None:
            raise
        command.print_error(BackendFailure(missing_module_message(error, extra), retryable=False))
        raise typer.Exit(exit_codes.BACKEND) from None
    except KeyboardInterrupt:
        raise typer.Exit(exit_codes.INTERRUPTED) from None
    except BrokenPipeError:
        # The reader has left, as in `| head`; Python would complain when it flushes at exit.
        silence_stdout()
        raise typer.Exit(exit_codes.BROKEN_PIPE) from None
    except OSError as error:
        command.stderr.print(
            Text(escape_unprintable(f"{error.filename or 'a file'}: {error.strerror}"))
        )
        raise typer.Exit(exit_codes.BACKEND) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


def _raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def merge_options(ctx: typer.Context, common: CommonOptions) -> CommonOptions:
    """Combine the options before and after the command; the latter take precedence."""
    outer = ctx.obj if isinstance(ctx.obj, CommonOptions) else CommonOptions()
    return CommonOptions(
        common.url or outer.url, common.tenant or outer.tenant, common.as_json or outer.as_json
    )


def parse_json_argument(text: str, name: str) -> Any:
    """Parse strict JSON from the command line or a file; errors name the argument `name`."""
    try:
        return parse_strict_json(text)
    except ValidationError as flaw:
        raise invalid_argument(name, f"is {_json_problem(text) or flaw.message}") from None


def _json_problem(text: str) -> str | None:
    """Return the position of a syntax error; the text itself may be secret and is left out."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError):
        return "not valid JSON"
    return None


def parse_number_or_none(text: str, name: str) -> int | None:
    """Parse a whole number, or `none`, which means that nothing may exist yet."""
    if text == "none":
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    raise invalid_argument(name, "must be a whole number or none")


def load_object(path: str, argument: str) -> Any:
    """Import an object of a user's module; modules in the current folder are found, too.

    Args:
        path: The object as `module:name`.
        argument: The name of the command-line argument, for error messages.

    Returns:
        The object, or None if the module has no such name.

    Raises:
        InvalidArgument: If `path` has no colon or the module cannot be imported.

    """
    module_name, colon, name = path.partition(":")
    if not colon:
        raise invalid_argument(argument, f"{path!r:.80} must be given as module:name")
    # The installed program does not have the current folder on its path; `python -m` does.
    sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module_name), name, None)
    except ImportError as error:
        msg = f"the module {module_name!r:.80} cannot be imported: {error}"
        raise InvalidArgument(msg, details={"argument": argument}) from error
    finally:
        sys.path.remove("")


MetricsAddress = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        help="Serve metrics in Prometheus format at this address, under /metrics.",
        show_default=False,
    ),
]
Otel = Annotated[
    bool | None,
    typer.Option(
        "--otel/--no-otel",
        help="Export OpenTelemetry spans by OTLP over HTTP. [default: enabled if "
        "$OTEL_EXPORTER_OTLP_ENDPOINT is set]",
        show_default=False,
    ),
]
LogFormatOption = Annotated[
    str, typer.Option("--log-format", metavar="FORMAT", help="The format of logs: text or json.")
]


@contextmanager
def observe_command(
    service: str, *, metrics: str | None = None, otel: bool | None = None, log_format: str = "text"
) -> Iterator[JobMetrics | None]:
    """Write logs, export spans and serve metrics while a command runs.

    Args:
        service: The service name of the exported spans.
        metrics: The address to serve metrics at, as HOST:PORT; None serves none.
        otel: Whether to export spans; None decides by the environment.
        log_format: `text` or `json`.

    Yields:
        The metrics of the job, or None if none are served.

    """
    with log_to_stderr(log_format), export_spans(service, enabled=otel):
        if metrics is None:
            yield None
            return
        registry = Metrics()
        job_metrics = JobMetrics(registry)
        with closing(MetricsServer(registry, metrics)):
            yield job_metrics


@contextmanager
def log_to_stderr(log_format: str) -> Iterator[None]:
    """Write logs to stderr while a command runs."""
    stop = write_logs(parse_log_format(log_format))
    try:
        yield
    finally:
        stop()


def parse_log_format(name: str) -> LogFormat:
    """Return the log format with this name, or raise `InvalidArgument`."""
    if name not in ("text", "json"):
        raise invalid_argument("log-format", "must be text or json")
    return "json" if name == "json" else "text"
