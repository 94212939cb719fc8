"""The access store: tokens, quotas, stored responses and secrets in a database beside the log."""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from seriatim.access.jobs import JobStore
from seriatim.access.quotas import Quota, check_quota
from seriatim.access.rights import Caller, check_rights, check_types
from seriatim.access.stored_responses import (
    RESERVATION_S,
    IdempotentCommand,
    Reservation,
    ResponseAllowance,
    StoredResponse,
    is_abandoned,
    parse_stored_response,
)
from seriatim.access.tokens import (
    Token,
    check_holder,
    check_lifetime,
    check_reserved_tenant,
    format_token,
    hash_secret,
    invalid_token_error,
    new_secret,
    new_token_id,
    split_token,
    token_from_row,
)
from seriatim.core.errors import NotFound
from seriatim.store.engine import Engine, EnginePurpose, load_engine_statements

ACCESS_PURPOSE = EnginePurpose(
    label="the access store",
    target_option="--access",
    last_table="seriatim_token_uses",
    recreate_hint="open it again to create the missing tables",
)
_CREATE = (
    "create_tokens",
    "create_quotas",
    "create_responses",
    "create_response_age_index",
    "create_response_tenant_index",
    "create_secrets",
    "create_token_uses",
)
_MICROSECONDS = 1_000_000


class AccessStore:
    """The tokens, quotas and stored responses of one log; safe for use by several threads.

    Example:
        from seriatim.server import access_url, open_access

        with closing(open_access(access_url("sqlite:///app.db"))) as access:
            text, token = access.create(subject="billing", tenant_id="acme", rights=["append"])
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._second: Engine | None = None
        self._second_lock = threading.Lock()
        self._sql = load_engine_statements(__package__, engine)
        self._allowance = ResponseAllowance()
        if not engine.is_ready():
            engine.create_tables([self._sql[name] for name in _CREATE])

    def close(self) -> None:
        """Close the database connections.

        Example:
            access.close()
        """
        for engine in (self._engine, self._second):
            if engine is not None:
                engine.close()

    # -- tokens

    def create(
        self,
        *,
        subject: str | None,
        tenant_id: str,
        rights: Iterable[str],
        types: Iterable[str] = (),
        expires_in_s: float | None = None,
        note: str = "",
    ) -> tuple[str, Token]:
        """Create a token for a named service, or for a tenant.

        Args:
            subject: The name of the service; None makes a read-only token for the tenant.
            tenant_id: The tenant, or `*` for all tenants (services only).
            rights: Any of `append`, `read`, `operate` and `act_as`.
            types: Event types or patterns that the token is limited to; none means all.
            expires_in_s: Seconds until the token expires; None means that it does not expire.
            note: A remark for operators.

        Returns:
            The token's text, which is not stored and cannot be shown again, and its description.

        Raises:
            InvalidArgument: An argument is malformed, or the combination is not allowed.
            LimitExceeded: There are more types than a query filter may have.

        Example:
            text, token = access.create(
                subject="billing", tenant_id="acme", rights=["append"], types=["invoice.*"]
            )
        """
        service = subject is not None
        holder = check_holder(subject, tenant_id)
        check_lifetime(expires_in_s)
        allowed = check_rights(rights, service=service)
        check_reserved_tenant(tenant_id, allowed, service=service)
        scope = check_types(types, allowed)
        token_id, secret = new_token_id(), new_secret()
        self._run(
            "insert_token",
            token_id=token_id,
            secret_hash=hash_secret(secret),
            subject=holder,
            service=int(service),
            tenant_id=tenant_id,
            rights=",".join(sorted(allowed)),
            types=None if scope is None else msgspec.json.encode(scope).decode(),
            note=note,
            lifetime_us=None if expires_in_s is None else int(expires_in_s * _MICROSECONDS),
        )
        return format_token(token_id, secret), self.token(token_id)

    def token(self, token_id: str) -> Token:
        """Return one token; raises `NotFound` if there is none with this id.

        Example:
            text, token = access.create(subject="billing", tenant_id="acme", rights=["append"])
            print(access.token(token.token_id).rights)
        """
        rows = self._read("select_token", token_id=token_id)
        if not rows:
            # Without the value: it may be the text of a token, with its secret, instead of an id.
            msg = "there is no token with that id: seriatim token list prints all ids"
            raise NotFound(msg, details={"token_id": token_id})
        return token_from_row(rows[0])

    def tokens(self) -> list[Token]:
        """Return all tokens, including expired and revoked ones.

        Example:
            for token in access.tokens():
                print(token.token_id, token.subject, token.tenant_id, token.rights)
        """
        return [token_from_row(row) for row in self._read("list_tokens")]

    def tokens_after(self, token_id: str | None, tenant_id: str | None, limit: int) -> list[Token]:
        """Return tokens in the order of their creation.

        Args:
            token_id: The last token of the previous page; None for the first page.
            tenant_id: Only tokens of this tenant, or of `*`; None for all tokens.
            limit: The maximum number of tokens.
        """
        values = {"after": token_id, "tenant_id": tenant_id, "limit": limit}
        return [token_from_row(row) for row in self._read("list_tokens_after", **values)]

    def has_tokens(self) -> bool:
        """Return whether any token was ever created."""
        return bool(self._read("find_any_token"))

    def revoke(self, token_id: str) -> None:
        """Revoke a token; raises `NotFound` if it does not exist or is revoked already.

        Example:
            text, token = access.create(subject="billing", tenant_id="acme", rights=["append"])
            access.revoke(token.token_id)
        """
        if not self._run("revoke_token", token_id=token_id):
            msg = (
                "there is no token with that id, or it is revoked already: seriatim token list "
                "prints all tokens"
            )
            raise NotFound(msg, details={"token_id": token_id})

    def find_ended_tokens(self, since_s: float) -> list[str]:
        """Return the ids of tokens that expired or were revoked in the last `since_s` seconds."""
        return [
            row[0] for row in self._read("list_ended_tokens", since_us=int(since_s * _MICROSECONDS))
        ]

    def mark_used(self, ago_s: Mapping[str, float]) -> None:
        """Store when tokens were last used, given as seconds ago by token id."""
        with self._background().transaction() as session:
            for token_id, seconds in ago_s.items():
                values = {"token_id": token_id, "ago_us": int(seconds * _MICROSECONDS)}
                session.run(self._sql["update_token_use"], values)

    def authenticate(self, text: str) -> tuple[Caller, int | None]:
        """Authenticate a token.

        Returns:
            The caller, and the microseconds until the token expires (None if it does not).

        Raises:
            Unauthorized: The token is malformed, unknown, revoked or expired. The error is the
                same in all four cases.
        """
        parts = split_token(text)
        if parts is None:
            raise invalid_token_error()
        token_id, secret = parts
        rows = self._read("select_token", token_id=token_id)
        # An unknown id costs the same comparison, so response times do not reveal which ids exist.
        stored_hash = rows[0][11] if rows else hash_secret("")
        genuine = hmac.compare_digest(stored_hash, hash_secret(secret))
        if not rows or not genuine:
            raise invalid_token_error()
        return _caller_from_row(rows[0])

    def authenticate_id(self, token_id: str) -> tuple[Caller, int | None]:
        """Return the caller of a token whose holder has proved its secret before.

        For sessions, which hold the id of the token that they were opened with.

        Returns:
            The caller, and the microseconds until the token expires (None if it does not).

        Raises:
            Unauthorized: The token is unknown, revoked or expired.
        """
        rows = self._read("select_token", token_id=token_id)
        if not rows:
            raise invalid_token_error()
        return _caller_from_row(rows[0])

    # -- quotas

    def quotas(self) -> list[Quota]:
        """Return the quotas of individual tenants, by tenant.

        Example:
            for quota in access.quotas():
                print(quota.tenant_id, quota.events_per_s, quota.bytes_per_s)
        """
        return [
            Quota(tenant_id=tenant_id, events_per_s=events, bytes_per_s=size)
            for tenant_id, events, size in self._read("list_quotas")
        ]

    def set_quota(self, quota: Quota) -> None:
        """Set the quota of a tenant; raises `InvalidArgument` for a negative rate.

        Example:
            from seriatim.access.quotas import Quota

            access.set_quota(Quota(tenant_id="acme", events_per_s=100))
        """
        check_quota(quota)
        self._run("set_quota", **msgspec.structs.asdict(quota))

    def remove_quota(self, tenant_id: str) -> bool:
        """Apply the default quota to a tenant again; returns whether it had its own.

        Example:
            had_its_own = access.remove_quota("acme")
        """
        return bool(self._run("delete_quota", tenant_id=tenant_id))

    # -- stored responses

    def reserve(
        self, command: IdempotentCommand, at_most: int
    ) -> Reservation | StoredResponse | None:
        """Reserve the right to run a command, or return the response of an earlier run.

        Args:
            command: The command; duplicates have the same key.
            at_most: How many responses the tenant may have stored.

        Returns:
            A reservation if the caller is to run the command, the stored response if it has run,
            or None while a duplicate is running. Nothing is written while a duplicate runs.

        Raises:
            IdempotencyKeyReuse: The key was used for another request.
            LimitExceeded: The tenant has `at_most` stored responses.
        """
        rows = self._read("select_response", command_key=command.key)
        if rows and not is_abandoned(rows[0]):
            return parse_stored_response(command, rows[0])
        # An abandoned run has its row, which was counted when it was reserved.
        if not rows:
            self._allowance.take(command.tenant_id, at_most, self._count_responses)
        owner = secrets.token_hex(8)
        reserved = self._run_in_background(
            "reserve_response",
            command_key=command.key,
            tenant_id=command.tenant_id,
            request_hash=command.request_hash,
            owner=owner,
            reservation_us=int(RESERVATION_S * _MICROSECONDS),
        )
        if reserved:
            return Reservation(command.key, owner)
        rows = self._read("select_response", command_key=command.key)
        # No row: the other run has just released its reservation, so the next attempt may run.
        return parse_stored_response(command, rows[0]) if rows else None

    def store_response(self, reservation: Reservation, response: StoredResponse) -> None:
        """Store the response of a command for its duplicates."""
        self._run_in_background(
            "update_response",
            command_key=reservation.command_key,
            owner=reservation.owner,
            status=response.status,
            body=response.body,
        )

    def release_reservation(self, reservation: Reservation) -> None:
        """Release a reservation without a response, so that a duplicate may run."""
        self._run_in_background(
            "delete_reservation", command_key=reservation.command_key, owner=reservation.owner
        )

    def purge_responses(self, older_than_s: float) -> int:
        """Delete responses older than `older_than_s` seconds; returns how many were deleted."""
        older_us = int(older_than_s * _MICROSECONDS)
        return len(self._run_in_background("delete_old_responses", older_us=older_us))

    def _count_responses(self, tenant_id: str, at_most: int) -> int:
        with self._background().transaction(write=False) as session:
            values = {"tenant_id": tenant_id, "at_most": at_most}
            return int(session.run(self._sql["count_responses"], values)[0][0])

    # -- jobs

    def open_jobs(self) -> JobStore:
        """Open the jobs in the same database, on a connection that the caller closes."""
        return JobStore(self._engine.open_another())

    # -- secrets

    def secret(self, name: str) -> bytes:
        """Return a named secret of this log, creating it once for all service processes."""
        if not (rows := self._read("select_secret", name=name)):
            # Another process may insert it first: the statement then does nothing.
            self._run("insert_secret", name=name, value=secrets.token_hex(32))
            rows = self._read("select_secret", name=name)
        return bytes.fromhex(rows[0][0])

    # -- statements

    def _run(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """Run a statement that writes."""
        with self._engine.autocommit() as session:
            return session.run(self._sql[statement], values)

    def _read(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """Run a statement that only reads."""
        with self._engine.transaction(write=False) as session:
            return session.run(self._sql[statement], values)

    def _run_in_background(self, statement: str, **values: object) -> list[tuple[Any, ...]]:
        """Run a statement that writes on the second connection."""
        with self._background().autocommit() as session:
            return session.run(self._sql[statement], values)

    def _background(self) -> Engine:
        """Return the second connection, opened on first use.

        Slow statements run on it, so that authentication, on the first one, never waits for them.
        """
        with self._second_lock:
            if self._second is None:
                self._second = self._engine.open_another()
            return self._second


def _caller_from_row(row: tuple[Any, ...]) -> tuple[Caller, int | None]:
    """Return the caller of a token, and the microseconds until it expires."""
    token, now = token_from_row(row), row[12]
    expires_us, revoked_us = row[8], row[9]
    if revoked_us is not None or (expires_us is not None and expires_us <= now):
        raise invalid_token_error()
    caller = Caller(
        subject=token.subject,
        tenant_id=token.tenant_id,
        rights=check_rights(token.rights, service=token.service),
        types=None if token.types is None else tuple(token.types),
        service=token.service,
        token_id=token.token_id,
    )
    return caller, None if expires_us is None else expires_us - now
