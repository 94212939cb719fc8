"""Database URLs: their options, and checks that keep parts of a password out of every message.

`urllib` is not used to take them apart: it drops the empty host of `postgresql:///database`, and
raises on characters that libpq accepts in a password.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode

from seriatim.core.errors import InvalidArgument

_FORM = "postgresql://user:password@host:port/database"
_ENCODING = (
    "in user and password write % as %25, / as %2F, : as %3A, ? as %3F, # as %23, @ as %40 and a "
    "space as %20"
)
_PORT_MAX = 65_535


def split_options(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL up to its question mark, and its options."""
    base, _, query = url.partition("?")
    return base, dict(parse_qsl(query, keep_blank_values=True))


def with_options(base: str, options: Mapping[str, str]) -> str:
    """Return a URL with these options."""
    return f"{base}?{urlencode(options, quote_via=quote)}" if options else base


def check_postgres_url(url: str) -> None:
    """Refuse a URL whose password would be taken for a host, a port, a database or an option."""
    base, _, query = url.partition("?")
    authority, _, path = base.partition("://")[2].partition("/")
    _, signed, hosts = authority.rpartition("@")
    misplaced = "@" in path or authority.count("@") > 1
    if not signed:  # an option's value may have one: a user of a hosted server, say
        misplaced = misplaced or any("@" in one.partition("=")[0] for one in query.split("&"))
    if misplaced or not base.partition("://")[1]:
        raise misread_url()
    for one in hosts.split(","):
        port = one.rpartition("]")[2].partition(":")[2]
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
            msg = f"the port of the Postgres URL is not a number from 1 to {_PORT_MAX}"
            raise InvalidArgument(f"{msg} ({_FORM}); {_ENCODING}", details={"argument": "url"})


def misread_url(unknown: str | None = None) -> InvalidArgument:
    """Make the error for a URL that libpq does not take; it has no part of the URL but a name."""
    if unknown is not None:
        msg = f"the Postgres URL has an unknown option, {unknown!r:.80}: correct or remove it"
    else:
        msg = f"the Postgres URL cannot be understood ({_FORM}): {_ENCODING}"
    return InvalidArgument(msg, details={"argument": "url"})
