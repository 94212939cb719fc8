"""The service with an additional no-op endpoint, run as its own process."""

import sys
from functools import partial
from typing import Any

import msgspec
import uvicorn

from seriatim.api.app import App
from seriatim.api.bodies import Parser
from seriatim.api.http import Request, Response
from seriatim.api.routes import ROUTES, Route
from seriatim.api.service import Service, Serving
from seriatim.api.serving import Place, configuration, settled_service, take_turns_quickly
from seriatim.wire.shapes import AppendBody, Placed, Receipt

NOOP = "/v1/noop"

_decode = Parser(AppendBody).quick
_encode = msgspec.json.Encoder().encode


async def noop(service: Service, request: Request, raw: bytes) -> Response:
    """Parse the body and respond like an append, but store nothing."""
    del service, request
    body: Any = _decode(raw)
    placed = [Placed(1, event.event_id, 1) for event in body.events]
    return Response(201, _encode(Receipt(1, 1, "2026-01-01T00:00:00.000000Z", placed)))


ROUTE = Route(
    method="POST", path=NOOP, handler=noop, right="append", service=True, body=AppendBody, raw=True
)


def app(place: Place, serving: Serving) -> App:
    """Return the application with the no-op route."""
    take_turns_quickly()
    return App(partial(settled_service, place, serving), routes=(*ROUTES, ROUTE))


def main() -> None:
    """Serve the log at the URL in the arguments, and print the port."""
    url = sys.argv[1]
    place, serving = Place(url=url, port=0), Serving()
    config = configuration(place, serving, app)
    listening = config.bind_socket()
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
