"""Demo step: seats of a show as facts, reserved with conditional appends."""

from __future__ import annotations

from typing import Any

from seriatim import Filter, Query
from seriatim.examples.demo_report import DemoReport, make_demo_table


def make_seat_query(seat: str) -> Query:
    """Return the query for all events about one seat."""
    return Query([Filter(types=["seat.reserved", "seat.released"], payload=[{"seat": seat}])])


def make_reservation(seat: str, guest: str) -> dict[str, Any]:
    """Return an event that reserves a seat for a guest."""
    payload = {"seat": seat, "guest": guest, "price": {"amount": 48.5, "currency": "EUR"}}
    return {"event_type": "seat.reserved", "payload": payload, "tags": ["show:hamlet"]}


def run(report: DemoReport) -> None:
    """Reserve a seat, try it again with a stale version, reserve another, and release one."""
    report.start_step(
        "facts: query, then append only if the result is still current",
        "Proves: append_if compares the context version in the transaction that appends.",
    )
    facts = report.log.facts
    seat = make_seat_query("12A")
    table = make_demo_table("command", "context read", "result")
    empty = facts.query(seat).current_context_version
    ann = facts.append_if([make_reservation("12A", "ann")], seat, empty)
    table.add_row("ann reserves 12A", _format_version(empty), _format_result(ann))
    bob = facts.append_if([make_reservation("12A", "bob")], seat, empty)
    table.add_row("bob reserves 12A", _format_version(empty), _format_result(bob))
    other = facts.append_if([make_reservation("12B", "bob")], make_seat_query("12B"), None)
    table.add_row("bob reserves 12B", _format_version(None), _format_result(other))
    released = {"event_type": "seat.released", "payload": {"seat": "12A", "guest": "ann"}}
    current = facts.query(seat).current_context_version
    release = facts.append_if([released], seat, current)
    table.add_row("ann releases 12A", _format_version(current), _format_result(release))
    report.print(table)
    report.check("the stale command got a conflict and stored nothing", bool(ann) and not bob)
    report.check("other seats were not affected", bool(other) and bool(release))
    history = [event.payload["guest"] for event in facts.query(seat).event_records]
    report.check("seat 12A has ann's two events and none of bob's", history == ["ann"] * 2)


def _format_version(version: int | None) -> str:
    return "nothing yet" if version is None else f"version {version}"


def _format_result(result: Any) -> str:
    if result:
        return f"stored at {result.first_sequence_number}"
    expected = _format_version(result.expected_context_version)
    return f"conflict: expected {expected}, found {_format_version(result.actual_context_version)}"
