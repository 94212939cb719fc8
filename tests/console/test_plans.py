"""N1, F7: the statements of every page, and their plans on Postgres and SQLite.

The log is generated as for `make bench-console`, and every page that the benchmark measures is
loaded once. Postgres reports each plan with the rows that it read (auto_explain). On SQLite the
statements are recorded, and explained on another connection.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psycopg
import pytest

import seriatim
from bench.console.loading import load_log
from bench.console.pages import MeasuredPage, list_pages
from seriatim.factory import sqlite_path
from seriatim.store.port import EVENT_COUNT_MAX, EVENT_TYPES_MAX
from tests.console.console_service import Visitor, run_console
from tests.fixtures.postgres_server import PostgresServer

EVENTS = 60_000
ROWS_MAX = 1000  # of events and their keys, read by one statement
INDEX_ENTRIES_MAX = EVENT_TYPES_MAX * (EVENT_COUNT_MAX + 2)  # read from an index alone, by counts
PAGE_BYTES_MAX = 256 * 1024
PAGES = list_pages(EVENTS)
SCANNED = 300  # events of a page of streams
_SORTS_THE_PAGE = re.compile("Sort$|USE TEMP B-TREE FOR ORDER BY$|SCAN first$|SCAN scanned$")

_TABLES = ("events", "event_tags")
_ALIAS = re.compile(r"\b(?:events|event_tags)(?:\s+as)?\s+(\w+)")
# One row at most, or the first or last key of an index.
_BOUNDED = re.compile(
    r"\blimit\b|\bmax\(|\bmin\(|\bposition = |\bevent_key = |\bidempotency_index = |stream_seq = "
)
_READS_EVENTS = re.compile(r"\b(?:from|join) (?:events|event_tags)\b")
_PLAN = re.compile(r"plan:\n((?:\t.*\n)+)")
# Returns the statements since the last call that read events, and what is wrong with each.
Plans = Callable[[], dict[str, list[str]]]


# -- Postgres


@contextmanager
def explained_postgres(server: PostgresServer, template: str) -> Iterator[tuple[str, Plans]]:
    """Yield the URL of a generated log, and a check of the plans that the server reported."""
    url = server.create_database("console_plans", template)
    load_log(url, EVENTS)
    with psycopg.connect(url, autocommit=True) as owner:
        for setting in (
            "session_preload_libraries = auto_explain",
            "auto_explain.log_min_duration = 0",
            "auto_explain.log_analyze = on",
            "auto_explain.log_timing = off",
            "auto_explain.log_format = json",
        ):
            owner.execute(f"alter database console_plans set {setting}".encode())
    seen = 0

    def check() -> dict[str, list[str]]:
        nonlocal seen
        text = server.log_text
        plans = [json.loads(plan) for plan in _PLAN.findall(text[seen:])]
        seen = len(text)
        return {
            plan["Query Text"]: list_plan_problems(plan["Plan"])
            for plan in plans
            if any(node.get("Relation Name") in _TABLES for node in _list_nodes(plan["Plan"]))
        }

    yield url, check
    server.drop_database("console_plans")


def list_plan_problems(plan: dict[str, Any]) -> list[str]:
    """Return scans, sorts and large reads in a plan that reads events or their keys."""
    scans = [node for node in _list_nodes(plan) if node.get("Relation Name") in _TABLES]
    problems = [node["Node Type"] for node in scans if "Index" not in node["Node Type"]]
    problems += [
        "Sort"
        for node in _list_nodes(plan)
        if "Sort" in node["Node Type"] and _reads_unlimited(node)
    ]
    for only_index, most in ((False, ROWS_MAX), (True, INDEX_ENTRIES_MAX)):
        kind = [node for node in scans if (node["Node Type"] == "Index Only Scan") is only_index]
        rows = sum(map(_count_rows, kind))
        problems += [f"{rows} rows"] if rows > most else []
    return problems


def _reads_unlimited(node: dict[str, Any]) -> bool:
    """Return whether the rows of a node come from events without a limit between them."""
    if node["Node Type"] == "Limit":
        return False
    below = node.get("Plans", ())
    return node.get("Relation Name") in _TABLES or any(map(_reads_unlimited, below))


def _list_nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _list_nodes(child)


def _count_rows(node: dict[str, Any]) -> int:
    """Return the rows that a scan read, including those that a filter removed."""
    rows: int = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return rows * int(node["Actual Loops"])


# -- SQLite


class RecordedConnection(sqlite3.Connection):
    """A connection whose statements are recorded, with the values of their parameters."""

    statements: ClassVar[list[str]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.set_trace_callback(self.statements.append)


@contextmanager
def explained_sqlite(folder: Path) -> Iterator[tuple[str, Plans]]:
    """Yield the URL of a generated log, and a check of the recorded statements."""
    url = f"sqlite:///{folder}/log.db"
    load_log(url, EVENTS)
    recorded = RecordedConnection.statements
    with (
        closing(sqlite3.connect(sqlite_path(url))) as connection,
        pytest.MonkeyPatch.context() as patch,
    ):
        connection.create_function("payload_matches", 2, lambda *_: True, deterministic=True)
        connection.create_function("count_read", 1, lambda _: True)
        patch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=RecordedConnection))

        def check() -> dict[str, list[str]]:
            statements = [text for text in recorded if _READS_EVENTS.search(text) is not None]
            recorded.clear()
            return {text: list_problems(connection, text) for text in statements}

        yield url, check


def list_problems(connection: sqlite3.Connection, statement: str) -> list[str]:
    """Return scans and sorts of a statement that reads events or their keys."""
    names = {*_TABLES, *_ALIAS.findall(statement)}
    plan = [row[3] for row in connection.execute(f"explain query plan {statement}")]
    problems = [step for step in plan if "TEMP B-TREE" in step or _is_scan(step, names)]
    return problems if _BOUNDED.search(statement) else [*problems, "without a bound"]


def _is_scan(step: str, names: set[str]) -> bool:
    return step.startswith("SCAN ") and step.split()[1] in names


# -- both


class VisitedLog(NamedTuple):
    """A visitor of the console on a generated log, a check of its statements, and the log."""

    visitor: Visitor
    check: Plans
    log: seriatim.Log


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def visited(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VisitedLog]:
    """A visitor of the console on a generated log, and a check of the statements of its pages."""
    with ExitStack() as stack:
        if request.param == "sqlite":
            explained = explained_sqlite(tmp_path_factory.mktemp("plans"))
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            explained = explained_postgres(server, request.getfixturevalue("postgres_template"))
        url, check = stack.enter_context(explained)
        service = stack.enter_context(run_console(url))
        yield VisitedLog(service.sign_in(), check, service.service.view("default"))


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_indexes_answer_every_page(visited: VisitedLog, page: MeasuredPage) -> None:
    """N1, E7, F7: a page reads few rows, by indexes alone, whatever the size of the log."""
    visited.check()

    visited_page = visited.visitor.get(page.address)

    assert visited_page.status == 200, visited_page.text
    assert {text: problems for text, problems in visited.check().items() if problems} == {}
    assert len(visited_page.html) <= PAGE_BYTES_MAX


@pytest.mark.parametrize("stream_type", [None, "order", "absent"])
def test_a_listing_of_streams_is_read_in_bounded_pages(
    visited: VisitedLog, monkeypatch: pytest.MonkeyPatch, stream_type: str | None
) -> None:
    """E1, F7, K3: a page of streams reads few events by an index, also if few open a stream."""
    for module in ("common", "postgres.store", "sqlite.store"):
        monkeypatch.setattr(f"seriatim.store.{module}.STREAM_SCAN_MAX", SCANNED)
    log = visited.log
    whole = log.streams(limit=10_000)
    visited.check()

    page = log.store.streams("default", stream_type, 0, 2 * SCANNED)

    found = [problem for problems in visited.check().values() for problem in problems]
    assert [problem for problem in found if not _SORTS_THE_PAGE.match(problem)] == []
    assert page.last_scanned is not None
    wanted = [one for one in whole if stream_type in (None, one.stream_type)]
    assert page.streams == [one for one in wanted if one.first_position <= page.last_scanned]
    assert log.streams(stream_type, limit=10_000) == wanted
    assert log.streams(stream_type, limit=3) == wanted[:3]
    assert (wanted == []) == (stream_type == "absent")


def test_the_statements_of_a_page_are_recorded(visited: VisitedLog) -> None:
    """The check sees the statements of a page: the list of events reads head and events."""
    visited.check()

    visited.visitor.get("/events")

    assert len(visited.check()) >= 2
