"""Many concurrent consumers, and outages of the registry: each effect once, none lost."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from seriatim.config.delivery import RegistrySettings
from seriatim.core.errors import BackendFailure
from seriatim.delivery.entries import DeadLetter
from seriatim.delivery.handler_loop import Counts, HandlerLoop
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry
from tests.faults import consumers
from tests.fixtures.postgres_server import PostgresServer


def open_with_effects(place: str) -> Registry:
    """Open a registry whose database has a table of effects."""
    registry = open_registry(place)
    with registry.engine.transaction() as session:
        session.run("create table effects (n integer)")
    registry.declare(consumers.make_ledger_handler(place))
    return registry


def effects(registry: Registry) -> Counter[int]:
    """Count the effects of each event."""
    with registry.engine.transaction(write=False) as session:
        return Counter(row[0] for row in session.run("select n from effects"))


def settle(registry: Registry, place: str) -> None:
    """Handle the deferred events of the registry until none is left."""
    handler = consumers.make_ledger_handler(place)
    loop = HandlerLoop(registry, handler)
    deadline = time.monotonic() + 60
    while any(count.status in ("blocked", "failed", "claimed") for count in registry.counts()):
        loop.handle(registry.due(handler, 5000))
        assert time.monotonic() < deadline, registry.counts()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "processes", "count"), [("postgres", 50, 10_000), ("sqlite", 8, 1000)]
)
def test_many_processes_handle_each_event_once(
    request: pytest.FixtureRequest, tmp_path: Path, backend: str, processes: int, count: int
) -> None:
    """G1: 003 §6.5: many processes claim the same events repeatedly; each has one effect."""
    place = f"sqlite:///{tmp_path}/registry.db"
    if backend == "postgres":
        place = str(request.getfixturevalue("empty_postgres_url"))
    registry = open_with_effects(place)
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        found = pool.map(
            consumers.consume,
            [place] * processes,
            [count] * processes,
            range(processes),
            [1.0 if number == 0 else 0.2 for number in range(processes)],
        )
        assert sum(found) > 0
    settle(registry, place)

    assert effects(registry) == dict.fromkeys(range(count), 1)
    registry.close()


class MemoryDeadLetters:
    """Store dead letters in memory."""

    def __init__(self) -> None:
        self.received: list[DeadLetter] = []

    def send(self, dead_letters: list[DeadLetter]) -> None:
        """Store dead letters."""
        self.received += dead_letters


class Outage:
    """A server that is stopped for a while, and a consumer that continues meanwhile."""

    def __init__(self, server: PostgresServer, policy: Any) -> None:
        self.place = server.create_database("registry")
        self.registry = open_with_effects(self.place)
        settings = RegistrySettings(on_outage=policy, lease_s=1.0, heartbeat_s=0.3)
        self.used = open_registry(self.place, settings)
        self.dead_letters = MemoryDeadLetters()
        self.loop = HandlerLoop(
            self.used,
            consumers.make_ledger_handler(self.place),
            dead_letters=self.dead_letters,
            chunk=10,
        )
        self.counts: Counts | None = None
        self.raised: BaseException | None = None

    def handle(self, count: int) -> None:
        """Handle events, and store the counts or the error."""
        try:
            self.counts = self.loop.handle(consumers.make_events(count))
        except BackendFailure as error:
            self.raised = error


def test_pause_policy_waits_for_an_outage(
    own_postgres: Callable[..., PostgresServer], caplog: pytest.LogCaptureFixture
) -> None:
    """G6: 003 §6.8: with `pause` a consumer waits, logs the outage, and handles each event once."""
    server = own_postgres()
    outage = Outage(server, "pause")
    server.stop(immediate=True)
    thread = threading.Thread(target=outage.handle, args=(200,))
    thread.start()
    deadline = time.monotonic() + 30
    while outage.used.outage.since is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.start()
    thread.join(60)

    assert outage.raised is None
    assert any("cannot be reached" in record.message for record in caplog.records)
    assert any("is back after" in record.message for record in caplog.records)
    settle(outage.registry, outage.place)
    assert effects(outage.registry) == dict.fromkeys(range(200), 1)
    outage.registry.close()
    outage.used.close()


@pytest.mark.parametrize("round_", range(3))
def test_a_killed_server_causes_no_duplicate_effects(
    own_postgres: Callable[..., PostgresServer], round_: int
) -> None:
    """G6: the registry's server is killed during effects, and each effect happens once."""
    server = own_postgres()
    outage = Outage(server, "pause")
    thread = threading.Thread(target=outage.handle, args=(3000,))
    thread.start()
    while not effects(outage.registry):
        time.sleep(0.002)
    time.sleep(0.02 * round_)
    server.kill9()
    server.start()
    thread.join(120)
    assert not thread.is_alive()
    assert outage.raised is None
    time.sleep(1.1)  # until claims of calls without a response have expired
    settle(outage.registry, outage.place)

    assert effects(outage.registry) == dict.fromkeys(range(3000), 1)
    outage.registry.close()
    outage.used.close()


def test_fail_fast_policy_reports_an_outage(own_postgres: Callable[..., PostgresServer]) -> None:
    """G6: 003 §6.8: with `fail_fast` the outage is raised; a redelivery handles each event."""
    server = own_postgres()
    outage = Outage(server, "fail_fast")
    server.stop(immediate=True)
    outage.handle(20)
    assert isinstance(outage.raised, BackendFailure)
    server.start()
    outage.handle(20)

    assert effects(outage.registry) == dict.fromkeys(range(20), 1)
    outage.registry.close()
    outage.used.close()


def test_dlq_policy_diverts_events_during_an_outage(
    own_postgres: Callable[..., PostgresServer],
) -> None:
    """G6: 003 §6.8: with `dlq` events go to the dead-letter sink, and can be replayed from it."""
    server = own_postgres()
    outage = Outage(server, "dlq")
    server.stop(immediate=True)
    outage.handle(20)
    server.start()

    assert outage.counts == Counts(diverted=20)
    replayed = [letter.delivery for letter in outage.dead_letters.received]
    assert [one.event_id for one in replayed] == [
        event.event_id for event in consumers.make_events(20)
    ]
    outage.loop.handle(replayed)
    assert effects(outage.registry) == dict.fromkeys(range(20), 1)
    outage.registry.close()
    outage.used.close()
