"""Every store restores archived events unchanged, directly after its head, or none of them."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from seriatim.core.errors import Conflict
from seriatim.core.event import RECORD_COLUMNS, EventRecord, NewEvent
from seriatim.core.times import parse_us
from seriatim.log.base import BaseLog
from seriatim.pipeline.archive.restore import build_restored_event
from seriatim.store.memory import MemoryStore
from seriatim.store.port import ReadSpec, RestoredEvent, Store
from seriatim.store.sqlite.store import SqliteStore

EVERYTHING = ReadSpec(tenant_id=None, limit=100)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store; the tests of archives restore to Postgres."""
    made = MemoryStore() if request.param == "memory" else SqliteStore(f"{tmp_path}/log.db")
    with closing(made):
        yield made


def originals() -> list[EventRecord]:
    """Make the records of a log with streams, keys, tags and appends of several events."""
    log = BaseLog(MemoryStore())
    log.append([NewEvent("a", {"n": 1}, stream=("s", "1")), NewEvent("b", stream=("s", "1"))])
    log.append([NewEvent("c", tags=("x",))], idempotency_key="k")
    log.append([NewEvent("d", occurred_at="2025-01-01T00:00:00+02:00", metadata={"l": "v"})])
    return log.store.read(EVERYTHING)


def archived_event(record: EventRecord, store: Store) -> RestoredEvent:
    """Return a record as an archive has it."""
    row = dict(zip(RECORD_COLUMNS, msgspec.structs.astuple(record), strict=True))
    own = record.occurred_at == record.recorded_at
    row["occurred_text"] = None if own else record.occurred_at
    row["recorded_at"] = parse_us(record.recorded_at)
    return build_restored_event(row, store.rules())


def test_records_are_restored_unchanged(store: Store) -> None:
    """J1: restored records have the same positions, times, ids, streams and keys."""
    kept = originals()
    events = [archived_event(record, store) for record in kept]

    store.restore(events[:2])
    store.restore(events[2:])

    assert store.read(EVERYTHING) == kept
    log = BaseLog(store)
    assert log.append([NewEvent("c", tags=("x",))], idempotency_key="k").replayed
    again = log.append([NewEvent("e", stream=("s", "1"))])
    assert (again.first_position, again.records[0].stream_seq) == (5, 3)


@pytest.mark.parametrize("wanted", [[1, 2], [0, 2], [0, 0]])
def test_a_gap_restores_nothing(store: Store, wanted: list[int]) -> None:
    """B3: events that do not follow the head without a gap are refused as a whole."""
    events = [archived_event(record, store) for record in originals()]

    with pytest.raises(Conflict, match="cannot restore position"):
        store.restore([events[index] for index in wanted])

    assert store.head() == 0


def test_shared_idempotency_keys_are_restored(store: Store) -> None:
    """C7: events that share the key of a command are restored."""
    kept = [msgspec.structs.replace(record, idempotency_key="command") for record in originals()]

    store.restore([archived_event(record, store) for record in kept[:1]])
    store.restore([archived_event(record, store) for record in kept[1:]])

    assert store.read(EVERYTHING) == kept
