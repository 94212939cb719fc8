"""Claiming events, keeping claims alive, and ending them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from seriatim.core.errors import LeaseLost, LogIdentityChanged
from seriatim.core.handling import Delivery, Handler
from seriatim.delivery.acts import Acts
from seriatim.delivery.claims import (
    DELIVERED,
    HELD,
    JUDGED,
    Claim,
    Key,
    Line,
    Verdict,
    delivered,
    held,
    judged,
)
from seriatim.delivery.entries import stop_reason
from seriatim.store.engine import Session

_ENDED = {
    **HELD,
    "new_status": "text",
    "new_error": "text",
    "new_event": "text",
    "pause_us": "integer",
    "unspent": "integer",
}
_BURIED = {"of_tenant": "text", "of_event": "text", "new_error": "text", "new_event": "text"}
_REFUSED = {**DELIVERED, "error": "text", "event": "text"}
_TRIES = 4  # what became free between a claim and the look at why not is asked for again
_GONE = "whoever claimed it was gone before it ended, every time"


class Claiming(Acts):
    """The part of the registry that gives rights and takes them back."""

    def claim_all(
        self,
        handler: Handler,
        deliveries: Sequence[Delivery],
        passing: Sequence[Delivery] = (),
    ) -> list[Claim]:
        """Claim many events at once; each gets its own verdict.

        Those of one stream that are claimed together are to be handled in the order of their
        numbers, and none of them after one that failed. `passing` are events between them that the
        handler's filter passes over; `pass_over` is told of them when the others have ended.

        Raise `LogIdentityChanged`, with nothing claimed, for events of another log or epoch than
        those that the handler has handled before.
        """
        if not deliveries:
            return []
        deliveries, passing = self.identified(deliveries), self.identified(passing)
        claims: dict[Key, Claim] = {}
        asked = list({one.key: one for one in reversed(deliveries)}.values())
        for _ in range(_TRIES):
            claims |= self._won(handler, asked, passing)
            refused = [one for one in asked if one.key not in claims]
            if not refused:
                break
            try:
                refusals, asked = self._refusals(handler, refused, passing)
            except LogIdentityChanged:
                self._release_won(handler, claims)
                raise
            claims |= refusals
            if not asked:
                break
        else:  # others were faster, every time
            claims |= {one.key: Claim(delivery=one, verdict="in_progress") for one in asked}
        self._release_overtakers(handler, claims)
        return [
            claims.pop(one.key, Claim(delivery=one, verdict="in_progress")) for one in deliveries
        ]

    def _won(
        self, handler: Handler, wanted: Sequence[Delivery], passing: Sequence[Delivery]
    ) -> dict[Key, Claim]:
        """Claim what is free; if the answer is lost on the way, look what it was."""
        by_key = {one.key: one for one in wanted}
        values = self._values(handler) | {"owner": self._call()}
        columns = judged(wanted, passing)

        def act(*statements: str) -> list[tuple[Any, ...]]:
            with self.engine.at_once() as session:
                return [
                    row
                    for name in statements
                    for row in self._rows_in(session, name, JUDGED, columns, values)
                ]

        found = self.outage.through(lambda: act("claim"), lambda: act("claimed_by", "claim"))
        return {
            (tenant_id, event_id): Claim(
                delivery=by_key[tenant_id, event_id],
                verdict="claimed",
                token=token,
                attempt=attempt,
            )
            for tenant_id, event_id, token, attempt in found
        }

    def _refusals(
        self, handler: Handler, refused: Sequence[Delivery], passing: Sequence[Delivery]
    ) -> tuple[dict[Key, Claim], list[Delivery]]:
        """Say why, and what has become free meanwhile."""
        found = self._rows("look", JUDGED, judged(refused, passing), self._values(handler))
        if any(row[2] in ("foreign", "unknown_log") for row in found):
            self.admit(handler, [*refused, *passing])  # or raise
            return {}, list(refused)
        by_key = {one.key: one for one in refused}
        spent = [by_key[row[0], row[1]] for row in found if row[2] == "exhausted"]
        if spent:
            self.bury(handler, spent, _GONE)
        said: dict[str, Verdict] = {"exhausted": "dead"}
        refusals = {
            (tenant_id, event_id): Claim(
                delivery=by_key[tenant_id, event_id],
                verdict=said.get(verdict, verdict),
                settled_seq=settled_seq,
                attempt=attempt,
                due_us=due_us,
            )
            for tenant_id, event_id, verdict, settled_seq, due_us, attempt in found
            if verdict != "free"
        }
        return refusals, [by_key[row[0], row[1]] for row in found if row[2] == "free"]

    def _release_won(self, handler: Handler, claims: dict[Key, Claim]) -> None:
        won = [claim for claim in claims.values() if claim.claimed]
        if won:
            self.release(handler, won)

    def _release_overtakers(self, handler: Handler, claims: dict[Key, Claim]) -> None:
        """Give back what was claimed behind an event that another one has won meanwhile."""
        stuck = _stuck(claims.values()) if handler.mode == "strict" else {}
        if not stuck:
            return
        over = [claim for claim in claims.values() if claim.claimed and _behind(claim, stuck)]
        if over:
            self.release(handler, over)
            for claim in over:
                claims[claim.delivery.key] = Claim(delivery=claim.delivery, verdict="blocked")

    def heartbeat(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """Keep claims for another lease; `lease_lost` if somebody has one of them now."""
        check_held(claims, self._rows("renew", HELD, held(claims), self._values(handler)))

    # -- what became of them

    def mark_done(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """End claims whose effect was had; their streams move on in the same transaction."""
        values = self._values(handler) | {"again": 1}
        check_held(claims, self._rows("done", HELD, held(claims), values, then="move"))

    def mark_done_in(self, session: Session, handler: Handler, claims: Sequence[Claim]) -> None:
        """End claims in the transaction that has their effects; without all of them, raise."""
        values = self._values(handler) | {"again": 0}
        check_held(claims, self._rows_in(session, "done", HELD, held(claims), values, "move"))

    def mark_failed(
        self, handler: Handler, claim: Claim, error: str, *, pause_s: float | None = None
    ) -> None:
        """End an attempt that failed: again after a pause, or without one a dead letter."""
        if pause_s is None:
            self._end(handler, [claim], ["dead"], error)
            self._poisoned(handler, claim.delivery, error)
        else:
            self._end(handler, [claim], ["failed"], error, pause_s=pause_s)

    def release(self, handler: Handler, claims: Sequence[Claim]) -> None:
        """Give back claims that nothing was done with; the attempt is not counted."""
        ordered = handler.mode == "strict"
        statuses = ["blocked" if ordered and claim.delivery.line else "failed" for claim in claims]
        self._end(handler, claims, statuses, "", unspent=1)

    def _end(  # noqa: PLR0913 - what is written of an attempt
        self,
        handler: Handler,
        claims: Sequence[Claim],
        statuses: list[str],
        error: str,
        *,
        pause_s: float = 0.0,
        unspent: int = 0,
    ) -> None:
        count = len(claims)
        columns: list[list[Any]] = [
            *held(claims),
            statuses,
            [error] * count,
            [claim.delivery.body for claim in claims],
            [int(pause_s * 1_000_000)] * count,
            [unspent] * count,
        ]
        then = "wait" if unspent else "move"
        ended = self._rows("failed", _ENDED, columns, self._values(handler), then=then)
        check_held(claims, ended)

    def bury(self, handler: Handler, deliveries: Sequence[Delivery], error: str) -> None:
        """Make dead letters of events whose owners went away once too often."""
        columns: list[list[Any]] = [
            [one.tenant_id for one in deliveries],
            [one.event_id for one in deliveries],
            [error] * len(deliveries),
            [one.body for one in deliveries],
        ]
        self._rows("bury", _BURIED, columns, self._values(handler), then="move")
        self._poisoned(handler, deliveries[0], error)

    def refuse(self, handler: Handler, deliveries: Sequence[Delivery]) -> None:
        """Keep what is no event as dead letters, for people to look at."""
        bodies = [one.body for one in deliveries]
        columns = [*delivered(deliveries), [one.flaw for one in deliveries], bodies]
        self._rows("refuse", _REFUSED, columns, self._values(handler))

    def _poisoned(self, handler: Handler, delivery: Delivery, error: str) -> None:
        if handler.on_poison == "stop":
            reason = stop_reason(delivery.tenant_id, delivery.event_id, error)
            self._run(
                "set_handler", {"handler": handler.name, "status": "stopped", "reason": reason}
            )


def check_held(claims: Sequence[Claim], ended: Sequence[tuple[Any, ...]]) -> None:
    """Refuse to believe in claims that the database does not know as ours."""
    known = {(row[0], row[1]) for row in ended}
    lost = [claim.delivery.event_id for claim in claims if claim.delivery.key not in known]
    if lost:
        msg = f"the claim of event {lost[0]} is somebody else's now, or was ended already"
        raise LeaseLost(msg, details={"event_ids": lost[:10], "lost": len(lost)})


def _stuck(claims: Iterable[Claim]) -> dict[Line, int]:
    """Return the first number of each stream that is neither settled nor claimed by us."""
    found: dict[Line, int] = {}
    for claim in claims:
        line, seq = claim.delivery.line, claim.delivery.stream_seq
        if line is None or seq is None or claim.claimed or claim.settled:
            continue
        if claim.settled_seq is None or seq > claim.settled_seq:
            found[line] = min(seq, found.get(line, seq))
    return found


def _behind(claim: Claim, stuck: Mapping[Line, int]) -> bool:
    line, seq = claim.delivery.line, claim.delivery.stream_seq
    return line is not None and seq is not None and seq > stuck.get(line, seq)
