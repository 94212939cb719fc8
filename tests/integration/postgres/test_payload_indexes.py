"""Declared payload indexes: their coverage, and checks by verify and doctor."""

from __future__ import annotations

import psycopg
import pytest

import seriatim
from seriatim import Filter, NewEvent, PayloadIndex, Query
from seriatim.log.verification import verify


def covered_since(log: seriatim.Log, path: str) -> int:
    """Return the position after which a path is indexed."""
    [found] = [index.since for index in log.store.rules().indexes if index.path == path]
    return found


def test_coverage_of_payload_indexes(postgres_url: str) -> None:
    """A8: an index covers all events of a type that had none yet, else only later ones."""
    with seriatim.open(postgres_url) as log:
        for tenant in ("a", "b", "c"):
            log.for_tenant(tenant).append([NewEvent(f"of-{tenant}", {"n": 1})])
        log.declare(PayloadIndex("new", "n"), PayloadIndex("of-b", "m"))
        log.append([NewEvent("new", {"n": 1})])
        log.declare(PayloadIndex("new", "late"), PayloadIndex("new", "n"))

        assert [covered_since(log, path) for path in ("n", "m", "late")] == [0, 3, 4]
        [found] = [one for one in log.store.doctor() if one.check == "payload indexes"]
        assert found.message == "3 are declared"
        walked = [one.message for one in log.store.doctor() if one.check == "payload index"]
        assert walked == [
            "the index on m of of-b does not cover positions up to 3, which queries scan",
            "the index on late of new does not cover positions up to 4, which queries scan",
        ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("delete from seriatim.event_tags where position = 3", "1 of 7"),
        ("delete from seriatim.event_tags where position = 2", "2 of 7"),
        ("insert into seriatim.event_tags values (gen_random_uuid(), 1)", "1 are superfluous"),
        (
            "update seriatim.event_tags set position = 1 where position = 3",
            "missing, the first at position 3; 1 are superfluous",
        ),
    ],
)
def test_verify_finds_wrong_index_rows(postgres_url: str, change: str, words: str) -> None:
    """F2: verify finds missing and superfluous index rows written with disabled triggers."""
    with seriatim.open(postgres_url) as log:
        log.append([NewEvent("seat", {"row": 1})])
        log.declare(PayloadIndex("seat", "row"), PayloadIndex("seat", "labels[]"))
        log.append([NewEvent("seat", {"row": 2}, tags=("a", "a"))])
        log.append([NewEvent("seat", {"row": 1e23})])
        log.append([NewEvent("other", {"row": 1}, tags=("a",))])
        log.append([NewEvent("seat", {"labels": ["x", "y", "x"], "row": {}}), NewEvent("seat", {})])
        log.append([NewEvent("seat", {"row": None})])
        assert verify(log.store).ok
        with psycopg.connect(postgres_url, autocommit=True) as session:
            session.execute("alter table seriatim.event_tags disable trigger all")
            session.execute(change.encode())

        [found] = [finding for finding in log.store.verify() if finding.check == "tags"]

        assert found.level == "error"
        assert words in found.message


def test_context_versions_of_payload_indexes(postgres_url: str) -> None:
    """F7: queries over payload indexes with many common keys return the right version."""
    with seriatim.open(postgres_url) as log:
        log.declare(PayloadIndex("n", "half"), PayloadIndex("n", "all"))
        for half in (1, 2):
            log.append([NewEvent("n", {"half": half, "all": [0]}) for _ in range(2000)])
        log.append([NewEvent("n", {"half": 1, "all": 1}), NewEvent("n", {"half": 2, "all": 1})])

        def version(**wanted: object) -> int | None:
            query = Query([Filter(types=["n"], payload=[wanted])])
            return log.query(query, limit=1).context_version

        assert version(half=1) == 4001
        assert version(half=2, all=1) == 4002
        assert version(half=1, all=1) == 4001
        assert version(half=3, all=1) is None
        assert version(half=1, all=[0]) == 2000
