"""All routes as data: parameters, body, response, and the right that each needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from seriatim.access.rights import Right
from seriatim.api import (
    append_endpoints,
    consumer_endpoints,
    operator_endpoints,
    read_endpoints,
    tail_endpoints,
)
from seriatim.store.readmodel.port import Progress
from seriatim.wire import messages

EndpointFunction = Callable[..., Awaitable[Any]]

_APPENDS = (
    "empty_append",
    "invalid_event",
    "schema_violation",
    "pii_policy_violation",
    "idempotency_conflict",
    "event_sequence_invalid",
    "conditional_append_conflict",
    "conflict",
    "idempotency_key_reuse",
    "invalid_query",
    "timeout",
)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One operation: its method and path, its handler, and who may call it."""

    method: str
    path: str
    handler: EndpointFunction
    right: Right | None  # None: any token
    service: bool = False  # only for tokens of services
    all_types: bool = False  # only for tokens that are not restricted to event types
    every_tenant: bool = False  # only for tokens of all tenants
    body: type[Any] | None = None
    raw: bool = False  # the handler parses the body itself
    params: type[Any] | None = None
    response: type[Any] | None = None
    status: int = 200
    stream: bool = False
    dry_run: bool = False  # stores nothing, whatever its method and right
    problems: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether duplicates of a request must run once."""
        writes = self.method == "POST" and (self.right != "read" or self.service)
        return writes and not self.dry_run

    @property
    def endpoint(self) -> str:
        """The endpoint of its commands, as they are stored."""
        return f"{self.method} {self.path}"


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/token",
        handler=operator_endpoints.get_token,
        right=None,
        params=operator_endpoints.NoParams,
        response=messages.TokenInfo,
    ),
    # -- append
    Route(
        method="POST",
        path="/v1/events",
        handler=append_endpoints.append,
        right="append",
        service=True,
        body=messages.AppendBody,
        raw=True,
        response=messages.Receipt,
        status=201,
        problems=_APPENDS,
    ),
    Route(
        method="POST",
        path="/v1/append-if",
        handler=append_endpoints.append_if,
        right="append",
        service=True,
        body=messages.AppendIfBody,
        raw=True,
        response=messages.Receipt,
        status=201,
        problems=_APPENDS,
    ),
    Route(
        method="POST",
        path="/v1/appends",
        handler=append_endpoints.append_several,
        right="append",
        service=True,
        body=messages.AppendsBody,
        raw=True,
        response=messages.AppendOutcomes,
    ),
    Route(
        method="POST",
        path="/v1/explain",
        handler=append_endpoints.explain,
        right="append",
        service=True,
        body=messages.AppendBody,
        raw=True,
        response=messages.ExplanationResponse,
        dry_run=True,
        problems=("invalid_query",),
    ),
    # -- read
    Route(
        method="GET",
        path="/v1/log",
        handler=read_endpoints.get_log_info,
        right="read",
        params=read_endpoints.HeadWaitParams,
        response=messages.LogInfo,
    ),
    Route(
        method="GET",
        path="/v1/events",
        handler=read_endpoints.read_page,
        right="read",
        params=read_endpoints.ReadParams,
        response=messages.PageResponse,
    ),
    Route(
        method="GET",
        path="/v1/event",
        handler=read_endpoints.get_event,
        right="read",
        params=read_endpoints.EventParams,
        response=messages.RecordResponse,
        problems=("not_found",),
    ),
    Route(
        method="GET",
        path="/v1/receipts",
        handler=read_endpoints.find_receipt,
        right="read",
        params=read_endpoints.ReceiptParams,
        response=messages.StoredReceipt,
        problems=("not_found",),
    ),
    Route(
        method="GET",
        path="/v1/last-event-id",
        handler=read_endpoints.get_last_event_id,
        right="read",
        params=read_endpoints.PositionParams,
        response=messages.LastEventIdResponse,
    ),
    Route(
        method="GET",
        path="/v1/streams",
        handler=read_endpoints.list_streams,
        right="read",
        all_types=True,
        params=read_endpoints.StreamsParams,
        response=messages.StreamsResponse,
    ),
    Route(
        method="POST",
        path="/v1/streams/last",
        handler=read_endpoints.get_last_events,
        right="read",
        all_types=True,
        body=messages.StreamsBody,
        response=messages.LastRecordsResponse,
    ),
    Route(
        method="POST",
        path="/v1/query",
        handler=read_endpoints.run_query,
        right="read",
        body=messages.QueryBody,
        response=messages.QueryResponse,
        problems=("invalid_query",),
    ),
    Route(
        method="POST",
        path="/v1/query/records",
        handler=read_endpoints.select_records,
        right="read",
        body=messages.SelectBody,
        response=messages.RecordsResponse,
        problems=("invalid_query",),
    ),
    Route(
        method="POST",
        path="/v1/query/version",
        handler=read_endpoints.get_context_version,
        right="read",
        body=messages.VersionBody,
        response=messages.VersionResponse,
        problems=("invalid_query",),
    ),
    Route(
        method="GET",
        path="/v1/tail",
        handler=tail_endpoints.follow,
        right="read",
        params=tail_endpoints.TailParams,
        stream=True,
        problems=("invalid_query", "log_identity_changed"),
    ),
    Route(
        method="POST",
        path="/v1/tail",
        handler=tail_endpoints.follow_with_body,
        right="read",
        body=tail_endpoints.TailBody,
        stream=True,
        problems=("invalid_query", "log_identity_changed"),
    ),
    # -- consumers
    Route(
        method="GET",
        path="/v1/cursors",
        handler=consumer_endpoints.list_cursors,
        right="read",
        service=True,
        params=consumer_endpoints.CursorParams,
        response=messages.CursorsResponse,
    ),
    Route(
        method="POST",
        path="/v1/cursors",
        handler=consumer_endpoints.put_cursor,
        right="read",
        service=True,
        body=messages.CursorBody,
        response=messages.CursorResponse,
        problems=("conflict", "lease_lost"),
    ),
    Route(
        method="POST",
        path="/v1/leases",
        handler=consumer_endpoints.claim_lease,
        right="read",
        service=True,
        body=messages.LeaseBody,
        response=messages.LeaseResponse,
    ),
    Route(
        method="POST",
        path="/v1/leases/renew",
        handler=consumer_endpoints.renew_lease,
        right="read",
        service=True,
        body=messages.RenewBody,
        response=messages.RenewResponse,
    ),
    Route(
        method="POST",
        path="/v1/leases/release",
        handler=consumer_endpoints.release_lease,
        right="read",
        service=True,
        body=messages.ReleaseBody,
        response=messages.DoneResponse,
    ),
    Route(
        method="GET",
        path="/v1/subscriptions",
        handler=consumer_endpoints.list_subscriptions,
        right="operate",
        service=True,
        params=consumer_endpoints.SubscriptionParams,
        response=messages.SubscriptionsResponse,
    ),
    Route(
        method="POST",
        path="/v1/subscriptions/failure",
        handler=consumer_endpoints.record_failure,
        right="read",
        service=True,
        body=messages.FailureBody,
        response=messages.DoneResponse,
    ),
    # -- projections
    Route(
        method="GET",
        path="/v1/projections",
        handler=consumer_endpoints.list_projections,
        right="read",
        all_types=True,
        params=consumer_endpoints.ProjectionParams,
        response=messages.ProjectionsResponse,
    ),
    Route(
        method="GET",
        path="/v1/projections/wait",
        handler=consumer_endpoints.wait_for_projection,
        right="read",
        all_types=True,
        params=consumer_endpoints.ProjectionWaitParams,
        response=Progress,
        problems=(
            "not_found",
            "conflict",
            "log_identity_changed",
            "projection_out_of_date",
            "projection_timeout",
        ),
    ),
    Route(
        method="GET",
        path="/v1/projections/failures",
        handler=consumer_endpoints.list_projection_failures,
        right="operate",
        service=True,
        all_types=True,
        params=consumer_endpoints.ProjectionNameParams,
        response=messages.FailuresResponse,
        problems=("not_found", "conflict", "log_identity_changed"),
    ),
    # -- delivery
    Route(
        method="GET",
        path="/v1/registry",
        handler=operator_endpoints.get_registry,
        right="operate",
        service=True,
        params=operator_endpoints.RegistryParams,
        response=operator_endpoints.RegistryResponse,
        problems=("not_found",),
    ),
    Route(
        method="GET",
        path="/v1/dead-letters",
        handler=operator_endpoints.list_dead_letters,
        right="operate",
        service=True,
        params=operator_endpoints.EntryParams,
        response=operator_endpoints.EntriesResponse,
        problems=("not_found",),
    ),
    Route(
        method="POST",
        path="/v1/dead-letters/retry",
        handler=operator_endpoints.retry_dead_letters,
        right="operate",
        service=True,
        body=operator_endpoints.RetryBody,
        response=messages.CountResponse,
        problems=("not_found",),
    ),
    Route(
        method="POST",
        path="/v1/dead-letters/skip",
        handler=operator_endpoints.skip_events,
        right="operate",
        service=True,
        body=operator_endpoints.SkipBody,
        response=messages.CountResponse,
        problems=("not_found",),
    ),
    # -- operate
    Route(
        method="GET",
        path="/v1/declarations",
        handler=operator_endpoints.get_declarations,
        right="read",
        service=True,
        params=operator_endpoints.NoParams,
        response=messages.DeclarationsResponse,
    ),
    Route(
        method="POST",
        path="/v1/declarations",
        handler=operator_endpoints.declare,
        right="operate",
        service=True,
        every_tenant=True,
        body=messages.DeclareBody,
        response=messages.DeclarationsResponse,
        problems=("conflict",),
    ),
    Route(
        method="POST",
        path="/v1/log/epoch",
        handler=operator_endpoints.raise_epoch,
        right="operate",
        service=True,
        every_tenant=True,
        body=operator_endpoints.NoParams,
        response=messages.LogInfo,
    ),
    Route(
        method="POST",
        path="/v1/commands/purge",
        handler=operator_endpoints.purge_commands,
        right="operate",
        service=True,
        every_tenant=True,
        body=messages.PurgeBody,
        response=messages.CountResponse,
    ),
)
