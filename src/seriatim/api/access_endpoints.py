"""Endpoints for operators of all tenants: tokens and quotas."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import msgspec

from seriatim.access.quotas import Quota
from seriatim.access.rights import Right, check_one_tenant
from seriatim.access.tokens import Token, describe_token
from seriatim.api.http import HttpRequest, page_bound
from seriatim.api.operator_endpoints import record_request
from seriatim.api.service import Service
from seriatim.core.column_types import stored_text_problem
from seriatim.core.errors import Forbidden, NotFound
from seriatim.log.arguments import check_name, invalid_argument
from seriatim.log.operator_journal import check_reason
from seriatim.wire.messages import CountResponse

_PAGE_MAX = 1000
_NOTE_MAX = 500  # characters
_TYPES_MAX = 64


class TokenParams(msgspec.Struct, frozen=True):
    """Tokens in the order of their creation: those of one tenant, those after a token id."""

    tenant_id: str | None = None
    after: str | None = None
    limit: Annotated[int, page_bound(_PAGE_MAX)] = 100


class TokensResponse(msgspec.Struct, frozen=True):
    """Tokens without their secrets; the next page has `after` = the last token id."""

    tokens: list[Token]


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    """A token to create, for a named service, or without `subject` for a tenant.

    `tenant_id` is a tenant, or `*` for all; `expires_in_s` null means that it does not expire.
    """

    tenant_id: str
    rights: list[Right]
    subject: str | None = None
    types: list[str] = []
    expires_in_s: float | None = None
    note: str = ""
    reason: str = ""


class CreatedToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text of a new token, which cannot be displayed again, and its description."""

    token: str
    description: Token
    recorded: bool = True


class RevokeBody(msgspec.Struct, forbid_unknown_fields=True):
    """The id of a token to revoke, and the reason."""

    token_id: str
    reason: str = ""


class QuotaParams(msgspec.Struct, frozen=True):
    """Quotas in the order of their tenants: those after a tenant."""

    after: str | None = None
    limit: Annotated[int, page_bound(_PAGE_MAX)] = 100


class QuotaUse(msgspec.Struct, frozen=True, kw_only=True):
    """The quota of a tenant, and the part of it that is left in this process.

    `events_left` and `bytes_left` are null without a limit, and negative while a large append is
    being worked off. Each process of the service grants an equal part of a quota.
    """

    tenant_id: str
    events_per_s: float
    bytes_per_s: float
    events_left: float | None
    bytes_left: float | None


class QuotasResponse(msgspec.Struct, frozen=True):
    """The quota of tenants without their own, and those of individual tenants."""

    default: Quota
    quotas: list[QuotaUse]


class QuotaBody(msgspec.Struct, forbid_unknown_fields=True):
    """The quota of a tenant, where 0 sets no limit, and the reason."""

    tenant_id: str
    events_per_s: float = 0.0
    bytes_per_s: float = 0.0
    reason: str = ""


class QuotaRemovalBody(msgspec.Struct, forbid_unknown_fields=True):
    """A tenant whose own quota is to be removed, and the reason."""

    tenant_id: str
    reason: str = ""


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= _PAGE_MAX:
        raise invalid_argument("limit", f"must be from 1 to {_PAGE_MAX}")


async def list_tokens(
    service: Service, request: HttpRequest, params: TokenParams
) -> TokensResponse:
    """List tokens with their last use, expired and revoked ones too."""
    del request
    _check_limit(params.limit)
    after = None if params.after is None else check_name("after", params.after)
    tenant_id = None if params.tenant_id is None else check_name("tenant_id", params.tenant_id)
    read = service.access.tokens_after
    return TokensResponse(await service.run_access(read, after, tenant_id, params.limit))


async def create_token(service: Service, request: HttpRequest, body: TokenBody) -> CreatedToken:
    """Create a token and return its text, which is not stored.

    The new token can have only rights that the caller's token has. A repeated request creates
    another token.
    """
    check_reason(body.reason)
    if missing := sorted(set(body.rights) - request.caller.rights):
        msg = f"this token lacks the right {missing[0]}, so it cannot grant it"
        raise Forbidden(msg, details={"right": missing[0]})
    if len(body.types) > _TYPES_MAX:
        raise invalid_argument("types", f"must not have more than {_TYPES_MAX} entries")
    if len(body.note) > _NOTE_MAX or stored_text_problem(body.note) is not None:
        raise invalid_argument("note", f"must be a text of at most {_NOTE_MAX} characters")

    def create() -> CreatedToken:
        secret, token = service.access.create(
            subject=body.subject,
            tenant_id=body.tenant_id,
            rights=body.rights,
            types=body.types,
            expires_in_s=body.expires_in_s,
            note=body.note,
        )
        recorded = _record(service, request, "token_created", token, body.reason)
        return CreatedToken(secret, token, recorded)

    return await service.run(create)


async def revoke_token(service: Service, request: HttpRequest, body: RevokeBody) -> CountResponse:
    """Revoke a token; within two seconds no process accepts it."""
    check_reason(body.reason)
    token_id = check_name("token_id", body.token_id)

    def revoke() -> CountResponse:
        service.access.revoke(token_id)
        token = service.access.token(token_id)
        return CountResponse(1, _record(service, request, "token_revoked", token, body.reason))

    return await service.run(revoke)


def _record(
    service: Service,
    request: HttpRequest,
    action: Literal["token_created", "token_revoked"],
    token: Token,
    reason: str,
) -> bool:
    target = describe_token(token)
    return record_request(
        service, request, action, target, reason=reason, tenant_id=token.tenant_id
    )


async def list_quotas(
    service: Service, request: HttpRequest, params: QuotaParams
) -> QuotasResponse:
    """List the quotas of tenants, with the part of each that is left in this process."""
    del request
    _check_limit(params.limit)
    after = "" if params.after is None else check_name("after", params.after)
    quotas = await service.run_access(service.access.quotas)
    page = sorted(
        (quota for quota in quotas if quota.tenant_id > after), key=lambda quota: quota.tenant_id
    )
    return QuotasResponse(
        service.meter.default, [_describe_use(service, quota) for quota in page[: params.limit]]
    )


def _describe_use(service: Service, quota: Quota) -> QuotaUse:
    events_left, bytes_left = service.meter.left(quota, time.monotonic())
    return QuotaUse(
        tenant_id=quota.tenant_id,
        events_per_s=quota.events_per_s,
        bytes_per_s=quota.bytes_per_s,
        events_left=events_left,
        bytes_left=bytes_left,
    )


async def set_quota(service: Service, request: HttpRequest, body: QuotaBody) -> CountResponse:
    """Set the quota of a tenant; all processes apply it within two seconds."""
    check_reason(body.reason)
    quota = Quota(
        tenant_id=body.tenant_id, events_per_s=body.events_per_s, bytes_per_s=body.bytes_per_s
    )

    def store() -> CountResponse:
        service.access.set_quota(quota)
        target = {"events_per_s": quota.events_per_s, "bytes_per_s": quota.bytes_per_s}
        recorded = record_request(
            service, request, "quota_set", target, reason=body.reason, tenant_id=quota.tenant_id
        )
        return CountResponse(1, recorded)

    return await service.run(store)


async def remove_quota(
    service: Service, request: HttpRequest, body: QuotaRemovalBody
) -> CountResponse:
    """Remove the quota of a tenant, so that the general quota applies to it again."""
    check_reason(body.reason)
    check_one_tenant(body.tenant_id)

    def remove() -> CountResponse:
        if not service.access.remove_quota(body.tenant_id):
            msg = "this tenant has no quota of its own"
            raise NotFound(msg, details={"tenant_id": body.tenant_id})
        recorded = record_request(
            service, request, "quota_removed", {}, reason=body.reason, tenant_id=body.tenant_id
        )
        return CountResponse(1, recorded)

    return await service.run(remove)
