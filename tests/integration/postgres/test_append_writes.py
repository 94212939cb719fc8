"""F7: a single append changes few pages, whatever the size of the log; the WAL shows which."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

import seriatim
from seriatim import NewEvent

APPENDS = 100
SPLITS = 0.2  # page splits and the start of a page, in changes per append
_RELATION = re.compile(r"rel \d+/\d+/(\d+)")

# The table and the indexes that every append of an event with a stream changes once.
ALWAYS = {"events", "events_position", "events_id", "events_tenant", "events_type", "events_stream"}


def count_changes(url: str, append: Callable[[], object]) -> dict[str, float]:
    """Return how many changes of its pages each table and index of the log gets, per append."""
    for _ in range(APPENDS):
        append()  # the pages of the indexes exist, and are in the WAL since the checkpoint
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("create extension if not exists pg_walinspect")
        names: dict[str, str] = dict(
            session.execute(
                "select pg_relation_filenode(c.oid)::text, relname from pg_class c "
                "join pg_namespace n on n.oid = relnamespace where nspname = 'seriatim'"
            ).fetchall()
        )
        [start] = session.execute("select pg_current_wal_insert_lsn()").fetchone() or [""]
        for _ in range(APPENDS):
            append()
        [end] = session.execute("select pg_current_wal_insert_lsn()").fetchone() or [""]
        blocks = session.execute(
            "select block_ref from pg_get_wal_records_info(%s, %s) where block_ref is not null",
            (start, end),
        ).fetchall()
    relations = [found for (text,) in blocks for found in set(_RELATION.findall(text))]
    counts = Counter(names[relation] for relation in relations if relation in names)
    return {name: count / APPENDS for name, count in counts.items() if count / APPENDS > SPLITS}


def check(changes: dict[str, float], *further: str) -> None:
    """Check that exactly these relations change, each once per append."""
    assert changes.keys() == ALWAYS | {*further}, changes
    assert all(count <= 1 + SPLITS for count in changes.values()), changes


@pytest.fixture
def log(postgres_url: str) -> seriatim.Log:
    """A log on Postgres."""
    return seriatim.open(postgres_url)


def test_an_append_to_a_new_stream_changes_one_page_of_each_index(
    log: seriatim.Log, postgres_url: str
) -> None:
    """F7: an append changes the table and five indexes; unused indexes get no entry."""
    with log:
        check(
            count_changes(
                postgres_url,
                lambda: log.append([NewEvent("placed", {"n": 1}, ("order", str(log.head())))]),
            )
        )


def test_only_long_streams_are_indexed_by_type(log: seriatim.Log, postgres_url: str) -> None:
    """F7: after its hundredth event, a stream is indexed by event type too."""
    with log:
        changes = count_changes(
            postgres_url, lambda: log.append([NewEvent("placed", {"n": 1}, ("order", "one"))])
        )
    check(changes, "events_long_stream")


def test_keys_and_related_ids_add_their_index(log: seriatim.Log, postgres_url: str) -> None:
    """F7: an idempotency key, a correlation id and a tag each change one index more."""

    def append() -> None:
        number = str(log.head())
        event = NewEvent("placed", {}, ("order", number), correlation_id=number, tags=("vip",))
        log.append([event], idempotency_key=f"k-{number}")

    with log:
        changes = count_changes(postgres_url, append)
    check(changes, "events_key", "events_correlation", "event_tags", "event_tags_key")
