"""Endpoints for consumers: cursors, leases, subscriptions and projections."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import msgspec

from seriatim.api.http import HttpRequest, page_bound
from seriatim.api.operator_endpoints import make_operator
from seriatim.api.service import Service
from seriatim.core.error_summary import sanitize_reason
from seriatim.core.errors import Conflict, Forbidden, LogIdentityChanged, NotFound
from seriatim.core.limits import limit_error
from seriatim.core.operation import Operator
from seriatim.core.query import Query
from seriatim.core.tenants import ALL_TENANTS
from seriatim.log.arguments import check_name, check_position, invalid_argument
from seriatim.log.operator_journal import check_reason
from seriatim.log.projections import Projections
from seriatim.log.subscriptions import read_statuses
from seriatim.store.port import (
    BatchAttempt,
    Cursor,
    Lease,
    SkippedBatch,
    SubscriptionStatus,
    make_lease_name,
)
from seriatim.store.readmodel.port import Progress, ProjectionStanding
from seriatim.wire.messages import (
    AttemptBody,
    CountResponse,
    CursorBody,
    CursorResponse,
    CursorsResponse,
    DoneResponse,
    FailureBody,
    FailuresResponse,
    LeaseBody,
    LeaseResponse,
    ProjectionBody,
    ProjectionRetryBody,
    ProjectionSkipBody,
    ProjectionsResponse,
    ReleaseBody,
    RenewBody,
    RenewResponse,
    SkippedBatchesResponse,
    SkippedBody,
    SubscriptionResetBody,
    SubscriptionRetryBody,
    SubscriptionSkipBody,
    SubscriptionsResponse,
)

_LEASE_MAX_S = 86_400.0
_EPOCH_MAX = 2**31 - 1
_PAGE = 100
FAILURES_MAX = 1000  # of one response


class CursorParams(msgspec.Struct, frozen=True):
    """The cursors of a purpose, by name: those after a name, or one."""

    purpose: Literal["subscription", "projection"]
    name: str | None = None
    after: str | None = None
    limit: Annotated[int, page_bound(_PAGE)] = _PAGE


async def list_cursors(
    service: Service, request: HttpRequest, params: CursorParams
) -> CursorsResponse:
    """List the cursors of consumers; the next page has `after` = the last name."""
    if not 1 <= params.limit <= _PAGE:
        raise invalid_argument("limit", f"must be from 1 to {_PAGE}")
    after = "" if params.after is None else check_name("after", params.after)
    store, tenant_id, purpose = service.store, request.tenant_id, params.purpose

    def read_cursors() -> list[Cursor]:
        if params.name is None:
            cursors = store.cursors_after(tenant_id, purpose, after, params.limit)
        else:
            cursor = store.cursor(tenant_id, purpose, check_name("name", params.name))
            cursors = [] if cursor is None else [cursor]
        return [_redact(service, request, cursor) for cursor in cursors]

    return CursorsResponse(await service.run_for_tenant(request.tenant_id, read_cursors))


async def put_cursor(service: Service, request: HttpRequest, body: CursorBody) -> CursorResponse:
    """Create or move a cursor; backwards only with `reset`, and never with a lost lease."""
    check_name("name", body.name)
    check_position("position", body.position)
    _check_cursor(body, service.settings.cursor_query_bytes)
    lease = None if body.lease is None else _check_lease(request, body.lease)
    store, at_most = service.store, service.settings.tenant_cursors

    def write() -> Cursor:
        cursor = Cursor(
            tenant_id=request.tenant_id,
            purpose=body.purpose,
            name=body.name,
            position=body.position,
            log_id=body.log_id,
            epoch=body.epoch,
            last_event_id=_resolve_event_id(service, request, body),
            query=body.query,
        )
        if not store.can_add_cursor(request.tenant_id, body.purpose, body.name, at_most):
            raise limit_error("tenant_cursors", at_most, at_most + 1)
        if body.only_new:
            cursor = store.add_cursor(cursor)
        elif body.skipped is not None:
            skipped = _make_skipped_batch(body, body.skipped)
            store.skip_batch(cursor, skipped, after=body.skipped.after, lease=lease)
        else:
            store.put_cursor(cursor, lease=lease, reset=body.reset)
        return _redact(service, request, cursor)

    return CursorResponse(await service.run_for_tenant(request.tenant_id, write))


def _check_cursor(body: CursorBody, query_bytes: int) -> None:
    """Validate the fields of a cursor: log ids are UUIDs, epochs start at 1."""
    try:
        uuid.UUID(body.log_id)
    except ValueError:
        raise invalid_argument("log_id", "must be the id of a log, a UUID") from None
    if not 1 <= body.epoch <= _EPOCH_MAX:
        raise invalid_argument("epoch", f"must be from 1 to {_EPOCH_MAX}")
    if body.last_event_id:
        check_name("last_event_id", body.last_event_id)
    if (size := len(body.query.encode())) > query_bytes:
        raise limit_error("cursor_query_bytes", query_bytes, size)
    if not body.query.isprintable():
        raise invalid_argument("query", "must be printable text")
    if body.skipped is not None:
        _check_owner(body.lease, body.name)
        _check_batch(body.skipped.first_position, body.position)
        _check_attempts(body.skipped.attempts, 0)
        check_position("skipped.after", body.skipped.after)
        if body.purpose != "subscription" or body.reset or body.only_new:
            problem = "is for the cursor of a subscription that moves on"
            raise invalid_argument("skipped", problem)


def _check_owner(lease: Lease | None, name: str) -> None:
    """Check that a lease is the one of a subscription."""
    if lease is None or lease.name != make_lease_name(name):
        raise invalid_argument("lease", "is not the lease of this subscription")


def _check_batch(first: int, last: int) -> None:
    check_position("first_position", first)
    if not 1 <= first <= check_position("last_position", last):
        raise invalid_argument("first_position", "must be from 1 to the last position")


def _check_attempts(attempts: int, failures: int) -> None:
    if not 1 <= attempts <= _EPOCH_MAX:
        raise invalid_argument("attempts", "must be a whole number from 1")
    if not 0 <= failures <= attempts:
        raise invalid_argument("failures", "must be from 0 to the number of attempts")


def _make_skipped_batch(body: CursorBody, skipped: SkippedBody) -> SkippedBatch:
    return SkippedBatch(
        first_position=skipped.first_position,
        last_position=body.position,
        attempts=skipped.attempts,
        error=sanitize_reason(skipped.error),
    )


def _resolve_event_id(service: Service, request: HttpRequest, body: CursorBody) -> str:
    """Return the id of the event that `last_event_id` stands for at the cursor's position.

    Only a value that the service returned for that position is accepted. A caller that could
    store any other id, and read it back as an opaque value, could find out whether an id that
    it has guessed belongs to another tenant.

    Raises:
        InvalidArgument: It is not the value of the event at that position.
    """
    body_event_id, position, tenant_id = body.last_event_id, body.position, request.tenant_id
    if not body_event_id:
        return ""
    event_id = service.store.event_id_at(position)
    if event_id is not None and body_event_id == service.opaque_event_id(
        event_id, tenant_id, position
    ):
        return event_id
    if request.caller.tenant_id == ALL_TENANTS or _can_see(
        service, request, body_event_id, position
    ):
        return body_event_id
    msg = "is not that of the event at this position: the log may have been restored or replaced"
    raise invalid_argument("last_event_id", msg)


def _redact(service: Service, request: HttpRequest, cursor: Cursor) -> Cursor:
    """Replace the id of an event that the caller may not see by an opaque value."""
    event_id, position = cursor.last_event_id, cursor.position
    if not event_id or request.caller.tenant_id == ALL_TENANTS:
        return cursor
    if _can_see(service, request, event_id, position):
        return cursor
    opaque = service.opaque_event_id(event_id, request.tenant_id, position)
    return msgspec.structs.replace(cursor, last_event_id=opaque)


def _can_see(service: Service, request: HttpRequest, event_id: str, position: int) -> bool:
    """Return whether an event is the tenant's own, at this position, and readable."""
    record = service.store.event(request.tenant_id, event_id)
    return (
        record is not None
        and record.position == position
        and request.caller.can_read(record.event_type)
    )


class SubscriptionParams(msgspec.Struct, frozen=True):
    """Durable subscriptions with a name after this one, at most `limit`."""

    after: str | None = None
    limit: Annotated[int, page_bound(_PAGE)] = _PAGE


async def list_subscriptions(
    service: Service, request: HttpRequest, params: SubscriptionParams
) -> SubscriptionsResponse:
    """List durable subscriptions by name; the next page has `after` = the last name."""
    if not 1 <= params.limit <= _PAGE:
        raise invalid_argument("limit", f"must be from 1 to {_PAGE}")
    after = "" if params.after is None else check_name("after", params.after)
    store, tenant_id = service.store, request.tenant_id
    return SubscriptionsResponse(
        await service.run_for_tenant(
            tenant_id, read_statuses, store, tenant_id, after, params.limit
        )
    )


class SubscriptionNameParams(msgspec.Struct, frozen=True):
    """One subscription."""

    name: str


class SkippedBatchParams(msgspec.Struct, frozen=True):
    """Batches that a subscription has skipped after a position, at most `limit`."""

    name: str
    after: int = 0
    limit: Annotated[int, page_bound(_PAGE)] = _PAGE


async def get_subscription(
    service: Service, request: HttpRequest, params: SubscriptionNameParams
) -> SubscriptionStatus:
    """Return one durable subscription: status, owner, cursor, attempts, lag and last error."""
    get = service.view(request.tenant_id).subscriptions.get
    return await service.run_for_tenant(request.tenant_id, get, params.name)


async def list_skipped_batches(
    service: Service, request: HttpRequest, params: SkippedBatchParams
) -> SkippedBatchesResponse:
    """List batches that a subscription has passed without handling them.

    They are in order of position; the next page has `after` = the last `first_position`.
    """
    if not 1 <= params.limit <= _PAGE:
        raise invalid_argument("limit", f"must be from 1 to {_PAGE}")
    check_position("after", params.after)
    list_page = service.view(request.tenant_id).subscriptions.list_skipped
    page = partial(list_page, params.name, after=params.after, limit=params.limit)
    return SkippedBatchesResponse(await service.run_for_tenant(request.tenant_id, page))


async def put_attempt(service: Service, request: HttpRequest, body: AttemptBody) -> DoneResponse:
    """Store the attempts at the next batch of a subscription whose lease the caller holds."""
    check_name("name", body.name)
    lease = _check_lease(request, body.lease)
    _check_owner(lease, body.name)
    _check_batch(body.first_position, body.last_position)
    _check_attempts(body.attempts, body.failures)
    attempt = BatchAttempt(
        first_position=body.first_position,
        last_position=body.last_position,
        attempts=body.attempts,
        failures=body.failures,
    )
    error = None if body.error is None else sanitize_reason(body.error)
    put = partial(service.store.put_attempt, error=error, park=body.park)
    await service.run_for_tenant(request.tenant_id, put, lease, body.name, attempt)
    return DoneResponse()


async def retry_subscription(
    service: Service, request: HttpRequest, body: SubscriptionRetryBody
) -> CountResponse:
    """Let a parked subscription attempt its batch again, with as many attempts as before."""
    retry = service.view(request.tenant_id).subscriptions.retry
    act = partial(retry, reason=body.reason, operator=make_operator(request))
    return CountResponse(1, await service.run_for_tenant(request.tenant_id, act, body.name))


async def skip_subscription_batch(
    service: Service, request: HttpRequest, body: SubscriptionSkipBody
) -> CountResponse:
    """Move the cursor of a subscription past its failing batch, which is recorded as skipped.

    `position` is the first position of that batch. The request is refused with `conflict` if the
    subscription fails at another batch, or at none. Its owner loses the lease.
    """
    skip = service.view(request.tenant_id).subscriptions.skip
    act = partial(skip, reason=body.reason, operator=make_operator(request))
    run = service.run_for_tenant(request.tenant_id, act, body.name, body.position)
    return CountResponse(1, await run)


async def reset_subscription(
    service: Service, request: HttpRequest, body: SubscriptionResetBody
) -> CountResponse:
    """Set the cursor of a subscription to any position up to the head; its owner continues there.

    Without a `query`, the subscription keeps its own. A subscription that does not exist is created
    if a `query` is given.
    """
    at_most = service.settings.tenant_cursors
    store, tenant_id = service.store, request.tenant_id
    query = None if body.query is None else Query.from_mapping(body.query)
    subscriptions, operator = service.view(tenant_id).subscriptions, make_operator(request)

    def reset() -> CountResponse:
        check_name("name", body.name)
        if not store.can_add_cursor(tenant_id, "subscription", body.name, at_most):
            raise limit_error("tenant_cursors", at_most, at_most + 1)
        recorded = subscriptions.reset(
            body.name, body.position, query, reason=body.reason, operator=operator
        )
        return CountResponse(1, recorded)

    return await service.run_for_tenant(tenant_id, reset)


async def record_failure(service: Service, request: HttpRequest, body: FailureBody) -> DoneResponse:
    """Store the last error of a subscription whose lease the caller holds."""
    check_name("name", body.name)
    if not 1 <= body.failures <= _EPOCH_MAX:
        raise invalid_argument("failures", "must be a whole number from 1")
    lease = _check_lease(request, body.lease)
    _check_owner(lease, body.name)
    record, error = service.store.record_failure, sanitize_reason(body.error)
    await service.run_for_tenant(request.tenant_id, record, lease, body.name, body.failures, error)
    return DoneResponse()


async def claim_lease(service: Service, request: HttpRequest, body: LeaseBody) -> LeaseResponse:
    """Claim a named lease for some seconds."""
    for name in ("name", "owner"):
        check_name(name, getattr(body, name))
    _check_seconds(body.seconds)
    store, tenant_id, at_most = service.store, request.tenant_id, service.settings.tenant_leases

    def claim() -> Lease | None:
        if not store.reserve_lease_slot(tenant_id, body.name, at_most):
            raise limit_error("tenant_leases", at_most, at_most + 1)
        return store.claim_lease(tenant_id, body.name, body.owner, body.seconds)

    return LeaseResponse(await service.run_for_tenant(tenant_id, claim))


async def renew_lease(service: Service, request: HttpRequest, body: RenewBody) -> RenewResponse:
    """Renew a lease that the caller still holds."""
    _check_seconds(body.seconds)
    lease = _check_lease(request, body.lease)
    renew = service.store.renew_lease
    return RenewResponse(await service.run_for_tenant(lease.tenant_id, renew, lease, body.seconds))


async def release_lease(service: Service, request: HttpRequest, body: ReleaseBody) -> DoneResponse:
    """Release a lease."""
    lease = _check_lease(request, body.lease)
    await service.run_for_tenant(lease.tenant_id, service.store.release_lease, lease)
    return DoneResponse()


def _check_lease(request: HttpRequest, lease: Lease) -> Lease:
    # A lease comes back from its client, so its fields are not trusted.
    check_position("lease.token", lease.token)
    if lease.tenant_id != request.tenant_id:
        raise Forbidden("this lease belongs to another tenant")
    return lease


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds <= _LEASE_MAX_S:
        raise invalid_argument("seconds", f"must be above 0 and at most {_LEASE_MAX_S:g}")


# -- projections


class ProjectionParams(msgspec.Struct, frozen=True):
    """All projections, or one by name."""

    name: str | None = None


class ProjectionWaitParams(msgspec.Struct, frozen=True):
    """A projection and the position that it must reach; with 0 seconds, at once."""

    name: str
    position: int
    timeout_s: float = 10.0


class ProjectionFailureParams(msgspec.Struct, frozen=True):
    """Failures of a projection after a position, at most `limit`."""

    name: str
    after: int = 0
    limit: Annotated[int, page_bound(FAILURES_MAX)] = FAILURES_MAX


async def list_projections(
    service: Service, request: HttpRequest, params: ProjectionParams
) -> ProjectionsResponse:
    """List the projections next to the log, with their cursors and failures."""
    projections, tenant_id = service.view(request.tenant_id).projections, request.tenant_id

    def read_standings() -> list[ProjectionStanding]:
        standings = [
            standing for standing in projections.status() if params.name in (None, standing.name)
        ]
        confined = [_confine_standing(projections, standing, tenant_id) for standing in standings]
        return [standing for standing in confined if standing is not None]

    return ProjectionsResponse(await service.run_for_tenant(tenant_id, read_standings))


def _confine_standing(
    projections: Projections, standing: ProjectionStanding, tenant_id: str
) -> ProjectionStanding | None:
    """Count only failures of the tenant; return None for a projection of another tenant."""
    try:
        counts = projections.count_failures(standing.name, tenant_id)
    except Conflict:
        return None
    except LogIdentityChanged:
        return standing  # it belongs to an earlier log and must be rebuilt, as its status reports
    return msgspec.structs.replace(standing, failures=counts.stored)


def _projection_not_found(name: str) -> NotFound:
    return NotFound("there is no such projection", details={"projection": name})


async def wait_for_projection(
    service: Service, request: HttpRequest, params: ProjectionWaitParams
) -> Progress:
    """Wait until a projection has processed a position; with 0 seconds, fail unless it has."""
    projections = service.aio(request.tenant_id).projections
    if not 0 <= params.timeout_s <= service.settings.wait_max_s:
        raise invalid_argument("timeout_s", f"must be from 0 to {service.settings.wait_max_s:g}")
    try:
        if params.timeout_s:
            wait = projections.wait_for(params.name, params.position, params.timeout_s)
            progress = await service.hub.run_until_stopped(wait)
        else:
            progress = await projections.demand(params.name, params.position)
    except (Conflict, NotFound):  # a projection of another tenant is reported as missing
        raise _projection_not_found(params.name) from None
    # The declaration is internal, and the event may belong to another tenant.
    return msgspec.structs.replace(progress, declaration="", last_event_id="")


async def list_projection_failures(
    service: Service, request: HttpRequest, params: ProjectionFailureParams
) -> FailuresResponse:
    """List the events that a projection could not process, with their resolutions.

    They are in order of position; the next page has `after` = the last position.
    """
    if not 1 <= params.limit <= FAILURES_MAX:
        raise invalid_argument("limit", f"must be from 1 to {FAILURES_MAX}")
    check_position("after", params.after)
    projections, tenant_id = service.view(request.tenant_id).projections, request.tenant_id

    def read_failures() -> FailuresResponse:
        counts = projections.count_failures(params.name, tenant_id)
        failures = projections.list_failures(
            params.name, tenant_id, after=params.after, limit=params.limit
        )
        return FailuresResponse(failures, counts.stored, counts.unresolved)

    try:
        return await service.run_for_tenant(tenant_id, read_failures)
    except (Conflict, NotFound):
        raise _projection_not_found(params.name) from None


async def pause_projection(
    service: Service, request: HttpRequest, body: ProjectionBody
) -> CountResponse:
    """Stop a projection at its current position until it is resumed."""
    return await _operate(
        service,
        request,
        body.name,
        lambda projections, operator: CountResponse(
            1, projections.pause(body.name, reason=body.reason, operator=operator)
        ),
    )


async def resume_projection(
    service: Service, request: HttpRequest, body: ProjectionBody
) -> CountResponse:
    """Resume a paused projection."""
    return await _operate(
        service,
        request,
        body.name,
        lambda projections, operator: CountResponse(
            1, projections.resume(body.name, reason=body.reason, operator=operator)
        ),
    )


async def retry_projection_failures(
    service: Service, request: HttpRequest, body: ProjectionRetryBody
) -> CountResponse:
    """Retry the failure at a position, or all failures, in the current or the next run.

    Without a position, `expected_count` and `reason` are required, and a request is refused with
    `conflict` if there are more or fewer failures.
    """
    if body.position is None:
        check_reason(body.reason, required=True)
        if body.expected_count is None:
            raise invalid_argument("expected_count", "is required without a position")
    else:
        check_position("position", body.position)

    def retry(projections: Projections, operator: Operator) -> CountResponse:
        count, recorded = projections.retry(
            body.name,
            body.position,
            expected_count=body.expected_count,
            reason=body.reason,
            operator=operator,
        )
        return CountResponse(count, recorded)

    return await _operate(service, request, body.name, retry)


async def skip_projection_failure(
    service: Service, request: HttpRequest, body: ProjectionSkipBody
) -> CountResponse:
    """Skip a failed event, now and in every rebuild; its key continues after it."""
    check_position("position", body.position)
    return await _operate(
        service,
        request,
        body.name,
        lambda projections, operator: CountResponse(
            1, projections.skip(body.name, body.position, reason=body.reason, operator=operator)
        ),
    )


async def _operate(
    service: Service,
    request: HttpRequest,
    name: str,
    operation: Callable[[Projections, Operator], CountResponse],
) -> CountResponse:
    """Act on a projection of the tenant; one of another tenant is reported as missing."""
    tenant_id, operator = request.tenant_id, make_operator(request)

    def run() -> CountResponse:
        projections = service.view(tenant_id).projections
        try:
            projections.find(name)
        except (Conflict, NotFound):
            raise _projection_not_found(name) from None
        return operation(projections, operator)

    return await service.run_for_tenant(tenant_id, run)
