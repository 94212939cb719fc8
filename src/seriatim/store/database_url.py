"""Parse and check database URLs without ever quoting a part of a password in a message.

`urllib` is not used to split them: it drops the empty host of `postgresql:///database`, and
raises on characters that libpq accepts in a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode

from seriatim.core.errors import InvalidArgument

_FORM = "postgresql://user:password@host:port/database"
_ENCODING = (
    "percent-encode user and password: write % as %25, / as %2F, : as %3A, ? as %3F, # as %23, "
    "@ as %40 and a space as %20"
)
_PORT_MAX = 65_535


def split_options(url: str) -> tuple[str, dict[str, str]]:
    """Split a URL at its question mark into the base and the options."""
    base, _, query = url.partition("?")
    return base, dict(parse_qsl(query, keep_blank_values=True))


def join_options(base: str, options: Mapping[str, str]) -> str:
    """Return the base URL with options appended."""
    return f"{base}?{urlencode(options, quote_via=quote)}" if options else base


def check_postgres_url(url: str) -> None:
    """Check that no part of a password is parsed as host, port, database or option name.

    Args:
        url: A Postgres URL.

    Raises:
        InvalidArgument: The URL is malformed; the message contains no part of it.

    """
    base, _, query = url.partition("?")
    authority, _, path = base.partition("://")[2].partition("/")
    _, has_credentials, hosts = authority.rpartition("@")
    misplaced = "@" in path or authority.count("@") > 1
    if not has_credentials:
        # The value of an option may contain an @, such as a user of a hosted server.
        misplaced = misplaced or any("@" in option.partition("=")[0] for option in query.split("&"))
    if misplaced or not base.partition("://")[1]:
        raise make_url_error()
    for host in hosts.split(","):
        port = host.rpartition("]")[2].partition(":")[2]
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
            msg = f"the port of the Postgres URL is not a number from 1 to {_PORT_MAX}"
            raise InvalidArgument(f"{msg} ({_FORM}); {_ENCODING}", details={"argument": "url"})


def make_url_error(unknown: str | None = None) -> InvalidArgument:
    """Return the error for a URL that libpq rejects.

    Args:
        unknown: The name of an unknown option; it is the only part of the URL that is quoted.

    """
    if unknown is not None:
        msg = f"the Postgres URL has an unknown option, {unknown!r:.80}: correct or remove it"
    else:
        msg = f"cannot parse the Postgres URL ({_FORM}): {_ENCODING}"
    return InvalidArgument(msg, details={"argument": "url"})
