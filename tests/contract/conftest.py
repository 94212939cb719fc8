"""A new, empty log on every backend, for the contract suite."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import seriatim
from seriatim import EventRecord, Log
from seriatim.client.http_client import HttpClient
from seriatim.client.store import HttpStore
from seriatim.factory import RemoteLog
from seriatim.store.port import Finding, ReadSpec, Store
from tests.fixtures.service import RunningService, run_service

BACKENDS: dict[str, Callable[[pytest.FixtureRequest], str]] = {
    "memory": lambda _: "memory:",
    "sqlite": lambda request: f"sqlite:///{_folder(request) / 'log.db'}",
    "postgres": lambda request: str(request.getfixturevalue("application_url")),
}


def _folder(request: pytest.FixtureRequest) -> Path:
    folder = request.getfixturevalue("tmp_path")
    assert isinstance(folder, Path)
    return folder


SERVICES = {"http-sqlite": "sqlite", "http-postgres": "postgres"}


@pytest.fixture(params=[*BACKENDS, *SERVICES])
def log(request: pytest.FixtureRequest) -> Iterator[Log]:
    """An empty log on a backend, directly or through the client of a service."""
    if request.param in BACKENDS:
        with seriatim.open(BACKENDS[request.param](request)) as opened:
            yield opened
        return
    # The application's role may not create a schema, so the tokens are in a file.
    access = f"sqlite:///{_folder(request) / 'tokens.db'}"
    url = BACKENDS[SERVICES[request.param]](request)
    with run_service(url, access) as service, _through(service) as log:
        yield log


class OperatorStore(HttpStore):
    """The store of a service, with the operations that are possible only at its database."""

    def __init__(self, http: HttpClient, beside: Store) -> None:
        super().__init__(http)
        self._beside = beside

    def read(self, spec: ReadSpec) -> list[EventRecord]:
        """Read the events of all tenants from the database, as `verify` does."""
        return self._beside.read(spec) if spec.tenant_id is None else super().read(spec)

    def verify(self) -> Iterator[Finding]:
        """Run the checks of the database."""
        return self._beside.verify()

    def purge_commands(self, older_than_seconds: float) -> int:
        """Purge in the database, because the service refuses periods under a day."""
        return self._beside.purge_commands(older_than_seconds)


@contextmanager
def _through(service: RunningService) -> Iterator[Log]:
    store = OperatorStore(HttpClient(service.url, token=service.token()), service.service.log.store)
    with RemoteLog(store) as opened:
        yield opened
