"""Why a connection to Postgres could not be made, and what helps; never a password."""

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


def _cause(pattern: str, sqlstate: str | None, cure: str, *, retryable: bool = False) -> _Cause:
    return _Cause(re.compile(pattern, re.IGNORECASE), sqlstate, cure, retryable)


# libpq gives no SQLSTATE for a connection that was never made: its text tells the cause.
_CAUSES = (
    _cause(
        r"invalid (?:\S+ value|port number|integer value|connection option)|must be a valid"
        r"|unrecognized configuration parameter|invalid command-line argument"
        r"|definition of service .* not found",
        None,
        "an option of the connection is wrong: correct it in the URL",
    ),
    _cause(
        r"read-only|not read-write|hot standby",
        "25006",
        "the server is a standby or read-only: connect to the primary",
        retryable=True,
    ),
    _cause(
        r"database .* does not exist|no such database",
        "3D000",
        "the database does not exist: create it (createdb), or correct the name in the URL",
    ),
    _cause(
        r"role .* does not exist|no such user",
        "28000",
        "the role does not exist: create it (createuser), or correct the user in the URL",
    ),
    _cause(
        r"password authentication failed|SCRAM|SASL authentication failed",
        "28P01",
        "the password was not accepted: correct it in the URL, PGPASSWORD or the password file",
    ),
    _cause(
        r"no password supplied",
        "28P01",
        "the server asks for a password: give one in the URL, PGPASSWORD or a password file",
    ),
    _cause(
        r"pg_hba\.conf|authentication failed|is not permitted to log in",
        "28000",
        "the server lets this role not in from here: add an entry to its pg_hba.conf, allow the "
        "role to log in, or connect with the encryption that it demands (sslmode=require)",
    ),
    _cause(
        r"too many (?:clients|connections)|remaining connection slots|no more connections allowed",
        "53300",
        "the server has no connection left: lower pool_size, put a pooler between, or raise "
        "max_connections or the connection limit of the role or the database",
        retryable=True,
    ),
    _cause(
        r"not currently accepting connections",
        "55000",
        "the database lets nobody in: ALTER DATABASE … ALLOW_CONNECTIONS true as its owner",
    ),
    _cause(
        r"permission denied for database",
        "42501",
        "the role may not use the database: GRANT CONNECT ON DATABASE … TO ROLE as its owner",
    ),
    _cause(
        r"starting up|shutting down|in recovery|not yet accepting connections",
        "57P03",
        "the server is starting, stopping or recovering: wait until it accepts connections",
        retryable=True,
    ),
    _cause(
        r"pgbouncer cannot connect|login has been failing|query_wait_timeout|connect failed",
        None,
        "the pooler has no connection to its server: check the server, and the pooler's log",
        retryable=True,
    ),
    _cause(
        r"certificate|SSL error|does not support SSL|TLS",
        None,
        "TLS failed: name the file of the trusted certificates with sslrootcert=, use a host name "
        "that the server's certificate is for, or choose another sslmode",
    ),
    _cause(
        r"could not translate host name|name or service not known|name resolution",
        None,
        "the host name cannot be resolved: correct it in the URL, or check DNS",
        retryable=True,
    ),
    _cause(
        r"connection refused|no such file or directory",
        None,
        "no server listens there: start Postgres, or correct host and port in the URL",
        retryable=True,
    ),
    _cause(
        r"timeout|timed out|no route to host|unreachable",
        None,
        "the server cannot be reached in time: check host, port, network and firewall, or raise "
        "connect_timeout_s",
        retryable=True,
    ),
    _cause(
        r"invalid response|unexpected response|unsupported frontend protocol",
        None,
        "what listens there is no Postgres server: correct host and port in the URL",
    ),
    _cause(
        r"closed the connection unexpectedly|connection reset|lost synchronization",
        None,
        "what listens there ended the connection: check that it is a Postgres server, its log, "
        "and what stands between (a proxy, a firewall, a port that takes TLS alone)",
        retryable=True,
    ),
)


class ServerAddress(msgspec.Struct, frozen=True):
    """Where a connection goes, as far as it may be displayed."""

    host: str
    port: str
    database: str
    user: str

    @classmethod
    def of(cls, conninfo: str) -> ServerAddress:
        """Read the address from a connection string; libpq's own defaults are left out."""
        given = conninfo_to_dict(conninfo)
        host = str(given.get("host") or given.get("hostaddr") or "localhost")
        return cls(
            host,
            str(given.get("port") or 5432),
            str(given.get("dbname") or given.get("user") or ""),
            str(given.get("user") or ""),
        )

    def __str__(self) -> str:
        """Return it as messages have it."""
        at = f"{self.host}:{self.port}"
        database = f", database {self.database!r:.80}" if self.database else ""
        user = f", user {self.user!r:.80}" if self.user else ""
        return f"{at}{database}{user}"


def connection_failure(error: psycopg.Error, conninfo: str) -> BackendFailure:
    """Return where no connection could be made, why, and what helps."""
    return failure_to_connect(str(error), conninfo, sqlstate=error.sqlstate)


def failure_to_connect(text: str, conninfo: str, *, sqlstate: str | None) -> BackendFailure:
    """Do the same for what any driver on libpq says."""
    reason = _reason(without_secrets(text, conninfo))
    address = ServerAddress.of(conninfo)
    cause = next((one for one in _CAUSES if one.pattern.search(reason)), None)
    cure, retryable = ("", True) if cause is None else (cause.cure, cause.retryable)
    msg = f"cannot connect to Postgres at {address}: {reason or 'no reason was given'}"
    if cure:
        msg = f"{msg}; {cure}"
    details: dict[str, Any] = {
        "ambiguous": False,
        "host": address.host,
        "port": address.port,
        "sqlstate": sqlstate or (cause.sqlstate if cause else None),
    }
    return BackendFailure(msg, details=details, retryable=retryable)


def without_secrets(text: str, conninfo: str) -> str:
    """Return a text without what a connection string keeps secret, however it is written."""
    secrets = {
        written
        for name, value in conninfo_to_dict(conninfo).items()
        if value and any(word in name for word in _SECRET_WORDS)
        for written in (str(value), quote(str(value), safe=""), quote_plus(str(value)))
    }
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return text


def _reason(text: str) -> str:
    """Return what libpq says, in one line: each address that it tried says why once."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _HINT.match(line)]
    said = [_FAILED.sub("", line).removeprefix("connection failed: ").strip() for line in lines]
    return "; ".join(dict.fromkeys(one for one in said if one))[:500]
