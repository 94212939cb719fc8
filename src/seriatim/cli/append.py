"""The command `seriatim append`: append one event, or a batch of events atomically."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from seriatim.cli import event_options as options
from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
    parse_json_argument,
    parse_number_or_none,
)
from seriatim.cli.output import write_json
from seriatim.cli.query_options import query_from_json
from seriatim.core.event import AppendResult
from seriatim.core.request import Condition, ExpectedContext, ExpectedSeq
from seriatim.log.arguments import invalid_argument


def append(
    ctx: typer.Context,
    event_type: options.Type = None,
    payload: options.Payload = None,
    stream: options.Stream = None,
    stream_seq: options.StreamSeq = None,
    event_version: options.EventVersion = None,
    tags: options.Tags = None,
    event_id: options.EventId = None,
    occurred_at: options.OccurredAt = None,
    actor: options.Actor = None,
    producer_id: options.Producer = None,
    source_system: options.Source = None,
    source_subsystem: options.Subsystem = None,
    request_id: options.RequestId = None,
    correlation_id: options.CorrelationId = None,
    causation_id: options.CausationId = None,
    app_id: options.AppId = None,
    env_id: options.EnvId = None,
    metadata: options.Metadata = None,
    batch: options.Batch = None,
    key: options.Key = None,
    expect_seq: options.ExpectSeq = None,
    expect_version: options.ExpectVersion = None,
    expect_after: options.ExpectAfter = None,
    expect_query: options.ExpectQuery = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Append one event, or with --batch several events atomically."""
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
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        fields["metadata"] = _parse_metadata(metadata or [])
        given = {name: value for name, value in fields.items() if value is not None}
        conditions = [
            *_expected_seq(stream, expect_seq),
            *_expected_context(expect_query, expect_version, expect_after),
        ]
        events = [_parse_event(given)] if batch is None else _read_batch(batch, given)
        with command.open() as log:
            _print_receipt(command, log.append(events, conditions or None, key))


def _parse_metadata(entries: list[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or name in found:
            raise invalid_argument("--metadata", "must be KEY=VALUE, with each key given once")
        found[name] = value
    return found or None


def _parse_event(given: dict[str, Any]) -> dict[str, Any]:
    if "event_type" not in given:
        raise invalid_argument("TYPE", "is required unless --batch is given")
    text = given.get("payload", "{}")
    payload = parse_json_argument(sys.stdin.read() if text == "-" else text, "PAYLOAD")
    return {**given, "payload": payload}


def _read_batch(file: Path, given: dict[str, Any]) -> list[Any]:
    # --stream stays allowed: --expect-seq needs it.
    conflicting = [name for name in given if name != "stream"]
    if conflicting:
        raise invalid_argument(
            "--batch", f"contains whole events: leave out {', '.join(conflicting)}"
        )
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    return [
        parse_json_argument(line, f"--batch, line {number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]


def _expected_seq(stream: options.NamePair, text: str | None) -> list[Condition]:
    if text is None:
        return []
    if stream is None:
        raise invalid_argument("--expect-seq", "requires --stream")
    return [ExpectedSeq(stream, parse_number_or_none(text, "--expect-seq"))]


def _expected_context(query: str | None, version: str | None, after: int | None) -> list[Condition]:
    if version is not None and after is not None:
        raise invalid_argument("--expect-after", "cannot be combined with --expect-version")
    if (query is None) != (version is None and after is None):
        raise invalid_argument(
            "--expect-query", "must be combined with --expect-version or --expect-after"
        )
    if query is None:
        return []
    context = query_from_json(query, "--expect-query")
    if after is not None:
        return [ExpectedContext(context, after=after)]
    return [ExpectedContext(context, parse_number_or_none(version or "", "--expect-version"))]


def _print_receipt(command: CommandSession, result: AppendResult) -> None:
    first, last = result.first_position, result.last_position
    if command.as_json:
        events = [
            {
                "position": record.position,
                "event_id": record.event_id,
                "stream_seq": record.stream_seq,
            }
            for record in result.records
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
    verb = "already stored" if result.replayed else "appended"
    place = f"position {first}" if first == last else f"positions {first} to {last}"
    command.stdout.print(f"{verb} at {place}")
