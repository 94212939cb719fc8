"""Tokens: their text, their checks, and their description without the secret."""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from typing import Any

import msgspec

from seriatim.access.rights import ANONYMOUS, Right
from seriatim.core.errors import InvalidArgument, Unauthorized
from seriatim.core.ids import id_problem
from seriatim.core.tenants import ALL_TENANTS, is_infrastructure
from seriatim.core.times import format_us

TOKEN_PREFIX = "srt"  # noqa: S105 - marks tokens as ours, no secret
_ID_BYTES = 8
_SECRET_BYTES = 32
_PARTS = 3
_LIFETIME_MAX_S = 1e10  # about three centuries
# Base64 has four characters for three bytes.
_TOKEN_PATTERN = re.compile(
    rf"{TOKEN_PREFIX}_[0-9a-f]{{{2 * _ID_BYTES}}}_[A-Za-z0-9_-]{{{-(-_SECRET_BYTES * 4 // 3)}}}"
)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """The description of a token: everything but its secret."""

    token_id: str
    subject: str
    service: bool
    tenant_id: str
    rights: list[str]
    types: list[str] | None
    note: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    last_used_at: str | None = None  # accurate to about a minute


def is_token(text: str) -> bool:
    """Return whether a text has the format of a token."""
    return _TOKEN_PATTERN.fullmatch(text) is not None


def split_token(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a token's text, or None if it is not a token."""
    if not is_token(text):
        return None
    _, token_id, secret = text.split("_", _PARTS - 1)  # the secret itself may contain "_"
    return token_id, secret


def format_token(token_id: str, secret: str) -> str:
    """Return the text of a token."""
    return f"{TOKEN_PREFIX}_{token_id}_{secret}"


def new_token_id() -> str:
    """Generate the id of a token."""
    return secrets.token_hex(_ID_BYTES)


def new_secret() -> str:
    """Generate the secret of a token."""
    return secrets.token_urlsafe(_SECRET_BYTES)


def hash_secret(secret: str) -> str:
    """Return the hash under which a secret is stored.

    A plain SHA-256 suffices: secrets are 32 random bytes and cannot be guessed.
    """
    return sha256(secret.encode(errors="replace")).hexdigest()


def invalid_token_error() -> Unauthorized:
    """Return the one error for absent, malformed, unknown, revoked and expired tokens."""
    return Unauthorized("a valid token is needed: Authorization: Bearer …")


def check_holder(subject: str | None, tenant_id: str) -> str:
    """Return the name that a new token authenticates: the service, or else the tenant.

    Raises:
        InvalidArgument: A name is malformed or reserved, or a tenant's token is for all tenants.
    """
    holder = tenant_id if subject is None else subject
    for argument, value in (("tenant", tenant_id), ("service", holder)):
        if problem := id_problem(value):
            raise InvalidArgument(f"{argument} {problem}", details={"argument": argument})
    if subject == ANONYMOUS:
        msg = f"{ANONYMOUS} is reserved for calls without a token: choose another service name"
        raise InvalidArgument(msg, details={"argument": "service"})
    if subject is None and tenant_id == ALL_TENANTS:
        msg = "a tenant's token is for one tenant: name a service to create a token for all tenants"
        raise InvalidArgument(msg, details={"argument": "tenant"})
    return holder


def check_lifetime(expires_in_s: float | None) -> None:
    """Raise `InvalidArgument` unless a lifetime is positive, finite or None."""
    if expires_in_s is not None and not 0 < expires_in_s < _LIFETIME_MAX_S:
        msg = "expiry must be a positive number of seconds, or omitted"
        raise InvalidArgument(msg, details={"argument": "expires_in_s"})


def check_reserved_tenant(tenant_id: str, rights: frozenset[Right], *, service: bool) -> None:
    """Raise `InvalidArgument` if a token may not access the infrastructure's tenant."""
    if is_infrastructure(tenant_id) and not (service and "operate" in rights):
        msg = f"tenant {tenant_id} needs the token of a service with the right operate"
        raise InvalidArgument(msg, details={"argument": "tenant"})


def token_from_row(row: tuple[Any, ...]) -> Token:
    """Return the token of a row of `select_token` and the listings of tokens."""
    token_id, subject, service, tenant_id, rights, types, note = row[:7]
    created, expires, revoked, used = row[7:11]
    return Token(
        token_id=token_id,
        subject=subject,
        service=bool(service),
        tenant_id=tenant_id,
        rights=rights.split(","),
        types=None if types is None else msgspec.json.decode(types, type=list[str]),
        note=note,
        created_at=format_us(created),
        expires_at=None if expires is None else format_us(expires),
        revoked_at=None if revoked is None else format_us(revoked),
        last_used_at=None if used is None else format_us(used),
    )


def describe_token(token: Token) -> dict[str, Any]:
    """Return what the operators' journal records about a token, without its secret."""
    return {
        "token_id": token.token_id,
        "subject": token.subject if token.service else None,
        "rights": token.rights,
        "types": token.types,
        "expires_at": token.expires_at,
    }
