"""The store interface over HTTP: a log behind a service works like any other store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

import msgspec

from seriatim.client import appends
from seriatim.client.exchange import HttpExchange
from seriatim.client.http import Http
from seriatim.client.sending import send
from seriatim.core.errors import Forbidden, InvalidArgument, SeriatimError
from seriatim.core.event import DEFAULT_TENANT, EventRecord, LogIdentity, StreamRef
from seriatim.core.indexes import PayloadIndex
from seriatim.core.kinds import (
    BUILT_IN_KINDS,
    NO_RULES,
    Declaration,
    EventType,
    Rules,
    StreamKind,
)
from seriatim.core.query import Query
from seriatim.core.request import Request
from seriatim.core.times import format_us
from seriatim.log.querying import Window
from seriatim.store.port import (
    Cursor,
    Finding,
    Lease,
    Outcome,
    ReadSpec,
    Restored,
    StoredAppend,
    StreamSummary,
    SubscriptionStatus,
)
from seriatim.store.reading import is_full
from seriatim.wire import shapes
from seriatim.wire.records import WireRecord, all_incoming, incoming

_WAIT_MAX_S = 30.0
_LOOP_BYTES = 64 * 1024  # larger appends are not sent by the event loop itself
_STREAMS_MAX = 100  # in one request
_CURSORS_PER_PAGE = 100


class HttpStore:
    """The store of a log that is accessed through a service."""

    name = "http"
    best_writers = 2

    def __init__(self, http: Http) -> None:
        self.http = http
        self._decoders: dict[type[Any], Any] = {}

    def decoded(self, raw: bytes, kind: type[Any]) -> Any:
        """Decode the body of a response; raises `BackendFailure` for an unknown format."""
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = msgspec.json.Decoder(kind)
        try:
            return decoder.decode(raw)
        except msgspec.MsgspecError as error:
            raise appends.unknown_shape(error) from error

    # -- the log itself

    def _info(self, **params: Any) -> shapes.LogInfo:
        raw = self.http.get("/v1/log", params, wait_s=params.get("wait_s", 0.0))
        info: shapes.LogInfo = self.decoded(raw, shapes.LogInfo)
        self.http.known_position = max(self.http.known_position, info.head)
        return info

    def tenant(self) -> str:
        """Return the tenant of the token, or the default tenant if it is for all."""
        found = self.decoded(self.http.get("/v1/token", {}), shapes.TokenInfo)
        return DEFAULT_TENANT if found.tenant_id == "*" else str(found.tenant_id)

    def identity(self) -> LogIdentity:
        info = self._info()
        return LogIdentity(info.log_id, info.epoch)

    def raise_epoch(self) -> LogIdentity:
        info = self.decoded(self.http.post("/v1/log/epoch", {}), shapes.LogInfo)
        return LogIdentity(info.log_id, info.epoch)

    def packed(self, request: Request, rules: Rules) -> Request:
        del rules
        if request.door not in get_args(shapes.Profile):
            raise _needs_database("importing")
        return msgspec.structs.replace(request, packed=appends.encoded(request))

    def append(self, group: Sequence[Request]) -> list[Outcome]:
        """Send a group, split into several requests by tenant and size if needed."""
        outcomes: list[Outcome] = []
        for part in appends.parts(group):
            outcomes += send(self.http, part)
        return outcomes

    def at_once(self, request: Request, timeout: float) -> Outcome | None:
        """Send a single append."""
        [outcome] = send(self.http, [request], timeout)
        return outcome

    def light(self, request: Request) -> bool:
        """Return whether an event loop may send this append itself."""
        return len(request.packed) <= _LOOP_BYTES and self.http.swift

    def begin(self, group: Sequence[Request]) -> HttpExchange | None:
        """Send a group and let the event loop read the response; None if it needs two requests."""
        tenant_id = group[0].tenant_id
        if len(list(appends.parts(group))) > 1:
            return None
        return self.http.begin(appends.APPENDS, appends.together(group), group, tenant_id)

    def append_in(self, connection: Any, request: Request) -> Any:
        del connection, request
        msg = "connection needs direct access to the log's database: open its own URL"
        raise InvalidArgument(msg, details={"argument": "connection"})

    def restore(self, events: Sequence[Restored]) -> None:
        del events
        raise _needs_database("restoring an archive")

    # -- reads

    def head(self) -> int:
        return self._info().head

    def page(self, spec: ReadSpec) -> tuple[list[EventRecord], int]:
        """Read a page; return its records and the last scanned position.

        A page of large events is received in several responses.
        """
        if spec.types == ():  # an empty list cannot be written in a query string
            head = self.head()
            last = max(spec.after, head if spec.until is None else min(spec.until, head))
            return [], spec.after + 1 if spec.newest_first else last
        bounds = spec
        found: list[EventRecord] = []
        while True:
            raw = self.http.get("/v1/events", _params(spec), tenant_id=spec.tenant_id)
            answer = self.decoded(raw, shapes.PageAnswer)
            found += all_incoming(answer.records)
            if not answer.cut or is_full(found, bounds.limit, bounds.max_bytes):
                return found, answer.last_scanned
            limit = spec.limit - len(answer.records)
            start = {"after": answer.last_scanned}
            if spec.newest_first:
                start = {"until": answer.last_scanned - 1}
            spec = msgspec.structs.replace(spec, limit=limit, **start)

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        if spec.tenant_id is None:
            raise _needs_database("reading all tenants at once")
        return self.page(spec)[0]

    def event(self, tenant_id: str, event_id: str) -> EventRecord | None:
        try:
            raw = self.http.get("/v1/event", {"event_id": event_id}, tenant_id=tenant_id)
        except SeriatimError as error:
            if error.code == "not_found":
                return None
            raise
        return incoming(self.decoded(raw, shapes.OneRecord).record)

    def append_by_key(
        self, tenant_id: str, producer_id: str | None, key: str
    ) -> StoredAppend | None:
        params = {"idempotency_key": key, "producer_id": producer_id}
        return self._found_append("/v1/appends", params, tenant_id)

    def append_by_command(
        self, tenant_id: str, actor: str, endpoint: str, key: str
    ) -> StoredAppend | None:
        params = {"actor": actor, "endpoint": endpoint, "key": key}
        return self._found_append("/v1/commands", params, tenant_id)

    def _found_append(
        self, path: str, params: dict[str, Any], tenant_id: str
    ) -> StoredAppend | None:
        try:
            raw = self.http.get(path, params, tenant_id=tenant_id)
        except SeriatimError as error:
            if error.code == "not_found":
                return None
            raise
        found = self.decoded(raw, shapes.FoundAppend)
        return StoredAppend(tuple(all_incoming(found.records)), found.request_hash, found.response)

    def event_id_at(self, position: int) -> str | None:
        raw = self.http.get("/v1/tip", {"position": position})
        event_id: str | None = self.decoded(raw, shapes.TipAnswer).tip
        return event_id

    def last_of_stream(self, tenant_id: str, stream: StreamRef) -> EventRecord | None:
        return self.last_of_streams(tenant_id, [stream])[0]

    def last_of_streams(
        self, tenant_id: str, streams: Sequence[StreamRef]
    ) -> list[EventRecord | None]:
        found: list[WireRecord | None] = []
        for first in range(0, len(streams), _STREAMS_MAX):
            body = shapes.StreamsBody(list(streams[first : first + _STREAMS_MAX]))
            raw = self.http.post("/v1/streams/last", body, tenant_id=tenant_id)
            found += self.decoded(raw, shapes.LastRecords).records
        return [None if record is None else incoming(record) for record in found]

    def streams(
        self, tenant_id: str, stream_type: str | None, after: int, limit: int
    ) -> list[StreamSummary]:
        params = {"stream_type": stream_type, "after": after, "limit": limit}
        raw = self.http.get("/v1/streams", params, tenant_id=tenant_id)
        found: list[StreamSummary] = self.decoded(raw, shapes.StreamsAnswer).streams
        return found

    def select(  # noqa: PLR0913 - a query, its range and its order
        self,
        tenant_id: str,
        query: Query,
        after: int,
        until: int,
        limit: int,
        *,
        newest_first: bool = False,
        max_bytes: int | None = None,
    ) -> list[EventRecord]:
        found: list[EventRecord] = []
        while True:
            left = limit - len(found)
            body = shapes.SelectBody(query.as_dict(), after, until, left, newest_first)
            raw = self.http.post("/v1/query/records", body, tenant_id=tenant_id)
            answer = self.decoded(raw, shapes.RecordsAnswer)
            found += all_incoming(answer.records)
            if not answer.cut or is_full(found, limit, max_bytes):
                return found
            if newest_first:
                until = found[-1].position - 1
            else:
                after = found[-1].position

    def context_version(self, tenant_id: str, query: Query, until: int) -> int | None:
        body = shapes.VersionBody(query.as_dict(), until)
        raw = self.http.post("/v1/query/version", body, tenant_id=tenant_id)
        version: int | None = self.decoded(raw, shapes.VersionAnswer).context_version
        return version

    def query(self, tenant_id: str, query: Query, window: Window) -> shapes.QueryAnswer:
        """Run a query in one request: records, context version and head."""
        body = shapes.QueryBody(
            query.as_dict(),
            window.limit,
            window.after,
            window.head,
            window.until,
            window.newest_first,
        )
        raw = self.http.post("/v1/query", body, tenant_id=tenant_id)
        answer: shapes.QueryAnswer = self.decoded(raw, shapes.QueryAnswer)
        return answer

    # -- declarations

    def rules(self) -> Rules:
        try:
            raw = self.http.get("/v1/declarations", {})
        except Forbidden:
            return NO_RULES  # a tenant's token may not read them; the service validates anyway
        found = self.decoded(raw, shapes.Declarations)
        built_in = {kind.name for kind in BUILT_IN_KINDS}
        kinds = tuple(kind for kind in found.kinds if kind.name not in built_in)
        return Rules(kinds, tuple(found.types), found.version, tuple(found.indexes))

    def declare(self, declaration: Declaration) -> None:
        body = shapes.DeclareBody()
        if isinstance(declaration, StreamKind):
            body = shapes.DeclareBody(kinds=[declaration])
        elif isinstance(declaration, EventType):
            body = shapes.DeclareBody(types=[declaration])
        elif isinstance(declaration, PayloadIndex):
            body = shapes.DeclareBody(indexes=[declaration])
        self.http.post("/v1/declarations", body)

    # -- consumers

    def cursor(self, tenant_id: str, purpose: str, name: str) -> Cursor | None:
        found = self._cursors(tenant_id, purpose, name)
        return found[0] if found else None

    def cursors(self, tenant_id: str, purpose: str) -> list[Cursor]:
        return self._cursors(tenant_id, purpose, None)

    def _cursors(self, tenant_id: str, purpose: str, name: str | None) -> list[Cursor]:
        found: list[Cursor] = []
        while True:
            after = found[-1].name if found else None
            params = {
                "purpose": purpose,
                "name": name,
                "after": after,
                "limit": _CURSORS_PER_PAGE,
            }
            raw = self.http.get("/v1/cursors", params, tenant_id=tenant_id)
            page: list[Cursor] = self.decoded(raw, shapes.CursorsAnswer).cursors
            found += page
            if len(page) < _CURSORS_PER_PAGE:
                return found

    def add_cursor(self, cursor: Cursor) -> Cursor:
        return self._put_cursor(cursor, only_new=True)

    def put_cursor(self, cursor: Cursor, *, lease: Lease | None, reset: bool) -> None:
        self._put_cursor(cursor, lease=lease, reset=reset)

    def _put_cursor(self, cursor: Cursor, **options: Any) -> Cursor:
        body = shapes.CursorBody(
            purpose=cursor.purpose,
            name=cursor.name,
            position=cursor.position,
            log_id=cursor.log_id,
            epoch=cursor.epoch,
            tip=cursor.tip,
            query=cursor.query,
            **options,
        )
        raw = self.http.post("/v1/cursors", body, tenant_id=cursor.tenant_id)
        stored: Cursor = self.decoded(raw, shapes.CursorAnswer).cursor
        return stored

    def record_failure(self, lease: Lease, name: str, failures: int, error: str) -> None:
        body = shapes.FailureBody(name, lease, failures, error)
        self.http.post("/v1/subscriptions/failure", body, tenant_id=lease.tenant_id)

    def subscription_statuses(self, tenant_id: str) -> Iterator[SubscriptionStatus]:
        """Yield the status of a tenant's durable subscriptions, as the service reports it."""
        after: str | None = None
        while True:
            params = {"after": after, "limit": _CURSORS_PER_PAGE}
            raw = self.http.get("/v1/subscriptions", params, tenant_id=tenant_id)
            page = self.decoded(raw, shapes.SubscriptionsAnswer).subscriptions
            yield from page
            if len(page) < _CURSORS_PER_PAGE:
                return
            after = page[-1].name

    def claim_lease(self, tenant_id: str, name: str, owner: str, seconds: float) -> Lease | None:
        body = shapes.LeaseBody(name, owner, seconds)
        raw = self.http.post("/v1/leases", body, tenant_id=tenant_id)
        lease: Lease | None = self.decoded(raw, shapes.LeaseAnswer).lease
        return lease

    def renew_lease(self, lease: Lease, seconds: float) -> bool:
        body = shapes.RenewBody(lease, seconds)
        raw = self.http.post("/v1/leases/renew", body, tenant_id=lease.tenant_id)
        return bool(self.decoded(raw, shapes.RenewAnswer).held)

    def release_lease(self, lease: Lease) -> None:
        body = shapes.ReleaseBody(lease)
        self.http.post("/v1/leases/release", body, tenant_id=lease.tenant_id)

    def purge_commands(self, older_than_seconds: float) -> int:
        body = shapes.PurgeBody(older_than_seconds / 3600)
        return int(self.decoded(self.http.post("/v1/commands/purge", body), shapes.Count).count)

    # -- wake-ups, checks, lifecycle

    def wait(self, position: int, timeout: float) -> None:
        """Let the service respond when its head has passed a position, or time is up."""
        self._info(after=position, wait_s=min(timeout, _WAIT_MAX_S))

    def verify(self) -> Iterator[Finding]:
        raise _needs_database("verifying")

    def doctor(self) -> Iterator[Finding]:
        info = self._info()
        yield Finding("ok", "service", f"it responds, version {info.version}, head {info.head}")

    def after_fork(self) -> None:
        self.http.after_fork()

    def close(self) -> None:
        self.http.close()


def _needs_database(operation: str) -> InvalidArgument:
    msg = f"{operation} needs direct access to the log's database, not a service: open its own URL"
    return InvalidArgument(msg, details={"argument": "url"})


def _params(spec: ReadSpec) -> dict[str, Any]:
    stream_type, stream_id = spec.stream or (None, None)
    return {
        "after": spec.after,
        "until": spec.until,
        "limit": spec.limit,
        "types": spec.types,
        "stream_type": stream_type,
        "stream_id": stream_id,
        "since_seq": spec.after_seq,
        "app_id": spec.app_id,
        "env_id": spec.env_id,
        "occurred_after": _format_time(spec.occurred_after_us),
        "occurred_until": _format_time(spec.occurred_until_us),
        "recorded_after": _format_time(spec.recorded_after_us),
        "recorded_until": _format_time(spec.recorded_until_us),
        "correlation_id": spec.correlation_id,
        "causation_id": spec.causation_id,
        "newest_first": "true" if spec.newest_first else None,
        "scope": spec.scope,
    }


def _format_time(moment_us: int | None) -> str | None:
    return None if moment_us is None else format_us(moment_us)
