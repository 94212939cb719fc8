"""The processed-event registry: which handler is processing, or has processed, each event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from seriatim.config.delivery import OnOutage, RegistrySettings
from seriatim.core.errors import Conflict, InvalidArgument
from seriatim.core.event import EventRecord, LogIdentity
from seriatim.core.handler import Delivery, Handler
from seriatim.core.tenants import check_tenant
from seriatim.delivery.admin import RegistryAdmin
from seriatim.delivery.aio import AsyncRegistry
from seriatim.delivery.claim_context import ClaimContext
from seriatim.delivery.claim_rounds import ClaimRounds
from seriatim.delivery.claims import (
    CLAIM_TYPES,
    DEAD_TYPES,
    DEFERRED_TYPES,
    DELIVERY_TYPES,
    ENDED_TYPES,
    INVALID_TYPES,
    ORIGIN_TYPES,
    RANGE_TYPES,
    Claim,
    PassedRange,
    StreamKey,
    check_held,
    decode_deferred,
    encode_bodies,
    encode_claims,
    encode_dead,
    encode_deliveries,
    encode_ended,
    encode_origins,
    encode_ranges,
    find_first_run,
    group_by_stream,
)
from seriatim.delivery.entries import (
    DeclaredHandler,
    Entry,
    EntryFilter,
    HandlerCursor,
    HandlerLog,
    StatusCount,
    format_stop_reason,
)
from seriatim.delivery.handler_loop import Counts, settle
from seriatim.delivery.log_origin import LogOrigin
from seriatim.delivery.registry_database import (
    RegistryDatabase,
    identity_changed_error,
    is_record,
)
from seriatim.delivery.reset import ResetReport
from seriatim.log.base import BaseLog
from seriatim.store.engine import Engine, EngineSession

_LOG_REQUIRED = (
    "the registry must know of which log a record is: open it with open_registry(url, log=log), or "
    "pass Delivery.of(record, log=log.identity())"
)


class Registry:
    """A registry in a database of yours, with one row per handler and event.

    Consumers use `handle`, which does everything, or `claim` for a block of their own code. The
    other methods are the operations that these consist of, and those for operators.

    Example:
        with closing(seriatim.open_registry("sqlite:///app.db", log=log)) as registry:
            print(registry.handle(receipts, log.read()))

    Attributes:
        engine: The database.
        settings: Leases, heartbeats and the outage policy.
        origin: The log whose records are handled, if the registry was opened with one.
        journal: The log in which the actions of operators are recorded, if it was.
        outage: Retries operations while the database is unreachable.
        sql: The statements by name.
    """

    def __init__(
        self,
        engine: Engine,
        settings: RegistrySettings | None = None,
        origin: LogOrigin | None = None,
        journal: BaseLog | None = None,
    ) -> None:
        """Open the registry, and create missing tables; users call `open_registry`."""
        self._database = RegistryDatabase(engine, settings)
        self._admin = RegistryAdmin(self._database, journal)
        self._declared: set[tuple[str, str]] = set()
        self.engine = engine
        self.origin = origin
        self.journal = journal
        self.settings = self._database.settings
        self.outage = self._database.outage
        self.sql = self._database.sql

    @property
    def aio(self) -> AsyncRegistry:
        """The same registry for asyncio."""
        return AsyncRegistry(self)

    @property
    def owner(self) -> str:
        """The owner name of this registry's claims, different in every process."""
        return self._database.owner

    def clone(self, on_outage: OnOutage | None = None) -> Registry:
        """Return the same registry on a separate connection, for another thread.

        Example:
            with closing(registry.clone()) as another:
                print(another.counts())
        """
        settings = msgspec.structs.replace(
            self.settings, on_outage=on_outage or self.settings.on_outage
        )
        return Registry(self.engine.open_another(), settings, self.origin, self.journal)

    def close(self) -> None:
        """Close the database connection, and stop waiting for an unreachable database.

        Example:
            registry.close()
        """
        self._database.close()

    # -- handlers

    def declare(self, handler: Handler, *, replace: bool = False) -> None:
        """Declare a handler, or check that it is declared in the same way.

        Args:
            handler: The handler.
            replace: Whether to replace a different declaration.

        Raises:
            Conflict: The handler is declared differently.

        Example:
            registry.declare(receipts)
        """
        declaration = handler.declaration
        values = {"handler": handler.name, "declaration": declaration, "replace": int(replace)}
        self._database.run("declare_handler", values)
        [(stored, *_)] = self._database.read("select_handler", {"handler": handler.name})
        if stored != declaration:
            msg = (
                f"handler {handler.name!r:.80} is declared as {stored}, not as {declaration}: "
                "take another name, or replace the declaration (replace=True, --redeclare)"
            )
            raise Conflict(msg, details={"handler": handler.name})

    def declare_once(self, handler: Handler) -> None:
        """Declare a handler unless this registry object has already done so."""
        known = (handler.name, handler.declaration)
        if known not in self._declared:
            self.declare(handler)
            self._declared.add(known)

    def inactive_reason(self, handler: Handler) -> str | None:
        """Return why a handler does not run (`paused` or `stopped: …`), or None if it may run."""
        rows = self._database.read("select_handler", {"handler": handler.name})
        if not rows or rows[0][1] == "ready":
            return None
        _, status, reason = rows[0]
        return f"{status}: {reason}" if reason else str(status)

    def check_handler_exists(self, handler: str) -> None:
        """Raise `NotFound` for a handler that was never declared and has no entries."""
        self._database.check_handler_exists(handler)

    # -- handling events

    def handle(
        self,
        handler: Handler,
        events: EventRecord | Delivery | Iterable[EventRecord | Delivery],
        *,
        wait_s: float = 0.0,
    ) -> Counts:
        """Handle one event or a batch, and return when the verdict of each is final.

        Each event is then done, was done before, is stale, is excluded by the handler's filter, or
        is a dead letter, and the caller may advance its cursor or offset. Deferred events of the
        handler that are due, such as retried dead letters, are handled first; with no events, only
        these are.

        Args:
            handler: The handler; it is declared if necessary.
            events: A record, a delivery or a batch of them.
            wait_s: How long to wait for a backoff, an earlier event or another consumer.

        Returns:
            The number of events by outcome.

        Raises:
            EventNotSettled: The verdict of an event is not final. The caller must not advance and
                must deliver the batch again; completed effects are not repeated.
            Conflict: The handler is paused or stopped.
            LogIdentityChanged: The events come from another log than earlier ones.

        Example:
            for batch in log.subscribe("mailer", idle_timeout=0.1):
                registry.handle(receipts, batch)
        """
        return settle(self, handler, self.deliveries(events), wait_s=wait_s)

    def claim(
        self,
        handler: Handler,
        event: EventRecord | Delivery,
        *,
        unsettled: Literal["raise", "return"] = "raise",
    ) -> ClaimContext:
        """Claim one event for a `with` block, in which the caller performs the effect.

        Args:
            handler: A declared handler.
            event: A record or a delivery.
            unsettled: What to do if the verdict is not final. A consumer that advanced then would
                lose the effect, so entering the block raises `EventNotSettled`, unless this is
                "return".

        Returns:
            A context manager that is true if the event was claimed.

        Example:
            with registry.claim(receipts, event) as claim:
                if claim:
                    send_receipt(event, idempotency_key=claim.key)
        """
        [delivery] = self.deliveries(event)
        return ClaimContext(self, handler, delivery, unsettled=unsettled)

    def deliveries(
        self, events: EventRecord | Delivery | Iterable[EventRecord | Delivery]
    ) -> list[Delivery]:
        """Convert records and deliveries to deliveries that name their log.

        Raises:
            InvalidArgument: An item is neither, or the log of a record is not known.
        """
        items: list[Any] = [events] if isinstance(events, EventRecord | Delivery) else list(events)
        for item in items:
            if not isinstance(item, EventRecord | Delivery):
                msg = f"events must be records or deliveries, not {type(item).__name__}"
                raise InvalidArgument(msg, details={"argument": "events"})
        return self.add_log_identity(
            item if isinstance(item, Delivery) else Delivery.of(item) for item in items
        )

    # -- the identity of the log

    def add_log_identity(self, deliveries: Iterable[Delivery]) -> list[Delivery]:
        """Add the identity of the registry's log to records that do not name their log.

        Raises:
            InvalidArgument: A record does not name its log, and the registry has none; or a tenant
                id is invalid.
        """
        items = list(deliveries)
        for tenant_id in {delivery.tenant_id for delivery in items}:
            check_tenant(tenant_id)
        if all(delivery.log is not None or not is_record(delivery) for delivery in items):
            return items
        if self.origin is None:
            raise InvalidArgument(_LOG_REQUIRED, details={"argument": "log"})
        log = self.origin.identity()
        return [
            self.origin.to_delivery(item.event, log)
            if item.log is None and is_record(item)
            else item
            for item in items
        ]

    def check_log_identity(self, handler: Handler, deliveries: Iterable[Delivery]) -> None:
        """Bind the handler to the log of the first events of a tenant, and check later ones.

        Raises:
            LogIdentityChanged: Events come from another log or epoch than earlier ones.
        """
        columns = encode_origins(deliveries)
        values = {"handler": handler.name}
        # Twice: another consumer may bind the handler at the same time, and its log is compared.
        for _ in range(2):
            mismatches = self._database.run_rows(
                "list_foreign_origins", ORIGIN_TYPES, columns, values
            )
            for tenant_id, log_id, epoch, bound_log_id, bound_epoch in mismatches:
                if bound_log_id is not None:
                    actual = None if log_id is None else LogIdentity(log_id, epoch)
                    bound = LogIdentity(bound_log_id, bound_epoch)
                    raise identity_changed_error(handler.name, tenant_id, bound, actual)
            if not mismatches:
                return
            unbound = {row[0]: row for row in mismatches}.values()
            unbound_columns = [[row[index] for row in unbound] for index in range(3)]
            self._database.run_rows("bind_logs", ORIGIN_TYPES, unbound_columns, values)

    def check_origin(self, handler: Handler) -> None:
        """Raise `LogIdentityChanged` if the handler is bound to another log than this registry."""
        if self.origin is None:
            return
        log = self.origin.identity()
        values = {"handler": handler.name, "log_id": log.log_id, "epoch": log.epoch}
        for tenant_id, log_id, epoch in self._database.read("find_other_log", values):
            raise identity_changed_error(handler.name, tenant_id, LogIdentity(log_id, epoch), log)

    # -- claims

    def claim_all(
        self,
        handler: Handler,
        deliveries: Sequence[Delivery],
        passing: Sequence[Delivery] = (),
    ) -> list[Claim]:
        """Claim several events at once.

        The caller must handle claimed events of a stream in the order of their sequence numbers,
        and in strict mode none after a failed one.

        Args:
            handler: A declared handler.
            deliveries: The events to claim.
            passing: Events between them that the handler's filter excludes. Call `pass_over` with
                them when the claims have ended.

        Returns:
            A claim for each delivery, with its own verdict.

        Raises:
            LogIdentityChanged: Events come from another log or epoch than earlier ones. Nothing
                is claimed then.
        """
        return ClaimRounds(self, self._database).claim_all(handler, deliveries, passing)

    def heartbeat(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """Renew claims for another lease; raise `LeaseLost` if another consumer holds one."""
        values = self._database.handler_values(handler)
        rows = self._database.run_rows("renew_claims", CLAIM_TYPES, encode_claims(claims), values)
        check_held(claims, rows)

    def mark_done(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """Complete claims whose effect was performed, and advance their streams.

        Raises:
            LeaseLost: Another consumer holds one of the claims, or it was ended.
        """
        # again=1: after a lost response the statement is repeated, and its claims are done already.
        values = self._database.handler_values(handler) | {"again": 1}
        rows = self._database.run_rows(
            "complete_claims", CLAIM_TYPES, encode_claims(claims), values, then="advance_streams"
        )
        check_held(claims, rows)

    def mark_done_in(
        self, session: EngineSession, handler: Handler, claims: Sequence[Claim]
    ) -> None:
        """Complete claims in the transaction of their effects; raise `LeaseLost` as `mark_done`."""
        # again=0: claims that are done already have had their effect in another transaction, so the
        # caller must roll this one back.
        values = self._database.handler_values(handler) | {"again": 0}
        columns = encode_claims(claims)
        rows = self._database.run_rows_in(
            session, "complete_claims", CLAIM_TYPES, columns, values, "advance_streams"
        )
        check_held(claims, rows)

    def mark_failed(
        self, handler: Handler, claim: Claim, error: str, *, pause_s: float | None = None
    ) -> None:
        """Record a failed attempt.

        Args:
            handler: The handler.
            claim: The claim.
            error: The error, as text.
            pause_s: The backoff before the next attempt. Without it the event becomes a dead
                letter.

        Raises:
            LeaseLost: Another consumer holds the claim, or it was ended.
        """
        if pause_s is None:
            self._end_attempts(handler, [claim], ["dead"], error)
            self._stop_if_poisoned(handler, claim.delivery, error)
        else:
            self._end_attempts(handler, [claim], ["failed"], error, pause_s=pause_s)

    def release(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """Release claims that were not processed; no attempt is counted."""
        ordered = handler.mode == "strict"
        statuses = [
            "blocked" if ordered and claim.delivery.ordered_stream else "failed" for claim in claims
        ]
        self._end_attempts(handler, claims, statuses, "", unspent=1)

    def _end_attempts(
        self,
        handler: Handler,
        claims: Sequence[Claim],
        statuses: list[str],
        error: str,
        *,
        pause_s: float = 0.0,
        unspent: int = 0,
    ) -> None:
        columns = encode_ended(claims, statuses, error, int(pause_s * 1_000_000), unspent)
        # A released event of a stream waits for its predecessors; an ended one may be settled.
        then = "mark_waiting_streams" if unspent else "advance_streams"
        values = self._database.handler_values(handler)
        rows = self._database.run_rows("end_attempts", ENDED_TYPES, columns, values, then=then)
        check_held(claims, rows)

    def mark_dead(self, handler: Handler, deliveries: Sequence[Delivery], error: str) -> None:
        """Turn events whose claims expired too often into dead letters."""
        dead = encode_dead(deliveries, error)
        values, then = self._database.handler_values(handler), "advance_streams"
        self._database.run_rows("mark_claims_dead", DEAD_TYPES, dead, values, then=then)
        self._stop_if_poisoned(handler, deliveries[0], error)

    def reject_invalid(self, handler: Handler, deliveries: Sequence[Delivery]) -> None:
        """Store messages that are not events as dead letters, with the reason."""
        flaws = [delivery.flaw for delivery in deliveries]
        columns = [*encode_deliveries(deliveries), flaws, encode_bodies(deliveries)]
        values = self._database.handler_values(handler)
        self._database.run_rows("insert_invalid_messages", INVALID_TYPES, columns, values)

    def _stop_if_poisoned(self, handler: Handler, delivery: Delivery, error: str) -> None:
        """Stop a handler that is declared to stop at a dead letter."""
        if handler.on_poison == "stop":
            reason = format_stop_reason(delivery.tenant_id, delivery.event_id, error)
            values = {"handler": handler.name, "status": "stopped", "reason": reason}
            self._database.run("update_handler_status", values)

    # -- deferred and excluded events

    def defer(self, handler: Handler, deliveries: Sequence[Delivery]) -> None:
        """Store events that cannot be handled yet, so that their consumer may continue reading."""
        if deliveries:
            columns = [*encode_deliveries(deliveries), encode_bodies(deliveries)]
            values = self._database.handler_values(handler)
            self._database.run_rows(
                "defer_events", DEFERRED_TYPES, columns, values, then="mark_waiting_streams"
            )

    def pass_over(self, handler: Handler, deliveries: Iterable[Delivery]) -> None:
        """Record the events that the handler's filter excludes, so that no event waits for them.

        Raises:
            LogIdentityChanged: They come from another log than earlier events.
        """
        deliveries = self.add_log_identity(deliveries)
        streams = group_by_stream(deliveries)
        if not streams or handler.mode != "strict":
            return
        self.check_log_identity(handler, deliveries)
        first_runs = {key: find_first_run(key, excluded) for key, excluded in streams.items()}
        advanced = self.pass_ranges(handler, list(first_runs.values()))
        # Events that do not follow the settled ones yet are stored until they do.
        ahead = [
            delivery
            for key, excluded in streams.items()
            for delivery in excluded
            if key not in advanced or (delivery.stream_seq or 0) > first_runs[key].to_seq
        ]
        if ahead:
            values = self._database.handler_values(handler)
            columns = encode_deliveries(ahead)
            self._database.run_rows(
                "insert_passed_events", DELIVERY_TYPES, columns, values, then="mark_waiting_streams"
            )

    def pass_ranges(self, handler: Handler, ranges: Sequence[PassedRange]) -> set[StreamKey]:
        """Record ranges of sequence numbers that the handler passes over.

        A stream does not advance if an earlier event of it is unsettled.

        Returns:
            The streams that advanced.
        """
        if not ranges:
            return set()
        values = self._database.handler_values(handler)
        columns = encode_ranges(ranges)
        rows = self._database.run_rows("pass_ranges", RANGE_TYPES, columns, values)
        return {(row[0], row[1], row[2]) for row in rows}

    def due(self, handler: Handler, limit: int = 1000) -> list[Delivery]:
        """Return deferred events that are due, in order within each stream."""
        values = self._database.handler_values(handler) | {"limit": limit}
        # First, because blocked events are listed from the number to which a stream is settled.
        self.outage.run(lambda: self._advance_waiting(handler, values))
        rows = self._database.read("list_due_events", values)
        rows += self._database.read("list_blocked_events", values) if len(rows) < limit else []
        return [decode_deferred(row) for row in rows]

    def has_deferred(self, handler: Handler) -> bool:
        """Return whether deferred events may be due; this is cheaper than `due`."""
        return bool(self._database.read("find_deferred_event", {"handler": handler.name}))

    def _advance_waiting(self, handler: Handler, values: Mapping[str, Any]) -> None:
        """Advance waiting streams over skipped and passed events, and unmark those without any."""
        with self.engine.transaction() as session:
            if handler.at_most_once:
                session.run(self.sql["expire_unsafe_claims"], values)
            # An event that is deferred concurrently is visible after this statement. Otherwise the
            # flag of its stream could be cleared although it waits.
            session.run(self.sql["lock_waiting_streams"], values)
            session.run(self.sql["advance_waiting_streams"], values)
            session.run(self.sql["unmark_waiting_streams"], values)

    def mark_stale(self, handler: Handler, deliveries: Sequence[Delivery]) -> None:
        """Complete deferred events that have become stale."""
        if deliveries:
            values = self._database.handler_values(handler)
            self._database.run_rows(
                "complete_stale_events", DELIVERY_TYPES, encode_deliveries(deliveries), values
            )

    # -- cursors of sources

    def cursor(self, handler: Handler, source: str) -> str | None:
        """Return the cursor of a handler's consumers in a source, or None at the beginning."""
        rows = self._database.read("select_cursor", {"handler": handler.name, "source": source})
        return rows[0][0] if rows else None

    def move_cursor(self, handler: Handler, source: str, cursor: str) -> None:
        """Store the cursor of a handler's consumers in a source."""
        values = {"handler": handler.name, "source": source, "cursor": cursor}
        self._database.run("move_cursor", values)

    # -- operators

    def handlers(self) -> list[DeclaredHandler]:
        """Return every handler that was ever declared.

        Example:
            for declared in registry.handlers():
                print(declared.name, declared.status, declared.reason)
        """
        return self._admin.handlers()

    def logs(self) -> list[HandlerLog]:
        """Return the log that each handler is bound to, by tenant.

        Example:
            for bound in registry.logs():
                print(bound.handler, bound.tenant_id, bound.log_id, bound.epoch)
        """
        return self._admin.logs()

    def cursors(self) -> list[HandlerCursor]:
        """Return the cursors of each handler's workers, by source.

        Consumers of your own have no cursor here: they keep it in their subscription or offsets.

        Example:
            for cursor in registry.cursors():
                print(cursor.handler, cursor.source, cursor.position)
        """
        return self._admin.cursors()

    def counts(self, *, finished: bool = False, tenant_id: str | None = None) -> list[StatusCount]:
        """Count events by handler and status; counting finished ones takes longer.

        Args:
            finished: Whether to count finished events, too.
            tenant_id: Only events of this tenant.

        Example:
            for entry in registry.counts(finished=True):
                print(entry.handler, entry.status, entry.count)
        """
        return self._admin.counts(finished=finished, tenant_id=tenant_id)

    def count_entries(self, entry_filter: EntryFilter) -> list[StatusCount]:
        """Count the entries that a filter selects, by handler and status.

        Example:
            counts = registry.count_entries(EntryFilter(handler="receipts", status="dead"))
        """
        return self._admin.count_entries(entry_filter)

    def entries(self, entry_filter: EntryFilter, limit: int = 100) -> list[Entry]:
        """Return the entries that a filter selects, in the order of the log.

        Args:
            entry_filter: Selects the entries.
            limit: The maximum number of entries.

        Example:
            for entry in registry.entries(EntryFilter(handler="receipts", status="dead")):
                print(entry.event_id, entry.attempts, entry.error)
        """
        return self._admin.entries(entry_filter, limit)

    def event_entries(self, tenant_id: str, event_id: str, limit: int = 100) -> list[Entry]:
        """Return the entries of one event, also finished ones, by handler.

        Args:
            tenant_id: The tenant of the event.
            event_id: Its id.
            limit: The maximum number of entries.

        Example:
            for entry in registry.event_entries("default", "order-7-placed"):
                print(entry.handler, entry.status, entry.attempts)
        """
        return self._admin.event_entries(tenant_id, event_id, limit)

    # -- actions of operators: recorded in the journal of the log, if the registry has one

    def retry(self, entry_filter: EntryFilter, *, restart: bool = True, reason: str = "") -> int:
        """Make failed, dead and unknown events due at once.

        Args:
            entry_filter: Selects the events.
            restart: Whether to resume their handlers in any case if they have stopped; otherwise
                only if one of these events has stopped them.
            reason: Why, for the operators' journal.

        Returns:
            The number of events.

        Raises:
            NotFound: The filter names an event, and there is none to retry.

        Example:
            retried = registry.retry(EntryFilter(handler="receipts", status="dead"))
        """
        return self._admin.retry(entry_filter, restart=restart, reason=reason)

    def skip(self, entry_filter: EntryFilter, reason: str, *, restart: bool = True) -> int:
        """Mark unfinished events as skipped; they count as done.

        Args:
            entry_filter: Selects the events.
            reason: Why; it is stored with them, and in the operators' journal.
            restart: As for `retry`.

        Returns:
            The number of events.

        Raises:
            NotFound: The filter names an event, and there is none to skip.
            InvalidArgument: The reason is empty.

        Example:
            dead = EntryFilter(handler="receipts", status="dead")
            skipped = registry.skip(dead, "the customers were called")
        """
        return self._admin.skip(entry_filter, reason, restart=restart)

    def set_status(self, handler: str, status: str, reason: str = "") -> None:
        """Set the status of a handler.

        Args:
            handler: The name of the handler.
            status: `ready`, `paused` or `stopped`.
            reason: Why; it is stored and reported while the handler does not run.

        Raises:
            NotFound: There is no handler of this name.

        Example:
            registry.set_status("receipts", "paused", "the mail server is down")
        """
        self._admin.set_status(handler, status, reason)

    def prune(
        self,
        handler: str,
        older_s: float = 0.0,
        *,
        streamless: bool = False,
        finished_before: str | None = None,
        reason: str = "",
    ) -> int:
        """Delete entries finished more than `older_s` seconds ago; return their number.

        Args:
            handler: The name of the handler.
            older_s: The age in seconds, by the clock of the registry's database.
            streamless: Whether to delete entries of events without a stream too. Events of streams
                are still recognized as handled by their sequence number, these are not.
            finished_before: A time in RFC 3339 instead of an age: as many entries match as
                `count_prunable` has counted with the same time.
            reason: Why, for the operators' journal.

        Raises:
            NotFound: There is no handler of this name.
            InvalidArgument: `finished_before` is not a time.

        Example:
            deleted = registry.prune("receipts", 30 * 86_400, reason="older than a month")
        """
        return self._admin.prune(
            handler,
            older_s,
            streamless=streamless,
            finished_before=finished_before,
            reason=reason,
        )

    def count_prunable(
        self,
        handler: str,
        older_s: float = 0.0,
        *,
        streamless: bool = False,
        finished_before: str | None = None,
    ) -> int:
        """Return how many entries `prune` would delete with the same arguments.

        Example:
            print(registry.count_prunable("receipts", 30 * 86_400))
        """
        return self._admin.count_prunable(
            handler, older_s, streamless=streamless, finished_before=finished_before
        )

    def reset(
        self,
        handler: str,
        log: BaseLog,
        *,
        reason: str,
        tenant_id: str | None = None,
        position: int | None = None,
        dry_run: bool = False,
    ) -> list[ResetReport]:
        """Let a handler continue with a log that was restored or replaced.

        Entries of events that the log no longer has are deleted, and the progress in their streams
        and the cursors of workers are moved back, so that new events at these positions are
        handled as new. Entries of the shared history stay: their effects are not repeated.

        Args:
            handler: The name of the handler.
            log: The log.
            reason: Why; it is stored.
            tenant_id: The tenant; None for all.
            position: The head of the log right after the restore; by default the highest position
                at which registry and log have the same event.
            dry_run: Whether to change nothing.

        Returns:
            The deleted entries, by tenant.

        Raises:
            NotFound: There is no handler of this name.
            InvalidArgument: The reason is empty, or the position is wrong or required.

        Example:
            for report in registry.reset("receipts", log, reason="restored", dry_run=True):
                print(report)
        """
        return self._admin.reset(
            handler, log, reason=reason, tenant_id=tenant_id, position=position, dry_run=dry_run
        )
