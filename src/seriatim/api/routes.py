"""Every route as data: what it takes, what it answers, and the right that it needs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from seriatim.access.rights import Right
from seriatim.api import appending, consuming, delivering, operating, projecting, reading, tailing
from seriatim.store.readmodel.port import Progress
from seriatim.wire import shapes

Handler = Callable[..., Awaitable[Any]]

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
    """One thing that can be asked for over HTTP."""

    method: str
    path: str
    handler: Handler
    right: Right | None  # None: any token
    service: bool = False  # only tokens of services
    all_types: bool = False  # cannot be confined to some event types
    every_tenant: bool = False  # only tokens that are for all tenants
    body: type[Any] | None = None
    raw: bool = False  # the handler reads the body's bytes by itself
    params: type[Any] | None = None
    answer: type[Any] | None = None
    status: int = 200
    stream: bool = False
    problems: tuple[str, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether twins of it must not run twice."""
        return self.method == "POST" and (self.right != "read" or self.service)

    @property
    def endpoint(self) -> str:
        """The name under which its commands are kept."""
        return f"{self.method} {self.path}"


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/token",
        handler=operating.token,
        right=None,
        params=operating.NoParams,
        answer=shapes.TokenInfo,
    ),
    # -- append
    Route(
        method="POST",
        path="/v1/events",
        handler=appending.append,
        right="append",
        service=True,
        body=shapes.AppendBody,
        raw=True,
        answer=shapes.Receipt,
        status=201,
        problems=_APPENDS,
    ),
    Route(
        method="POST",
        path="/v1/append-if",
        handler=appending.append_if,
        right="append",
        service=True,
        body=shapes.AppendIfBody,
        raw=True,
        answer=shapes.Receipt,
        status=201,
        problems=_APPENDS,
    ),
    Route(
        method="POST",
        path="/v1/appends",
        handler=appending.append_several,
        right="append",
        service=True,
        body=shapes.AppendsBody,
        raw=True,
        answer=shapes.Outcomes,
    ),
    # -- read
    Route(
        method="GET",
        path="/v1/log",
        handler=reading.info,
        right="read",
        params=reading.WaitParams,
        answer=shapes.LogInfo,
    ),
    Route(
        method="GET",
        path="/v1/events",
        handler=reading.page,
        right="read",
        params=reading.ReadParams,
        answer=shapes.PageAnswer,
    ),
    Route(
        method="GET",
        path="/v1/event",
        handler=reading.one,
        right="read",
        params=reading.EventParams,
        answer=shapes.OneRecord,
        problems=("not_found",),
    ),
    Route(
        method="GET",
        path="/v1/appends",
        handler=reading.find_append,
        right="read",
        params=reading.KeyParams,
        answer=shapes.FoundAppend,
        problems=("not_found",),
    ),
    Route(
        method="GET",
        path="/v1/commands",
        handler=reading.find_command,
        right="read",
        params=reading.CommandParams,
        answer=shapes.FoundAppend,
        problems=("not_found",),
    ),
    Route(
        method="GET",
        path="/v1/tip",
        handler=reading.tip,
        right="read",
        params=reading.PositionParams,
        answer=shapes.TipAnswer,
    ),
    Route(
        method="GET",
        path="/v1/streams",
        handler=reading.streams,
        right="read",
        all_types=True,
        params=reading.StreamsParams,
        answer=shapes.StreamsAnswer,
    ),
    Route(
        method="POST",
        path="/v1/streams/last",
        handler=reading.last,
        right="read",
        all_types=True,
        body=shapes.StreamsBody,
        answer=shapes.LastRecords,
    ),
    Route(
        method="POST",
        path="/v1/query",
        handler=reading.query,
        right="read",
        body=shapes.QueryBody,
        answer=shapes.QueryAnswer,
        problems=("invalid_query",),
    ),
    Route(
        method="POST",
        path="/v1/query/records",
        handler=reading.select,
        right="read",
        body=shapes.SelectBody,
        answer=shapes.RecordsAnswer,
        problems=("invalid_query",),
    ),
    Route(
        method="POST",
        path="/v1/query/version",
        handler=reading.version,
        right="read",
        body=shapes.VersionBody,
        answer=shapes.VersionAnswer,
        problems=("invalid_query",),
    ),
    Route(
        method="GET",
        path="/v1/tail",
        handler=tailing.tail,
        right="read",
        params=tailing.TailParams,
        stream=True,
        problems=("invalid_query", "log_identity_changed"),
    ),
    Route(
        method="POST",
        path="/v1/tail",
        handler=tailing.tail_long,
        right="read",
        body=tailing.TailBody,
        stream=True,
        problems=("invalid_query", "log_identity_changed"),
    ),
    # -- consumers
    Route(
        method="GET",
        path="/v1/cursors",
        handler=consuming.cursors,
        right="read",
        service=True,
        params=consuming.CursorParams,
        answer=shapes.CursorsAnswer,
    ),
    Route(
        method="POST",
        path="/v1/cursors",
        handler=consuming.put_cursor,
        right="read",
        service=True,
        body=shapes.CursorBody,
        answer=shapes.CursorAnswer,
        problems=("conflict", "lease_lost"),
    ),
    Route(
        method="POST",
        path="/v1/leases",
        handler=consuming.claim,
        right="read",
        service=True,
        body=shapes.LeaseBody,
        answer=shapes.LeaseAnswer,
    ),
    Route(
        method="POST",
        path="/v1/leases/renew",
        handler=consuming.renew,
        right="read",
        service=True,
        body=shapes.RenewBody,
        answer=shapes.RenewAnswer,
    ),
    Route(
        method="POST",
        path="/v1/leases/release",
        handler=consuming.release,
        right="read",
        service=True,
        body=shapes.ReleaseBody,
        answer=shapes.Done,
    ),
    Route(
        method="GET",
        path="/v1/subscriptions",
        handler=consuming.subscriptions,
        right="operate",
        service=True,
        params=consuming.SubscriptionParams,
        answer=shapes.SubscriptionsAnswer,
    ),
    Route(
        method="POST",
        path="/v1/subscriptions/failure",
        handler=consuming.record_failure,
        right="read",
        service=True,
        body=shapes.FailureBody,
        answer=shapes.Done,
    ),
    # -- projections
    Route(
        method="GET",
        path="/v1/projections",
        handler=projecting.projections,
        right="read",
        all_types=True,
        params=projecting.ProjectionParams,
        answer=shapes.ProjectionsAnswer,
    ),
    Route(
        method="GET",
        path="/v1/projections/wait",
        handler=projecting.wait,
        right="read",
        all_types=True,
        params=projecting.WaitParams,
        answer=Progress,
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
        handler=projecting.failures,
        right="operate",
        service=True,
        all_types=True,
        params=projecting.NameParams,
        answer=shapes.FailuresAnswer,
        problems=("not_found", "conflict", "log_identity_changed"),
    ),
    # -- delivery
    Route(
        method="GET",
        path="/v1/registry",
        handler=delivering.registry,
        right="operate",
        service=True,
        params=delivering.RegistryParams,
        answer=delivering.RegistryAnswer,
        problems=("not_found",),
    ),
    Route(
        method="GET",
        path="/v1/dead-letters",
        handler=delivering.letters,
        right="operate",
        service=True,
        params=delivering.EntryParams,
        answer=delivering.EntriesAnswer,
        problems=("not_found",),
    ),
    Route(
        method="POST",
        path="/v1/dead-letters/retry",
        handler=delivering.retry,
        right="operate",
        service=True,
        body=delivering.RetryBody,
        answer=shapes.Count,
        problems=("not_found",),
    ),
    Route(
        method="POST",
        path="/v1/dead-letters/skip",
        handler=delivering.skip,
        right="operate",
        service=True,
        body=delivering.SkipBody,
        answer=shapes.Count,
        problems=("not_found",),
    ),
    # -- operate
    Route(
        method="GET",
        path="/v1/declarations",
        handler=operating.declarations,
        right="read",
        service=True,
        params=operating.NoParams,
        answer=shapes.Declarations,
    ),
    Route(
        method="POST",
        path="/v1/declarations",
        handler=operating.declare,
        right="operate",
        service=True,
        every_tenant=True,
        body=shapes.DeclareBody,
        answer=shapes.Declarations,
        problems=("conflict",),
    ),
    Route(
        method="POST",
        path="/v1/log/epoch",
        handler=operating.raise_epoch,
        right="operate",
        service=True,
        every_tenant=True,
        body=operating.NoParams,
        answer=shapes.LogInfo,
    ),
    Route(
        method="POST",
        path="/v1/commands/purge",
        handler=operating.purge,
        right="operate",
        service=True,
        every_tenant=True,
        body=shapes.PurgeBody,
        answer=shapes.Count,
    ),
)
