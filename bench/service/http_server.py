"""The service with an additional no-op endpoint, run as its own process."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import uvicorn

from seriatim.api.app import App
from seriatim.api.http import HttpRequest, HttpResponse
from seriatim.api.request_bodies import BodyParser
from seriatim.api.routes import ROUTES, Route
from seriatim.api.server import (
    ServiceLocation,
    make_config,
    make_frozen_service,
    shorten_switch_interval,
)
from seriatim.api.service import Service, ServiceSettings
from seriatim.wire.messages import AppendBody, EventPosition, Receipt

NOOP = "/v1/noop"

_decode = BodyParser(AppendBody)
_encode = msgspec.json.Encoder().encode


async def noop(service: Service, request: HttpRequest, raw: bytes) -> HttpResponse:
    """Parse the body and respond like an append, but store nothing."""
    del service, request
    body: Any = _decode(raw)
    placed = [EventPosition(1, event.event_id, 1) for event in body.events]
    return HttpResponse(201, _encode(Receipt(1, 1, "2026-01-01T00:00:00.000000Z", placed)))


ROUTE = Route(
    method="POST", path=NOOP, handler=noop, right="append", service=True, body=AppendBody, raw=True
)


def app(place: ServiceLocation, serving: ServiceSettings) -> App:
    """Return the application with the no-op route."""
    shorten_switch_interval()
    return App(partial(make_frozen_service, place, serving), routes=(*ROUTES, ROUTE))


def serve(make: Callable[[ServiceLocation, ServiceSettings], App]) -> None:
    """Serve the log at the URL in the arguments, and print the port."""
    url = sys.argv[1]
    place, serving = ServiceLocation(url=url, port=0), ServiceSettings()
    config = make_config(place, serving, make)
    listening = config.bind_socket()
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    serve(app)
