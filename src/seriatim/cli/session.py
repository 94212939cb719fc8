"""One run of a command: where the log is, how to print, and how errors end it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from seriatim.cli import exits
from seriatim.cli.output import Terminal, plain, silence_stdout
from seriatim.config import default_url
from seriatim.core.canonical import parse_json
from seriatim.core.errors import BackendFailure, Flaw, SeriatimError
from seriatim.core.extras import extra_of, missing_text
from seriatim.core.tenants import check_tenant
from seriatim.log.arguments import bad
from seriatim.opening import Log, open_log

FALLBACK_URL = "sqlite:///seriatim.db"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The log: sqlite:///file or postgresql://… [default: $SERIATIM_URL, else "
        f"{FALLBACK_URL}]",
        show_default=False,
    ),
]
Tenant = Annotated[
    str | None,
    typer.Option("--tenant", help="Whose events. [default: default]", show_default=False),
]
AccessAt = Annotated[
    str | None,
    typer.Option(
        "--access",
        metavar="URL",
        help="Where tokens and quotas are: sqlite:///file or postgresql://…?schema=name. "
        "[default: beside the log]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


class Common(msgspec.Struct, frozen=True):
    """The options that may stand before the command or after it."""

    url: str | None = None
    tenant: str | None = None
    as_json: bool = False


class Session:
    """What a command works with."""

    def __init__(self, common: Common) -> None:
        self.as_json = common.as_json
        self.tenant = common.tenant
        self.given_url = common.url
        self.out = Terminal(highlight=False)
        self.err = Terminal(stderr=True, highlight=False)
        self._url = common.url or default_url()

    @property
    def url(self) -> str:
        """The log's address; the fallback is named on stderr."""
        if self._url is None:
            self.notice(f"no --url and no SERIATIM_URL: using {FALLBACK_URL}")
            self._url = FALLBACK_URL
        return self._url

    def open(self, *, create: bool = False) -> Log:
        """Open the log; only commands that may make one say so."""
        return open_log(self.url, tenant_id=self.tenant, create=create)

    def notice(self, message: str) -> None:
        """Tell a person something that is no result."""
        if not self.as_json:
            self.err.print(Text(plain(message), style="dim"))

    def fail(self, error: SeriatimError) -> None:
        """Print an error as one line, or as the JSON that every door shows."""
        if self.as_json:
            sys.stderr.write(msgspec.json.encode(error.as_dict()).decode() + "\n")
            return
        line = Text(f"{error.code}: ", style="bold red")
        line.append(plain(error.message), style="not bold default")
        if hint := exits.advice(error):
            line.append(f" → {hint}", style="not bold default")
        self.err.print(line, soft_wrap=True)


@contextmanager
def session(ctx: typer.Context, common: Common, *, whole_log: bool = False) -> Iterator[Session]:
    """Run a command's work; expected errors end it with their exit code, never a traceback.

    A command about the whole log refuses a tenant: whoever names one expects to see no other's.
    """
    one = Session(merged(ctx, common))
    previous = signal.signal(signal.SIGTERM, _interrupted)
    try:
        if whole_log and one.tenant is not None:
            raise bad("tenant", "does not narrow this: it is about the log of all tenants")
        if one.tenant is not None:
            check_tenant(one.tenant, "tenant")
        yield one
        sys.stdout.flush()
    except SeriatimError as error:
        one.fail(error)
        raise typer.Exit(exits.exit_code(error)) from None
    except ModuleNotFoundError as error:
        extra = extra_of(error)
        if extra is None:
            raise
        one.fail(BackendFailure(missing_text(error, extra), retryable=False))
        raise typer.Exit(exits.BACKEND) from None
    except KeyboardInterrupt:
        raise typer.Exit(exits.INTERRUPTED) from None
    except BrokenPipeError:
        silence_stdout()
        raise typer.Exit(exits.BROKEN_PIPE) from None
    except OSError as error:
        one.err.print(Text(plain(f"{error.filename or 'a file'}: {error.strerror}")))
        raise typer.Exit(exits.BACKEND) from None
    finally:
        signal.signal(signal.SIGTERM, previous)


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def merged(ctx: typer.Context, common: Common) -> Common:
    """Add to the options after a command those that stood before it."""
    outer = ctx.obj if isinstance(ctx.obj, Common) else Common()
    return Common(
        common.url or outer.url, common.tenant or outer.tenant, common.as_json or outer.as_json
    )


def json_argument(text: str, name: str) -> Any:
    """Parse JSON that stands on the command line or in a file, strictly."""
    try:
        return parse_json(text)
    except Flaw as flaw:
        raise bad(name, f"is {_json_problem(text) or flaw.message}") from None


def _json_problem(text: str) -> str | None:
    """Say where JSON goes wrong, without showing what stands there."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError):
        return "not valid JSON"
    return None


def number_or_none(text: str, name: str) -> int | None:
    """Read a whole number, or `none` for "must not exist"."""
    if text == "none":
        return None
    if text.isascii() and text.isdigit():
        return int(text)
    raise bad(name, "must be a whole number, or none")
