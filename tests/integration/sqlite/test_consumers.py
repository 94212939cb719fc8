"""Cursors, leases, commands and declarations behave like those of the memory backend."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from seriatim.core.errors import Conflict, InvalidArgument, LeaseLost
from seriatim.core.event import NewEvent
from seriatim.core.kinds import EventType, StreamKind
from seriatim.core.request import Command
from seriatim.profiles.trace_rules import TRACE_STREAM_KIND
from seriatim.store.memory import MemoryStore
from seriatim.store.port import Cursor, Store
from seriatim.store.sqlite.store import SqliteStore
from tests.integration.sqlite.store_appender import StoreAppender


@pytest.fixture(params=["memory", "sqlite"])
def any_store(request: pytest.FixtureRequest) -> Store:
    """The memory store, or a store on a file."""
    if request.param == "memory":
        return MemoryStore()
    store: SqliteStore = request.getfixturevalue("store")
    return store


def cursor(position: int, **changes: Any) -> Cursor:
    """Make a cursor of the mailer."""
    known: dict[str, Any] = {"tenant_id": "default", "name": "mailer", "query": "q"} | changes
    return Cursor(purpose="subscription", position=position, log_id="l", epoch=1, **known)


def test_a_cursor_moves_forwards_unless_it_is_reset(any_store: Store) -> None:
    """E5: a cursor moves backwards only by a reset; another query under its name is a conflict."""
    assert any_store.cursor("default", "subscription", "mailer") is None
    any_store.put_cursor(cursor(5, last_event_id="e"), lease=None, reset=False)
    with pytest.raises(InvalidArgument):
        any_store.put_cursor(cursor(4), lease=None, reset=False)
    with pytest.raises(Conflict):
        any_store.put_cursor(cursor(6, query="other"), lease=None, reset=False)
    any_store.put_cursor(cursor(2), lease=None, reset=True)
    stored = any_store.cursor("default", "subscription", "mailer")
    assert stored is not None
    assert (stored.position, stored.last_event_id, stored.query) == (2, "", "q")
    assert stored.updated_at.endswith("Z")


def test_cursors_are_listed_by_name_within_a_tenant(any_store: Store) -> None:
    """E4: a listing contains the cursors of one tenant and purpose, by name."""
    for name in ("b", "a", "é", "Z"):
        any_store.put_cursor(cursor(1, name=name), lease=None, reset=False)
    any_store.put_cursor(cursor(1, tenant_id="other"), lease=None, reset=False)
    found = [one.name for one in any_store.cursors("default", "subscription")]
    assert found == ["Z", "a", "b", "é"]
    assert any_store.cursors("default", "projection") == []


def test_a_lease_has_one_owner_and_a_rising_token(any_store: Store) -> None:
    """G2: the token of a lease rises with every claim, also of the same owner."""
    first = any_store.claim_lease("default", "mailer", "me", 60)
    assert first is not None
    assert any_store.claim_lease("default", "mailer", "you", 60) is None
    assert any_store.claim_lease("other", "mailer", "you", 60) is not None
    again = any_store.claim_lease("default", "mailer", "me", 60)
    assert again is not None
    assert again.token == first.token + 1
    assert not any_store.renew_lease(first, 60)
    assert any_store.renew_lease(again, 60)
    any_store.release_lease(first)
    assert any_store.claim_lease("default", "mailer", "you", 60) is None
    any_store.release_lease(again)
    taken = any_store.claim_lease("default", "mailer", "you", 60)
    assert taken is not None
    assert taken.token == first.token + 2


def test_an_expired_lease_stays_until_claimed(any_store: Store) -> None:
    """G2: an expired lease stays with its owner until another claims it."""
    lease = any_store.claim_lease("default", "mailer", "me", -1)
    assert lease is not None
    any_store.put_cursor(cursor(1), lease=lease, reset=False)
    assert any_store.renew_lease(lease, -1)
    assert any_store.claim_lease("default", "mailer", "you", 60) is not None
    assert not any_store.renew_lease(lease, 60)
    with pytest.raises(LeaseLost):
        any_store.put_cursor(cursor(2), lease=lease, reset=False)
    stored = any_store.cursor("default", "subscription", "mailer")
    assert stored is not None
    assert stored.position == 1


def test_command_is_replayed_until_it_is_purged(any_store: Store, appender: StoreAppender) -> None:
    """C5: a command returns its first response and records until it is purged."""
    command = Command(actor="a", endpoint="/x", key="k", request={"a": 1}, response={"ok": [1]})
    first = appender.append(any_store, NewEvent("t"), NewEvent("u"), command=command)
    duplicate = appender.append(any_store, NewEvent("t"), command=command)
    assert duplicate.replayed
    assert duplicate.response == {"ok": [1]}
    assert duplicate.records == first.records
    assert any_store.purge_commands(3600) == 0
    assert any_store.purge_commands(-1) == 1
    assert not appender.append(any_store, NewEvent("t"), command=command).replayed


def test_repeated_declarations_are_compared(any_store: Store) -> None:
    """A8: an equal declaration changes nothing; a different one under a known name conflicts."""
    gate = StreamKind(name="gate", first_seq=0, closing_types=("shut",))
    paid = EventType(event_type="paid", event_version=2, schema={"maximum": 10**30, "é": [1.5]})
    versions: list[int] = []
    acts: list[Callable[[], None]] = [
        lambda: any_store.declare(gate),
        lambda: any_store.declare(paid),
        lambda: any_store.declare(gate),
        lambda: any_store.declare(TRACE_STREAM_KIND),
    ]
    for act in itertools.chain(acts, acts):
        act()
        versions.append(any_store.rules().version)
    assert versions == [1, 2, 2, 2] * 1 + [2] * 4
    with pytest.raises(Conflict):
        any_store.declare(StreamKind(name="gate"))
    rules = any_store.rules()
    assert rules.kinds["gate"] == gate
    assert rules.types["paid", 2] == paid


def test_declarations_of_another_process_are_seen(store: SqliteStore, path: str) -> None:
    """A8: an append validated before another process's declaration is reported as stale."""
    other = SqliteStore(path)
    request = StoreAppender().request(store, [NewEvent("t")])
    other.declare(StreamKind(name="gate"))
    (outcome,) = store.append([request])
    assert type(outcome).__name__ == "StaleRules"
    assert store.head() == 0
    assert store.rules().version == 1
    other.close()
