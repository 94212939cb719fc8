"""Competing products: UmaDB and pyeventsourcing, each used the fastest way its client offers."""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID, uuid4

import psycopg
from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore

from bench.callers import threads
from bench.measurement import Subject
from bench.workload import EVENTS_PER_STREAM, Orders, payload_text
from tests.fixtures.postgres_server import PostgresServer

_interrupt = signal.getsignal(signal.SIGINT)
import umadb  # noqa: E402 - its import replaces the SIGINT handler, which is restored below

signal.signal(signal.SIGINT, _interrupt)

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.05
PREFILL_BATCH = 2000
RECORDER_DATABASE = "recorder"
RECORDER_TABLE = "stored_events"
RECORDER_TOPIC = "bench.domain:Order.Changed"
# The server runs under a shell that ends it when the pipe closes, so that it never outlives this
# process.
SERVE = "from umadb.umadb_server_cli import main; main()"
GUARDIAN_SCRIPT = """
"$1" -c "$2" --listen "$3" --db-path "$4/uma.db" >"$4/server.log" 2>&1 &
cat >/dev/null
kill "$!"
wait "$!"
rm -rf "$4"
"""


class UmaClient:
    """A client of UmaDB.

    `unique` gives it the guarantee of Seriatim that event ids are unique: each event carries its id
    as a tag, and each append the condition that no event with such a tag exists.
    """

    def __init__(self, url: str, *, unique: bool) -> None:
        self.url = url
        self.unique = unique
        self._client = _connect(url)

    def singles(self, callers: int, orders: Orders) -> Subject:
        """Return a subject of threads that append single events."""
        return threads(callers, lambda _: self._append([self._event(*orders.raw())]))

    concurrent_singles = singles

    def batches(self, callers: int, orders: Orders, size: int, streams: int) -> Subject:
        """Return a subject of threads that append batches over `streams` streams."""

        def append(_: int) -> int:
            ids = [orders.stream_id() for _ in range(streams)]
            return self._append(
                [self._event(*orders.raw(ids[index % streams])) for index in range(size)]
            )

        return threads(callers, append)

    def _event(self, event_id: UUID, stream_id: str, data: bytes) -> umadb.Event:
        tags = [f"order:{stream_id}"]
        if self.unique:
            tags.append(f"id:{event_id}")
        return umadb.Event("order.changed", data, tags, event_id)

    def _append(self, events: Sequence[umadb.Event]) -> int:
        condition = None
        if self.unique:
            items = [umadb.QueryItem(tags=[event.tags[-1]]) for event in events]
            condition = umadb.AppendCondition(umadb.Query(items))
        self._client.append(events, condition)
        return len(events)


class UmaServer(UmaClient):
    """A UmaDB server on loopback with default settings, which make each commit durable."""

    def __init__(self, *, unique: bool, events: int) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="srtm-uma-", dir="/tmp"))
        address = _free_address()
        self._guardian = subprocess.Popen(
            ["sh", "-c", GUARDIAN_SCRIPT, "umadb", sys.executable, SERVE, address, self._home],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        super().__init__(f"http://{address}", unique=unique)
        self._prefill(events)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def head(self) -> int:
        """Return the number of stored events."""
        return self._client.head() or 0

    def close(self) -> None:
        """Stop the server and remove its files."""
        self._client.close()
        self._guardian.communicate(timeout=STOP_TIMEOUT_S)

    def _prefill(self, total: int) -> None:
        """Fill the server without conditions, stream by stream, which is its fastest order."""
        for first in range(0, total, PREFILL_BATCH):
            indexes = range(first, min(first + PREFILL_BATCH, total))
            self._client.append(
                [
                    self._event(uuid4(), f"o-{index // EVENTS_PER_STREAM:08d}", payload_text(index))
                    for index in indexes
                ]
            )


def _connect(url: str) -> umadb.Client:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client = umadb.Client(url)
            client.head()
        except umadb.TransportError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
        else:
            return client


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host, port = probe.getsockname()
        return f"{host}:{port}"


class EventSourcingRecorder:
    """The application recorder of pyeventsourcing on Postgres, which locks its table for order."""

    def __init__(self, server: PostgresServer, events: int, connections: int) -> None:
        url = server.create_database(RECORDER_DATABASE)
        self._datastore = PostgresDatastore(
            dbname=RECORDER_DATABASE,
            host="127.0.0.1",
            port=server.port,
            user="postgres",
            password="",
            pool_size=connections,
        )
        self._recorder = PostgresApplicationRecorder(
            self._datastore, events_table_name=RECORDER_TABLE
        )
        self._recorder.create_table()
        with psycopg.connect(url, autocommit=True) as session:
            session.execute(_PREFILL_RECORDER, (EVENTS_PER_STREAM,) * 2 + (payload_text(0), events))
            session.execute("vacuum analyze stored_events")

    def singles(self, callers: int, orders: Orders) -> Subject:
        """Return a subject of threads that store single events, each in its own streams."""
        versions = [_versions() for _ in range(callers)]

        def insert(caller: int) -> int:
            originator_id, version = next(versions[caller])
            _, _, state = orders.raw()
            event = StoredEvent(originator_id, version, RECORDER_TOPIC, state)
            self._recorder.insert_events([event])
            return 1

        return threads(callers, insert)

    def close(self) -> None:
        """Close its connections."""
        self._datastore.close()


def _versions() -> Iterator[tuple[UUID, int]]:
    while True:
        originator_id = uuid4()
        for version in range(1, EVENTS_PER_STREAM + 1):
            yield originator_id, version


_PREFILL_RECORDER = """
insert into stored_events (originator_id, originator_version, topic, state)
select md5(((i - 1) / %s)::text)::uuid, (i - 1) %% %s + 1, 'bench.domain:Order.Changed', %s
from generate_series(1, %s) i
"""
