"""The commands `append`, `explain` (with the same options) and `receipt`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from seriatim.cli import exit_codes
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
from seriatim.cli.output import EventLines, escape_unprintable, make_table, write_json
from seriatim.cli.read import parse_query
from seriatim.core.errors import NotFound
from seriatim.core.event import AppendResult
from seriatim.core.explanation import Explanation
from seriatim.core.request import Condition, ExpectedContext, ExpectedSeq
from seriatim.factory import Log
from seriatim.log.arguments import invalid_argument

NamePair = tuple[str, str] | None

_Text = str | None
_Number = int | None
_Texts = list[str] | None


def _field(name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(
        name, help=help, metavar=metavar, show_default=False, rich_help_panel="The event"
    )


def _option(name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, metavar=metavar, show_default=False)


Type = Annotated[_Text, typer.Argument(metavar="TYPE", help="The event type.")]
Payload = Annotated[
    _Text,
    typer.Argument(
        metavar="PAYLOAD", help="The payload, a JSON object; - reads stdin. [default: {}]"
    ),
]

Stream = Annotated[NamePair, _field("--stream", "The stream: its type and its id.", "TYPE ID")]
StreamSeq = Annotated[_Number, _field("--seq", "The sequence number in the stream.")]
EventVersion = Annotated[
    _Number, _field("--event-version", "The version of the payload's schema. [default: 1]")
]
Tags = Annotated[_Texts, _field("--tag", "A tag; may be repeated.")]
EventId = Annotated[_Text, _field("--event-id", "The event id. [default: a new UUIDv7]")]
OccurredAt = Annotated[
    _Text, _field("--occurred-at", "The time the event occurred. [default: now]", "RFC3339")
]
Actor = Annotated[NamePair, _field("--actor", "The actor: its type and its id.", "TYPE ID")]
Producer = Annotated[_Text, _field("--producer", "The producer that writes the event.")]
Source = Annotated[_Text, _field("--source", "The system the event comes from.")]
Subsystem = Annotated[_Text, _field("--subsystem", "The part of that system.")]
RequestId = Annotated[_Text, _field("--request-id", "The request that caused the event.")]
CorrelationId = Annotated[_Text, _field("--correlation-id", "The id that related events share.")]
CausationId = Annotated[
    _Text, _field("--causation-id", "The id of the event that caused this one.")
]
AppId = Annotated[_Text, _field("--app-id", "The application; reads can filter by it.")]
EnvId = Annotated[_Text, _field("--env-id", "The environment; reads can filter by it.")]
Metadata = Annotated[
    _Texts, _field("--metadata", "A metadata entry; may be repeated.", "KEY=VALUE")
]

Batch = Annotated[
    Path | None,
    _option(
        "--batch",
        "Instead of one event: an NDJSON file of events, stored in one append; - reads stdin.",
        "FILE",
    ),
]
Key = Annotated[_Text, _option("--key", "The idempotency key of the append.")]
ExpectSeq = Annotated[
    _Text,
    _option(
        "--expect-seq",
        "Append only if this is the last sequence number of the stream; none: only if the stream "
        "does not exist.",
        "N|none",
    ),
]
ExpectVersion = Annotated[
    _Text,
    _option(
        "--expect-version",
        "Append only if this is still the version of the context; none: only if nothing matches.",
        "N|none",
    ),
]
ExpectAfter = Annotated[
    _Number,
    _option(
        "--expect-after",
        "Append only if no event of the context was appended after this position.",
        "N",
    ),
]
ExpectQuery = Annotated[
    _Text,
    _option(
        "--expect-query",
        "The query of the context for --expect-version or --expect-after.",
        "JSON",
    ),
]


def append(
    ctx: typer.Context,
    event_type: Type = None,
    payload: Payload = None,
    stream: Stream = None,
    stream_seq: StreamSeq = None,
    event_version: EventVersion = None,
    tags: Tags = None,
    event_id: EventId = None,
    occurred_at: OccurredAt = None,
    actor: Actor = None,
    producer_id: Producer = None,
    source_system: Source = None,
    source_subsystem: Subsystem = None,
    request_id: RequestId = None,
    correlation_id: CorrelationId = None,
    causation_id: CausationId = None,
    app_id: AppId = None,
    env_id: EnvId = None,
    metadata: Metadata = None,
    batch: Batch = None,
    key: Key = None,
    expect_seq: ExpectSeq = None,
    expect_version: ExpectVersion = None,
    expect_after: ExpectAfter = None,
    expect_query: ExpectQuery = None,
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
        event_fields = {name: value for name, value in fields.items() if value is not None}
        conditions = [
            *_make_seq_condition(stream, expect_seq),
            *_make_context_condition(expect_query, expect_version, expect_after),
        ]
        events = [_parse_event(event_fields)] if batch is None else _read_batch(batch, event_fields)
        with command.open() as log:
            _ACTIONS[ctx.info_name or "append"](command, log, events, conditions or None, key)


def _parse_metadata(entries: list[str]) -> dict[str, str] | None:
    metadata: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or name in metadata:
            raise invalid_argument("--metadata", "must be KEY=VALUE, with each key given once")
        metadata[name] = value
    return metadata or None


def _parse_event(event_fields: dict[str, Any]) -> dict[str, Any]:
    if "event_type" not in event_fields:
        raise invalid_argument("TYPE", "is required unless --batch is given")
    text = event_fields.get("payload", "{}")
    payload = parse_json_argument(sys.stdin.read() if text == "-" else text, "PAYLOAD")
    return {**event_fields, "payload": payload}


def _read_batch(file: Path, event_fields: dict[str, Any]) -> list[Any]:
    # --stream stays allowed: --expect-seq needs it.
    conflicting = [name for name in event_fields if name != "stream"]
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


def _make_seq_condition(stream: NamePair, text: str | None) -> list[Condition]:
    if text is None:
        return []
    if stream is None:
        raise invalid_argument("--expect-seq", "requires --stream")
    return [ExpectedSeq(stream, parse_number_or_none(text, "--expect-seq"))]


def _make_context_condition(
    query: str | None, version: str | None, after: int | None
) -> list[Condition]:
    if version is not None and after is not None:
        raise invalid_argument("--expect-after", "cannot be combined with --expect-version")
    if (query is None) != (version is None and after is None):
        raise invalid_argument(
            "--expect-query", "must be combined with --expect-version or --expect-after"
        )
    if query is None:
        return []
    context = parse_query(query, "--expect-query")
    if after is not None:
        return [ExpectedContext(context, after=after)]
    return [ExpectedContext(context, parse_number_or_none(version or "", "--expect-version"))]


Conditions = list[Condition] | None


def _append(
    command: CommandSession, log: Log, events: list[Any], conditions: Conditions, key: str | None
) -> None:
    _print_receipt(command, log.append(events, conditions, key))


def _explain(
    command: CommandSession, log: Log, events: list[Any], conditions: Conditions, key: str | None
) -> None:
    explanation = log.explain(events, conditions, key)
    if command.as_json:
        write_json(_encode_explanation(explanation))
    else:
        _print_explanation(command, explanation)
    if explanation.error is not None:
        raise typer.Exit(exit_codes.exit_code(explanation.error))


_ACTIONS = {"append": _append, "explain": _explain}


def _encode_explanation(explanation: Explanation) -> dict[str, Any]:
    error = explanation.error
    return {
        "outcome": explanation.outcome,
        "steps": explanation.steps,
        "error": None if error is None else error.as_dict(),
        "first_position": explanation.first_position,
        "stream_seqs": explanation.stream_seqs,
        "response": explanation.response,
        "id_mismatch": explanation.id_mismatch,
        "events": [record.as_dict() for record in explanation.events],
    }


def _print_explanation(command: CommandSession, explanation: Explanation) -> None:
    rows = make_table("step", "result")
    for step in explanation.steps:
        name = step.step if step.index is None else f"{step.step} {step.index}"
        rows.add_row(name, step.result)
    command.stdout.print(rows)
    if explanation.error is not None:
        error = explanation.error
        command.stdout.print(Text(escape_unprintable(f"{error.code}: {error.message}")))
    lines = EventLines(command.stdout)
    for record in explanation.events:
        lines.print_event(record)
    position = explanation.first_position
    meaning = {
        "accepted": f"accepted: it would be appended at position {position}",
        "replayed": f"replayed: it is already stored at position {position}",
        "refused": "refused: nothing would be stored",
    }
    command.stdout.print(meaning[explanation.outcome])


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
    positions = f"position {first}" if first == last else f"positions {first} to {last}"
    command.stdout.print(f"{verb} at {positions}")


def receipt(
    ctx: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The idempotency key.")],
    producer_id: Annotated[
        _Text, typer.Option("--producer", help="The producer of the events.", show_default=False)
    ] = None,
    actor: Annotated[
        _Text, typer.Option(help="For a command: the actor that sent it.", show_default=False)
    ] = None,
    endpoint: Annotated[
        _Text,
        typer.Option(
            help="For a command: its endpoint, such as 'POST /v1/events'.", show_default=False
        ),
    ] = None,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Print the receipt of the append stored under a key, with its response and its events."""
    with command_session(ctx, CommonOptions(url, tenant, as_json)) as command:
        if (actor is None) != (endpoint is None):
            raise invalid_argument("--actor", "and --endpoint must be given together")
        if actor is not None and producer_id is not None:
            raise invalid_argument("--producer", "cannot be combined with --actor")
        with command.open() as log:
            if actor is not None and endpoint is not None:
                stored = log.find_command(actor=actor, endpoint=endpoint, key=key)
            else:
                stored = log.find_append(key, producer_id=producer_id)
        if stored is None:
            msg = f"no append is stored under the key {key!r:.80}: check --producer and --tenant"
            raise NotFound(msg)
        _print_stored_append(command, stored)


def _print_stored_append(command: CommandSession, stored: AppendResult) -> None:
    first = stored.records[0]
    if command.as_json:
        write_json(
            {
                "first_position": stored.first_position,
                "last_position": stored.last_position,
                "recorded_at": first.recorded_at,
                "actor_type": first.actor_type,
                "actor_id": first.actor_id,
                "response": stored.response,
                "records": [record.as_dict() for record in stored.records],
            }
        )
        return
    lines = EventLines(command.stdout)
    for record in stored.records:
        lines.print_event(record)
    positions = f"{stored.first_position} to {stored.last_position}"
    command.stdout.print(f"stored at positions {positions}, {first.recorded_at}")
    if stored.response is not None:
        write_json(stored.response)
