"""Claim several events of a handler, in rounds of few statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seriatim.core.errors import LogIdentityChanged
from seriatim.core.handler import Delivery, Handler
from seriatim.delivery.claims import (
    CANDIDATE_TYPES,
    Claim,
    EventKey,
    encode_candidates,
    find_stuck_streams,
    follows_stuck_event,
)
from seriatim.delivery.registry_database import RegistryDatabase

if TYPE_CHECKING:
    from seriatim.delivery.registry import Registry

_CLAIM_ROUNDS = 4  # events that become free between a claim and the verdicts are claimed again
_ABANDONED = "the lease expired in every attempt: each consumer that claimed it died or hung"


class ClaimRounds:
    """Claim the free events of a batch, and find the verdict of each refused one.

    An event may become free between the two steps, so they are repeated.
    """

    def __init__(self, registry: Registry, database: RegistryDatabase) -> None:
        self._registry = registry
        self._database = database

    def claim_all(
        self, handler: Handler, deliveries: Sequence[Delivery], passing: Sequence[Delivery]
    ) -> list[Claim]:
        """Claim events; see `Registry.claim_all`."""
        if not deliveries:
            return []
        deliveries = self._registry.add_log_identity(deliveries)
        passing = self._registry.add_log_identity(passing)
        claims: dict[EventKey, Claim] = {}
        # Each event once: Postgres updates no row twice in one statement.
        remaining = list({delivery.key: delivery for delivery in reversed(deliveries)}.values())
        for _ in range(_CLAIM_ROUNDS):
            claims |= self._claim_free(handler, remaining, passing)
            refused = [delivery for delivery in remaining if delivery.key not in claims]
            if not refused:
                break
            try:
                refusals, remaining = self._explain_refusals(handler, refused, passing)
            except LogIdentityChanged:
                self._release_claimed(handler, claims)
                raise
            claims |= refusals
            if not remaining:
                break
        else:  # other consumers were faster in every round
            claims |= {
                delivery.key: Claim(delivery=delivery, verdict="in_progress")
                for delivery in remaining
            }
        self._release_overtaking(handler, claims)
        # A delivery that occurs twice is claimed once: its repetition is in progress.
        return [
            claims.pop(delivery.key, Claim(delivery=delivery, verdict="in_progress"))
            for delivery in deliveries
        ]

    def _claim_free(
        self, handler: Handler, selected: Sequence[Delivery], passing: Sequence[Delivery]
    ) -> dict[EventKey, Claim]:
        """Claim the events that are free; after a lost response, find the claims by their owner."""
        by_key = {delivery.key: delivery for delivery in selected}
        values = self._database.handler_values(handler) | {"owner": self._database.new_call_owner()}
        columns = encode_candidates(selected, passing)

        def run(*statements: str) -> list[tuple[Any, ...]]:
            # Without a transaction around it, the claim holds its row locks for one round trip.
            with self._registry.engine.autocommit() as session:
                return [
                    row
                    for name in statements
                    for row in self._database.run_rows_in(
                        session, name, CANDIDATE_TYPES, columns, values
                    )
                ]

        rows = self._registry.outage.run(
            lambda: run("claim_events"), lambda: run("list_claims_of_owner", "claim_events")
        )
        return {
            (tenant_id, event_id): Claim(
                delivery=by_key[tenant_id, event_id],
                verdict="claimed",
                token=token,
                attempt=attempt,
            )
            for tenant_id, event_id, token, attempt in rows
        }

    def _explain_refusals(
        self, handler: Handler, refused: Sequence[Delivery], passing: Sequence[Delivery]
    ) -> tuple[dict[EventKey, Claim], list[Delivery]]:
        """Return the verdicts of refused events, and the events that have become free meanwhile."""
        columns = encode_candidates(refused, passing)
        values = self._database.handler_values(handler)
        rows = self._database.run_rows("list_refusals", CANDIDATE_TYPES, columns, values)
        if any(row[2] in ("foreign", "unknown_log") for row in rows):
            # It binds the log, or raises.
            self._registry.check_log_identity(handler, [*refused, *passing])
            return {}, list(refused)
        by_key = {delivery.key: delivery for delivery in refused}
        exhausted = [by_key[row[0], row[1]] for row in rows if row[2] == "exhausted"]
        if exhausted:
            self._registry.mark_dead(handler, exhausted, _ABANDONED)
        refusals = {
            (tenant_id, event_id): Claim(
                delivery=by_key[tenant_id, event_id],
                verdict="dead" if verdict == "exhausted" else verdict,
                settled_seq=settled_seq,
                attempt=attempt,
                due_us=due_us,
            )
            for tenant_id, event_id, verdict, settled_seq, due_us, attempt in rows
            if verdict != "free"
        }
        return refusals, [by_key[row[0], row[1]] for row in rows if row[2] == "free"]

    def _release_claimed(self, handler: Handler, claims: dict[EventKey, Claim]) -> None:
        claimed = [claim for claim in claims.values() if claim.claimed]
        if claimed:
            self._registry.release(handler, claimed)

    def _release_overtaking(self, handler: Handler, claims: dict[EventKey, Claim]) -> None:
        """Release claims after an event of the same stream that another consumer has claimed."""
        stuck = find_stuck_streams(claims.values()) if handler.mode == "strict" else {}
        if not stuck:
            return
        # An event is free if its predecessors in the batch are free too. While the claim waited for
        # the row of a predecessor, another consumer may have won that one.
        overtaking = [claim for claim in claims.values() if follows_stuck_event(claim, stuck)]
        if overtaking:
            self._registry.release(handler, overtaking)
            for claim in overtaking:
                claims[claim.delivery.key] = Claim(delivery=claim.delivery, verdict="blocked")
