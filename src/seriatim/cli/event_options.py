"""The options of `seriatim append`: the fields of an event, and the conditions of the append."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

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
