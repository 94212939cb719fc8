"""`seriatim append`: one event from the command line, or a batch of them as one append."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from seriatim.cli import event_options as given
from seriatim.cli.filters import query_from_json
from seriatim.cli.output import write_json
from seriatim.cli.session import (
    AsJson,
    Common,
    Session,
    Tenant,
    Url,
    json_argument,
    number_or_none,
    session,
)
from seriatim.core.event import AppendResult
from seriatim.core.request import Condition, ExpectedContext, ExpectedSeq
from seriatim.log.arguments import bad


def append(  # noqa: PLR0913 - an event has that many fields
    ctx: typer.Context,
    event_type: given.Type = None,
    payload: given.Payload = None,
    stream: given.Stream = None,
    stream_seq: given.StreamSeq = None,
    event_version: given.EventVersion = None,
    tags: given.Tags = None,
    event_id: given.EventId = None,
    occurred_at: given.OccurredAt = None,
    actor: given.Actor = None,
    producer_id: given.Producer = None,
    source_system: given.Source = None,
    source_subsystem: given.Subsystem = None,
    request_id: given.RequestId = None,
    correlation_id: given.CorrelationId = None,
    causation_id: given.CausationId = None,
    app_id: given.AppId = None,
    env_id: given.EnvId = None,
    metadata: given.Metadata = None,
    batch: given.Batch = None,
    key: given.Key = None,
    expect_seq: given.ExpectSeq = None,
    expect_version: given.ExpectVersion = None,
    expect_after: given.ExpectAfter = None,
    expect_query: given.ExpectQuery = None,
    url: Url = None,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Append an event, or a batch of events, all or nothing."""
    fields: dict[str, Any] = {
        "event_type": event_type,
        "payload": payload,
        "stream": stream,
        "stream_seq": stream_seq,
        "event_version": event_version,
        "tags": tags or None,
        "event_id": event_id,
        "occurred_at": occurred_at,
        "actor_type": None if actor is None else actor[0],
        "actor_id": None if actor is None else actor[1],
        "producer_id": producer_id,
        "source_system": source_system,
        "source_subsystem": source_subsystem,
        "request_id": request_id,
        "correlation_id": correlation_id,
        "causation_id": causation_id,
        "app_id": app_id,
        "env_id": env_id,
    }
    with session(ctx, Common(url, tenant, as_json)) as one:
        fields["metadata"] = _metadata(metadata or [])
        named = {name: value for name, value in fields.items() if value is not None}
        conditions = [
            *_expected_seq(stream, expect_seq),
            *_expected_context(expect_query, expect_version, expect_after),
        ]
        events = [_event(named)] if batch is None else _batch(batch, named)
        with one.open() as log:
            _show(one, log.append(events, conditions or None, key))


def _metadata(entries: list[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or name in found:
            raise bad("--metadata", "must be KEY=VALUE, each key once")
        found[name] = value
    return found or None


def _event(named: dict[str, Any]) -> dict[str, Any]:
    if "event_type" not in named:
        raise bad("TYPE", "is required, or a --batch of events instead")
    text = named.get("payload", "{}")
    payload = json_argument(sys.stdin.read() if text == "-" else text, "PAYLOAD")
    return {**named, "payload": payload}


def _batch(file: Path, named: dict[str, Any]) -> list[Any]:
    beside = [name for name in named if name != "stream"]
    if beside:
        raise bad("--batch", f"brings its events along: leave out {', '.join(beside)}")
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    return [
        json_argument(line, f"--batch, line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]


def _expected_seq(stream: given.Pair, text: str | None) -> list[Condition]:
    if text is None:
        return []
    if stream is None:
        raise bad("--expect-seq", "needs a --stream")
    return [ExpectedSeq(stream, number_or_none(text, "--expect-seq"))]


def _expected_context(query: str | None, version: str | None, after: int | None) -> list[Condition]:
    if version is not None and after is not None:
        raise bad("--expect-after", "and --expect-version exclude each other")
    if (query is None) != (version is None and after is None):
        raise bad("--expect-query", "comes together with --expect-version or --expect-after")
    if query is None:
        return []
    context = query_from_json(query, "--expect-query")
    if after is not None:
        return [ExpectedContext(context, after=after)]
    return [ExpectedContext(context, number_or_none(version or "", "--expect-version"))]


def _show(one: Session, result: AppendResult) -> None:
    first, last = result.first_position, result.last_position
    if one.as_json:
        events = [
            {"position": each.position, "event_id": each.event_id, "stream_seq": each.stream_seq}
            for each in result.records
        ]
        write_json(
            {
                "first_position": first,
                "last_position": last,
                "count": result.count,
                "replayed": result.replayed,
                "events": events,
            }
        )
        return
    did = "was stored before" if result.replayed else "appended"
    where = f"position {first}" if first == last else f"positions {first} to {last}"
    one.out.print(f"{did} at {where}")
