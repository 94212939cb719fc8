"""Imports whose events are validated in other processes equal those of one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import seriatim
from seriatim import (
    EventType,
    ImportReport,
    NewEvent,
    StreamKind,
    import_events,
)
from seriatim.cli.transfer import POOL_BYTES_MIN, POOL_PROCESSES_MAX, choose_processes
from seriatim.core.guard import DEFAULT_GUARD
from seriatim.guards import CREDENTIALS, PatternGuard
from seriatim.log.export_format import export_log
from seriatim.log.importer import POOL_EVENTS
from tests.faults.support import wait_until

EVENTS = 4000


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    """The export of a log with appends of one event and of several, and a command."""
    parts: list[bytes] = []
    with seriatim.open("memory:") as log:
        log.declare(StreamKind(name="case", first_seq=0, closing_types=("closed",)))
        for number in range(EVENTS // 4):
            stream = ("order", str(number % 50))
            log.append([NewEvent("noted", {"n": number, "text": "é" * 50}, stream)])
            log.append(
                [NewEvent("opened", stream=("case", str(number))), NewEvent("noted", tags=("t",))],
                idempotency_key=f"k-{number}",
            )
        log.aggregates.append(
            [{"event_type": "Deployed", "payload": {}}, {"event_type": "Healthy", "payload": {}}],
            org_id="default",
            aggregate_type="app",
            aggregate_id="web",
            actor_type="user",
            actor_id="dana",
            request_id="r-1",
            idempotency_key="shared",
        )
        export_log(log.store, parts.append)
    return b"".join(parts).splitlines(keepends=True)


def import_into_new_log(
    lines: list[bytes], processes: int, **options: Any
) -> tuple[ImportReport, list[Any]]:
    """Import lines, and return the report and the records without their times."""
    with seriatim.open("memory:", **options) as log:
        report = import_events(log, lines, declarations=True, processes=processes)
        records = [
            (r.position, r.append_position, r.event_id, r.stream_seq, r.payload_hash, r.tags)
            for r in log.read()
        ]
    return report, records


def list_children() -> list[psutil.Process]:
    """Return the processes that this one has started by spawning."""
    children = psutil.Process().children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def test_pool_imports_the_same(lines: list[bytes]) -> None:
    """C3: records, refusals and their order do not depend on the number of processes."""
    secret = b'{"event_type":"x","event_id":"s","payload":{"password":"hunter2-longer"}}\n'
    bare = b'{"event_type":"x"}\n'
    mixed = [*lines[:500], secret, *lines[500:1500], bare, *lines[1500:]]

    alone, records = import_into_new_log(mixed, 1)
    pooled, same = import_into_new_log(mixed, 2)

    assert same == records
    assert pooled == alone
    assert [(r.line, r.code) for r in pooled.refusals] == [
        (501, "pii_policy_violation"),
        (1502, "invalid_event"),
    ]
    assert pooled.appended == len(lines) - 2
    assert list_children() == []


def test_pool_reports_a_malformed_line_where_it_is(lines: list[bytes]) -> None:
    """C3: the events before a malformed line are imported, and the error names the line."""
    broken = [*lines[:2600], b"{not json\n", *lines[2600:]]
    found = []
    for processes in (1, 2):
        with seriatim.open("memory:") as log:
            with pytest.raises(seriatim.InvalidEvent, match="line 2601") as refused:
                import_events(log, broken, declarations=True, processes=processes)
            found.append((log.head(), refused.value.details))
            again = import_events(log, lines, processes=processes)
            assert (again.reused, log.head()) == (found[-1][0], len(lines) - 2)

    assert found[0] == found[1]
    assert found[0][0] > 2000


def test_altered_payload_is_found_in_a_pool(lines: list[bytes]) -> None:
    """C3: a payload that does not match its hash is refused, with its line."""
    at = next(n for n, line in enumerate(lines) if b'"n":900,' in line)
    altered = [*lines[:at], lines[at].replace(b'"n":900,', b'"n":901,'), *lines[at + 1 :]]

    report, _ = import_into_new_log(altered, 2)

    assert [(r.line, r.code) for r in report.refusals][:1] == [(at + 1, "invalid_event")]


def test_import_goes_on_without_killed_processes(lines: list[bytes]) -> None:
    """C3: if its processes are killed, the import validates the rest itself."""
    events = 0
    killed: list[psutil.Process] = []

    def kill_child(count: int) -> None:
        nonlocal events
        events += count
        if events > 5 * POOL_EVENTS and not killed:  # and the first batch is validated
            killed.extend(list_children()[:1])
            killed[0].kill()

    with seriatim.open("memory:") as log:
        report = import_events(log, lines, declarations=True, processes=2, progress=kill_child)
        assert (report.appended, report.refused) == (len(lines) - 2, 0)
    assert killed
    assert list_children() == []


def test_failed_import_ends_its_processes(lines: list[bytes]) -> None:
    """L2: an import that fails leaves no process behind."""
    events = 0

    def fail(count: int) -> None:
        nonlocal events
        events += count
        if events > 2 * POOL_EVENTS:
            assert list_children()
            raise KeyboardInterrupt

    with seriatim.open("memory:") as log, pytest.raises(KeyboardInterrupt):
        import_events(log, lines, declarations=True, processes=2, progress=fail)
    assert list_children() == []


def test_killed_import_ends_its_processes(tmp_path: Path, lines: list[bytes]) -> None:
    """L2: the processes of an import that was killed end, and a second import completes it."""
    file, url = tmp_path / "log.ndjson", f"sqlite:///{tmp_path}/log.db"
    file.write_bytes(b"".join(lines))
    command = [sys.executable, "-m", "seriatim", "import", "-", "--url", url, "--processes", "2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as importing:
        assert importing.stdin is not None
        importing.stdin.write(b"".join(lines[:-1]))  # and it waits for more
        importing.stdin.flush()
        process = psutil.Process(importing.pid)
        wait_until(lambda: len(process.children()) >= 2, "the processes", within_s=30)
        children = process.children()
        os.kill(importing.pid, signal.SIGKILL)
        wait_until(
            lambda: not any(map(psutil.Process.is_running, children)), "their end", within_s=30
        )

    with seriatim.open(url) as log:
        head = log.head()
        report = import_events(log, lines, declarations=True)
        assert (report.appended, report.reused) == (len(lines) - 2 - head, head)


def test_appends_with_expected_numbers_are_validated_here() -> None:
    """B11: kinds that require an expected number are imported, with any number of processes."""
    parts: list[bytes] = []
    with seriatim.open("memory:") as source:
        source.declare(StreamKind(name="case", expected_seq_required=True))
        source.append([NewEvent("opened", stream=("case", "1"))])
        export_log(source.store, parts.append)

    report, _ = import_into_new_log(b"".join(parts).splitlines(keepends=True), 2)

    assert (report.appended, report.refused) == (1, 0)


def test_declarations_change_during_an_import(lines: list[bytes]) -> None:
    """A8: events are validated under declarations that were made while the import runs."""
    with seriatim.open("memory:") as log:
        events = 0

        def declare(count: int) -> None:
            nonlocal events
            events += count
            if events in range(1500, 1500 + count):  # once, with batches in the pool
                log.declare(EventType(event_type="noted", schema={"required": ["n"]}))

        report = import_events(log, lines, declarations=True, processes=2, progress=declare)

        # At least the pairs that were read later have an event without the field.
        assert report.refused >= 990
        assert report.reasons == {"schema_violation": report.refused}
        assert report.appended + report.refused == len(lines) - 2


@pytest.mark.parametrize("guard", [DEFAULT_GUARD, PatternGuard("house", CREDENTIALS)])
def test_every_guard_scans_imports(guard: PatternGuard) -> None:
    """K1: a guard scans the events of an import, whether or not it can be sent to a process."""
    secret = b'{"event_type":"x","event_id":"s","payload":{"password":"hunter2-longer"}}\n'

    report, records = import_into_new_log([secret], 2, guard=guard)

    assert (report.reasons, records) == ({"pii_policy_violation": 1}, [])


def test_number_of_processes_is_checked() -> None:
    """L3: no process at all is refused."""
    with seriatim.open("memory:") as log, pytest.raises(seriatim.InvalidArgument, match="least 1"):
        import_events(log, [], processes=0)


@pytest.mark.parametrize(
    ("size", "cores", "processes"),
    [
        (None, 16, 1),
        (POOL_BYTES_MIN - 1, 16, 1),
        (POOL_BYTES_MIN, 1, 1),
        (POOL_BYTES_MIN, 3, 1),
        (POOL_BYTES_MIN, 4, 2),
        (POOL_BYTES_MIN, 64, POOL_PROCESSES_MAX),
    ],
)
def test_only_large_files_use_processes(size: int | None, cores: int, processes: int) -> None:
    """C3: by default a pool is used where it pays off."""
    assert choose_processes(size, cores) == processes
