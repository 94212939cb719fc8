"""Options that select events by type, stream, tag and payload, and the query made from them."""

from __future__ import annotations

from typing import Annotated

import typer

from seriatim.cli.command_session import parse_json_argument
from seriatim.core.query import MATCH_ALL, Filter, Query
from seriatim.log.arguments import invalid_argument

Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type", help="Only this event type, or a pattern such as seat.*; may be repeated."
    ),
]
Stream = Annotated[
    tuple[str, str] | None,
    typer.Option("--stream", help="Only this stream: its type and its id.", metavar="TYPE ID"),
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", help="Only events with this tag; if repeated, with all of the tags."),
]
Payloads = Annotated[
    list[str] | None,
    typer.Option(
        "--payload",
        metavar="JSON",
        help='Only events whose payload contains this, such as \'{"seat": "12A"}\'; if repeated, '
        "any of them.",
    ),
]
QueryJson = Annotated[
    str | None,
    typer.Option(
        "--query",
        metavar="JSON",
        help="A complete query instead of the options above: "
        '{"filters": [{"types": […], "payload": […], "tags": […]}, …]}.',
    ),
]


def query_from(
    types: list[str] | None,
    stream: tuple[str, str] | None,
    tags: list[str] | None,
    payloads: list[str] | None,
    query_json: str | None = None,
) -> Query:
    """Build a query from the options of one filter, or from a complete query in JSON.

    Raises:
        InvalidArgument: If a value is not valid JSON, or both forms are given.
        InvalidQuery: If the query has a wrong shape.

    """
    predicates = [parse_json_argument(text, "--payload") for text in payloads or ()]
    single = Filter(
        types=types or None,
        payload=predicates or None,
        tags=tags or None,
        streams=None if stream is None else [stream],
    )
    if query_json is None:
        return MATCH_ALL if single == Filter() else Query([single])
    if single != Filter():
        raise invalid_argument(
            "--query", "is a complete query: leave out --type, --stream, --tag, --payload"
        )
    return query_from_json(query_json)


def query_from_json(text: str, name: str = "--query") -> Query:
    """Parse a query in JSON; `name` is the option to name in an error."""
    return Query.from_mapping(parse_json_argument(text, name))
