"""The service with its console, run as its own process; it returns the reads of each page."""

from functools import partial
from typing import Any

import msgspec

from bench.service.http_server import serve
from seriatim.api.app import App
from seriatim.api.http import HttpRequest, HttpResponse, HttpStream
from seriatim.api.operator_endpoints import NoParams
from seriatim.api.routes import ROUTES, Route
from seriatim.api.server import ServiceLocation, make_frozen_service, shorten_switch_interval
from seriatim.api.service import Service, ServiceSettings
from seriatim.console.routes import make_console

READS = "/v1/reads-of-pages"


class ApiRead(msgspec.Struct, frozen=True):
    """A read of the API that a page made successfully."""

    method: str
    path: str
    query: str
    body: str
    tenant_id: str


_reads: list[ApiRead] = []


class RecordingApp(App):
    """The application, with a record of the reads that pages make in the process."""

    async def call(self, request: HttpRequest) -> HttpResponse | HttpStream:
        """Run a route, and record it if it succeeds; the reads of the sampler are left out."""
        response = await super().call(request)
        if request.derived:
            body = await request.body(1 << 20, 1.0, lambda _: None)
            _reads.append(
                ApiRead(
                    request.method,
                    request.path,
                    request.query.decode(),
                    body.decode(),
                    request.tenant_id,
                )
            )
        return response


async def take_reads(service: Service, request: HttpRequest, params: NoParams) -> Any:
    """Return the recorded reads, and forget them."""
    del service, request, params
    taken = msgspec.json.encode(_reads)
    _reads.clear()
    return HttpResponse(200, taken)


ROUTE = Route(method="GET", path=READS, handler=take_reads, right="read", params=NoParams)


def app(place: ServiceLocation, serving: ServiceSettings) -> App:
    """Return the application with the console."""
    shorten_switch_interval()
    opener = partial(make_frozen_service, place, serving)
    return RecordingApp(opener, routes=(*ROUTES, ROUTE), mount=make_console())


if __name__ == "__main__":
    serve(app)
