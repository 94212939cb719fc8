"""Explain failed connections to Postgres with cause and cure, and without any password."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from seriatim.core.errors import BackendFailure

_SECRET_WORDS = ("pass", "key", "secret", "token", "options")
_HIDDEN = "***"
_FAILED = re.compile(r"connection to server (?:at|on socket) .*? failed: (?:FATAL: +)?")
_HINT = re.compile(r"^\s*(?:Is the server running|Connections and transactions)")


class _Cause(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str]
    sqlstate: str | None
    cure: str
    retryable: bool


def _make_cause(
    pattern: str, sqlstate: str | None, cure: str, *, retryable: bool = False
) -> _Cause:
    return _Cause(re.compile(pattern, re.IGNORECASE), sqlstate, cure, retryable)


# libpq reports no SQLSTATE for a connection that was never established, so its text is matched.
_CAUSES = (
    _make_cause(
        r"invalid (?:\S+ value|port number|integer value|connection option)|must be a valid"
        r"|unrecognized configuration parameter|invalid command-line argument"
        r"|definition of service .* not found",
        None,
        "a connection option is invalid: correct it in the URL",
    ),
    _make_cause(
        r"read-only|not read-write|hot standby",
        "25006",
        "the server is a standby or read-only: connect to the primary",
        retryable=True,
    ),
    _make_cause(
        r"database .* does not exist|no such database",
        "3D000",
        "the database does not exist: create it (createdb), or correct the name in the URL",
    ),
    _make_cause(
        r"role .* does not exist|no such user",
        "28000",
        "the role does not exist: create it (createuser), or correct the user in the URL",
    ),
    _make_cause(
        r"password authentication failed|SCRAM|SASL authentication failed",
        "28P01",
        "the password was rejected: correct it in the URL, PGPASSWORD or the password file",
    ),
    _make_cause(
        r"no password supplied",
        "28P01",
        "the server requires a password: set it in the URL, PGPASSWORD or a password file",
    ),
    _make_cause(
        r"pg_hba\.conf|authentication failed|is not permitted to log in",
        "28000",
        "the server does not accept this role from this host: add an entry to its pg_hba.conf, "
        "allow the role to log in, or use the encryption that it requires (sslmode=require)",
    ),
    _make_cause(
        r"too many (?:clients|connections)|remaining connection slots|no more connections allowed",
        "53300",
        "the server has no connection left: lower pool_size, use a pooler, or raise "
        "max_connections or the connection limit of the role or the database",
        retryable=True,
    ),
    _make_cause(
        r"not currently accepting connections",
        "55000",
        "the database accepts no connections: ALTER DATABASE … ALLOW_CONNECTIONS true as its owner",
    ),
    _make_cause(
        r"permission denied for database",
        "42501",
        "the role may not use the database: GRANT CONNECT ON DATABASE … TO ROLE as its owner",
    ),
    _make_cause(
        r"starting up|shutting down|in recovery|not yet accepting connections",
        "57P03",
        "the server is starting, stopping or recovering: wait until it accepts connections",
        retryable=True,
    ),
    _make_cause(
        r"pgbouncer cannot connect|login has been failing|query_wait_timeout|connect failed",
        None,
        "the pooler cannot connect to its server: check the server and the pooler's log",
        retryable=True,
    ),
    _make_cause(
        r"certificate|SSL error|does not support SSL|TLS",
        None,
        "TLS failed: set sslrootcert= to the file of trusted certificates, use the host name in "
        "the server's certificate, or choose another sslmode",
    ),
    _make_cause(
        r"could not translate host name|name or service not known|name resolution",
        None,
        "the host name cannot be resolved: correct it in the URL, or check DNS",
        retryable=True,
    ),
    _make_cause(
        r"connection refused|no such file or directory",
        None,
        "no server is listening there: start Postgres, or correct host and port in the URL",
        retryable=True,
    ),
    _make_cause(
        r"timeout|timed out|no route to host|unreachable",
        None,
        "the server did not respond in time: check host, port, network and firewall, or raise "
        "connect_timeout_s",
        retryable=True,
    ),
    _make_cause(
        r"invalid response|unexpected response|unsupported frontend protocol",
        None,
        "this is not a Postgres server: correct host and port in the URL",
    ),
    _make_cause(
        r"closed the connection unexpectedly|connection reset|lost synchronization",
        None,
        "the other side closed the connection: check that it is a Postgres server, its log, and "
        "any proxy or firewall in between (the port may accept only TLS)",
        retryable=True,
    ),
)


class ServerAddress(msgspec.Struct, frozen=True):
    """The parts of a connection string that may be displayed."""

    host: str
    port: str
    database: str
    user: str

    @classmethod
    def of(cls, conninfo: str) -> ServerAddress:
        """Parse the address from a connection string, without libpq's environment defaults."""
        options = conninfo_to_dict(conninfo)
        host = str(options.get("host") or options.get("hostaddr") or "localhost")
        return cls(
            host,
            str(options.get("port") or 5432),
            str(options.get("dbname") or options.get("user") or ""),
            str(options.get("user") or ""),
        )

    def __str__(self) -> str:
        """Return the address as it appears in messages."""
        server = f"{self.host}:{self.port}"
        database = f", database {self.database!r:.80}" if self.database else ""
        user = f", user {self.user!r:.80}" if self.user else ""
        return f"{server}{database}{user}"


def translate_connection_error(error: psycopg.Error, conninfo: str) -> BackendFailure:
    """Return the failure for a driver error, with address, reason and cure."""
    return make_connection_failure(str(error), conninfo, sqlstate=error.sqlstate)


def make_connection_failure(text: str, conninfo: str, *, sqlstate: str | None) -> BackendFailure:
    """Return the failure for the error text of any driver based on libpq.

    Args:
        text: The error text.
        conninfo: The connection string; its secrets are removed from the text.
        sqlstate: The error code, if the driver reports one.

    """
    reason = _extract_reason(redact_secrets(text, conninfo))
    address = ServerAddress.of(conninfo)
    cause = next((known for known in _CAUSES if known.pattern.search(reason)), None)
    cure, retryable = ("", True) if cause is None else (cause.cure, cause.retryable)
    msg = f"cannot connect to Postgres at {address}: {reason or 'no reason given'}"
    if cure:
        msg = f"{msg}; {cure}"
    details: dict[str, Any] = {
        "ambiguous": False,
        "host": address.host,
        "port": address.port,
        "sqlstate": sqlstate or (cause.sqlstate if cause else None),
    }
    return BackendFailure(msg, details=details, retryable=retryable)


def redact_secrets(text: str, conninfo: str) -> str:
    """Replace the secrets of a connection string in a text, also where percent-encoded."""
    secrets = {
        form
        for name, value in conninfo_to_dict(conninfo).items()
        if value and any(word in name for word in _SECRET_WORDS)
        for form in (str(value), quote(str(value), safe=""), quote_plus(str(value)))
    }
    # Longest first: one secret may contain another, whose removal would leave the rest readable.
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _extract_reason(text: str) -> str:
    """Return libpq's message in one line; libpq repeats the reason for each address it tried."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _HINT.match(line)]
    reasons = [_FAILED.sub("", line).removeprefix("connection failed: ").strip() for line in lines]
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))[:500]
