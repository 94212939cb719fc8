"""The options with which several commands name events, and what they mean."""

from __future__ import annotations

from typing import Annotated

import typer

from seriatim.cli.session import json_argument
from seriatim.core.query import EVERYTHING, Filter, Query
from seriatim.log.arguments import bad

Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type", help="Only this event type, or those of a pattern such as seat.*; repeatable."
    ),
]
Stream = Annotated[
    tuple[str, str] | None,
    typer.Option("--stream", help="Only this stream: its type and its id.", metavar="TYPE ID"),
]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", help="With this tag, and all others given.")
]
Payloads = Annotated[
    list[str] | None,
    typer.Option(
        "--payload",
        metavar="JSON",
        help='Whose payload holds this, such as \'{"seat": "12A"}\'; repeated: any of them.',
    ),
]
QueryJson = Annotated[
    str | None,
    typer.Option(
        "--query",
        metavar="JSON",
        help='A whole query: {"filters": [{"types": […], "payload": […], "tags": […]}, …]}.',
    ),
]


def query_from(
    types: list[str] | None,
    stream: tuple[str, str] | None,
    tags: list[str] | None,
    payloads: list[str] | None,
    whole: str | None = None,
) -> Query:
    """Make a query of the options of one filter, or of a whole query in JSON."""
    predicates = [json_argument(text, "--payload") for text in payloads or ()]
    one = Filter(
        types=types or None,
        payload=predicates or None,
        tags=tags or None,
        streams=None if stream is None else [stream],
    )
    if whole is None:
        return EVERYTHING if one == Filter() else Query([one])
    if one != Filter():
        raise bad("--query", "is a whole query: leave out the options of a single filter")
    return query_from_json(whole)


def query_from_json(text: str, name: str = "--query") -> Query:
    """Read a query in JSON."""
    return Query.from_mapping(json_argument(text, name))
