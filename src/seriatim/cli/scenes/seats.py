"""Seats of a show as plain facts: ask first, append only if the answer still holds."""

from __future__ import annotations

from typing import Any

from seriatim.cli.scenes.stage import Stage, sheet
from seriatim.core.query import Filter, Query


def seat_query(seat: str) -> Query:
    """Return the context of one seat: everything that was ever said about it."""
    return Query([Filter(types=["seat.reserved", "seat.released"], payload=[{"seat": seat}])])


def reservation(seat: str, guest: str) -> dict[str, Any]:
    """Return the fact that a guest has a seat."""
    payload = {"seat": seat, "guest": guest, "price": {"amount": 48.5, "currency": "EUR"}}
    return {"event_type": "seat.reserved", "payload": payload, "tags": ["show:hamlet"]}


def play(stage: Stage) -> None:
    """Reserve, try again with a stale version, release, and reserve anew."""
    stage.scene(
        "facts: ask, then append only if the answer still holds",
        "Proves: append_if compares the context's version in the same transaction that appends.",
    )
    facts = stage.log.facts
    seat = seat_query("12A")
    shown = sheet("command", "context read", "answer")
    empty = facts.query(seat).current_context_version
    ann = facts.append_if([reservation("12A", "ann")], seat, empty)
    shown.add_row("ann reserves 12A", _version(empty), _answer(ann))
    bob = facts.append_if([reservation("12A", "bob")], seat, empty)
    shown.add_row("bob reserves 12A", _version(empty), _answer(bob))
    other = facts.append_if([reservation("12B", "bob")], seat_query("12B"), None)
    shown.add_row("bob reserves 12B", _version(None), _answer(other))
    released = {"event_type": "seat.released", "payload": {"seat": "12A", "guest": "ann"}}
    seen = facts.query(seat).current_context_version
    gone = facts.append_if([released], seat, seen)
    shown.add_row("ann releases 12A", _version(seen), _answer(gone))
    stage.show(shown)
    stage.check("the stale command was told, not stored", bool(ann) and not bob)
    stage.check("another seat was never in its way", bool(other) and bool(gone))
    history = [one.payload["guest"] for one in facts.query(seat).event_records]
    stage.check("the log of 12A holds ann's two facts and none of bob's", history == ["ann"] * 2)


def _version(version: int | None) -> str:
    return "nothing yet" if version is None else f"version {version}"


def _answer(answer: Any) -> str:
    if answer:
        return f"stored at {answer.first_sequence_number}"
    expected = _version(answer.expected_context_version)
    return f"conflict: expected {expected}, found {_version(answer.actual_context_version)}"
