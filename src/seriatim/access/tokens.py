"""Tokens: made once, shown once, kept as hashes; they expire and can be revoked."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from seriatim.access.desk import Desk
from seriatim.access.rights import ANONYMOUS, Caller, check_rights, check_types
from seriatim.core.errors import InvalidArgument, NotFound, Unauthorized
from seriatim.core.ids import id_problem
from seriatim.core.tenants import EVERY_TENANT, is_infrastructure
from seriatim.core.times import format_us

PREFIX = "srt"
_ID_BYTES = 8
_SECRET_BYTES = 32
_PARTS = 3
# As they are made below: base64 has four characters for three bytes.
_SHAPE = re.compile(
    rf"{PREFIX}_[0-9a-f]{{{2 * _ID_BYTES}}}_[A-Za-z0-9_-]{{{-(-_SECRET_BYTES * 4 // 3)}}}"
)


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as operators see it: everything but its secret."""

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
    last_used_at: str | None = None  # to about a minute


class Tokens(Desk):
    """The tokens of one log."""

    def create(  # noqa: PLR0913 - what a token says
        self,
        *,
        subject: str | None,
        tenant_id: str,
        rights: Iterable[str],
        types: Iterable[str] = (),
        lasts_s: float | None = None,
        note: str = "",
    ) -> tuple[str, Token]:
        """Make a token for a service by its name, or for a tenant; the text is shown only now."""
        service = subject is not None
        named = tenant_id if subject is None else subject
        for what, value in (("tenant", tenant_id), ("service", named)):
            if problem := id_problem(value):
                raise InvalidArgument(f"{what} {problem}", details={"argument": what})
        if subject == ANONYMOUS:
            msg = f"{ANONYMOUS} is who calls without a token: take another name"
            raise InvalidArgument(msg, details={"argument": "service"})
        if not service and tenant_id == EVERY_TENANT:
            msg = "a tenant's token is for one tenant; for all of them name a service"
            raise InvalidArgument(msg, details={"argument": "tenant"})
        if lasts_s is not None and not 0 < lasts_s < 1e10:  # noqa: PLR2004 - three centuries
            msg = "a token lasts some seconds, or without an end"
            raise InvalidArgument(msg, details={"argument": "lasts"})
        allowed = check_rights(rights, service=service)
        if is_infrastructure(tenant_id) and not (service and "operate" in allowed):
            msg = f"{tenant_id} is reached by a service with the right operate alone"
            raise InvalidArgument(msg, details={"argument": "tenant"})
        scope = check_types(types, allowed)
        token_id = secrets.token_hex(_ID_BYTES)
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        self._run(
            "add_token",
            token_id=token_id,
            secret_hash=_hash(secret),
            subject=named,
            service=int(service),
            tenant_id=tenant_id,
            rights=",".join(sorted(allowed)),
            types=None if scope is None else msgspec.json.encode(scope).decode(),
            note=note,
            lasts_us=None if lasts_s is None else int(lasts_s * 1_000_000),
        )
        return f"{PREFIX}_{token_id}_{secret}", self.token(token_id)

    def token(self, token_id: str) -> Token:
        """Return one token."""
        found = self._look("token", token_id=token_id)
        if not found:
            raise NotFound("there is no token with that id", details={"token_id": token_id})
        return _token(found[0])

    def tokens(self) -> list[Token]:
        """Return all tokens, also those that ended."""
        return [_token(row) for row in self._look("tokens")]

    def any(self) -> bool:
        """Tell whether a token was ever made."""
        return bool(self._look("any_token"))

    def revoke(self, token_id: str) -> None:
        """End a token now."""
        if not self._run("revoke", token_id=token_id):
            raise NotFound("there is no such token to revoke", details={"token_id": token_id})

    def ended(self, since_s: float) -> list[str]:
        """Return the ids of tokens that ended not longer ago than this."""
        return [row[0] for row in self._look("ended_tokens", since_us=int(since_s * 1_000_000))]

    def mark_used(self, ago_s: Mapping[str, float]) -> None:
        """Keep how many seconds ago each token was used last."""
        with self._apart().transaction() as session:
            for token_id, seconds in ago_s.items():
                values = {"token_id": token_id, "ago_us": int(seconds * 1_000_000)}
                session.run(self._sql["mark_used"], values)

    def admit(self, text: str) -> tuple[Caller, int | None]:
        """Return who a token admits and, in microseconds, until when; refuse any other alike."""
        if not is_token(text):
            raise refused()
        _, token_id, secret = text.split("_", _PARTS - 1)
        found = self._look("token", token_id=token_id)
        kept = found[0][11] if found else _hash("")
        genuine = hmac.compare_digest(kept, _hash(secret))
        if not found or not genuine:
            raise refused()
        token, now = _token(found[0]), found[0][12]
        expires_us, revoked_us = found[0][8], found[0][9]
        if revoked_us is not None or (expires_us is not None and expires_us <= now):
            raise refused()
        caller = Caller(
            subject=token.subject,
            tenant_id=token.tenant_id,
            rights=check_rights(token.rights, service=token.service),
            types=None if token.types is None else tuple(token.types),
            service=token.service,
            token_id=token.token_id,
        )
        return caller, None if expires_us is None else expires_us - now


def is_token(text: str) -> bool:
    """Tell whether a text looks as tokens do."""
    return _SHAPE.fullmatch(text) is not None


def refused() -> Unauthorized:
    """Make the one answer to absent, malformed, unknown, revoked and expired tokens."""
    return Unauthorized("a valid token is needed: Authorization: Bearer …")


def _hash(secret: str) -> str:
    return sha256(secret.encode(errors="replace")).hexdigest()


def _token(row: tuple[Any, ...]) -> Token:
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
