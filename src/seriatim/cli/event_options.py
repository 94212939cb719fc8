"""The options of `seriatim append`: an event's fields, and on what condition it is appended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

Pair = tuple[str, str] | None

_Text = str | None
_Number = int | None
_Texts = list[str] | None


def _field(name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(
        name, help=help, metavar=metavar, show_default=False, rich_help_panel="The event"
    )


def _option(name: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(name, help=help, metavar=metavar, show_default=False)


Type = Annotated[_Text, typer.Argument(metavar="TYPE", help="What happened.")]
Payload = Annotated[
    _Text, typer.Argument(metavar="PAYLOAD", help="A JSON object; - reads stdin. [default: {}]")
]

Stream = Annotated[Pair, _field("--stream", "Whose history: its type and its id.", "TYPE ID")]
StreamSeq = Annotated[_Number, _field("--seq", "Its number in the stream.")]
EventVersion = Annotated[_Number, _field("--event-version", "Of its payload. [default: 1]")]
Tags = Annotated[_Texts, _field("--tag", "May be repeated.")]
EventId = Annotated[_Text, _field("--event-id", "Its own id. [default: a new UUIDv7]")]
OccurredAt = Annotated[_Text, _field("--occurred-at", "When. [default: now]", "RFC3339")]
Actor = Annotated[Pair, _field("--actor", "Who did it.", "TYPE ID")]
Producer = Annotated[_Text, _field("--producer", "What wrote it.")]
Source = Annotated[_Text, _field("--source", "The system it comes from.")]
Subsystem = Annotated[_Text, _field("--subsystem", "And the part of that system.")]
RequestId = Annotated[_Text, _field("--request-id", "The request behind it.")]
CorrelationId = Annotated[_Text, _field("--correlation-id", "What it is part of.")]
CausationId = Annotated[_Text, _field("--causation-id", "The event behind it.")]
AppId = Annotated[_Text, _field("--app-id", "A scope that reads filter by.")]
EnvId = Annotated[_Text, _field("--env-id", "A scope that reads filter by.")]
Metadata = Annotated[_Texts, _field("--metadata", "May be repeated.", "KEY=VALUE")]

Batch = Annotated[
    Path | None,
    _option("--batch", "Instead: events as NDJSON, all in one append; - reads stdin.", "FILE"),
]
Key = Annotated[_Text, _option("--key", "The append's idempotency key.")]
ExpectSeq = Annotated[
    _Text,
    _option("--expect-seq", "Only if it is the stream's last number; none: no stream.", "N|none"),
]
ExpectVersion = Annotated[
    _Text,
    _option("--expect-version", "Only if it is still the context's version.", "N|none"),
]
ExpectAfter = Annotated[
    _Number,
    _option("--expect-after", "Only if nothing of the context came after this position.", "N"),
]
ExpectQuery = Annotated[
    _Text, _option("--expect-query", "The context of --expect-version or --expect-after.", "JSON")
]
