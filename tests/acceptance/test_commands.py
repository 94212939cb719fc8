"""Every command works, with text and JSON output, on SQLite and Postgres."""

import gzip
import json
import signal
import uuid
from pathlib import Path
from typing import Any

import psycopg

import seriatim
from seriatim import NewEvent
from tests.acceptance.cli_program import Program

SEAT = '{"seat":"12A"}'


def fill(program: Program) -> None:
    """Append three events in two appends."""
    assert (
        program("append", "seat.reserved", SEAT, "--stream", "show", "s:1", "--tag", "vip").code
        == 0
    )
    batch = [
        {"event_type": "seat.released", "payload": {"seat": "12A"}, "stream": ["show", "s:1"]},
        {"event_type": "noted", "payload": {"n": 10**20}},
    ]
    lines = "\n".join(json.dumps(each) for each in batch)
    assert program("append", "--batch", "-", "--key", "k", given=lines).code == 0


def test_init_keeps_the_identity_when_repeated(program: Program) -> None:
    """F8: init prints the same identity when repeated; --raise-epoch raises the epoch."""
    first, again = program("init", "--json").json, program("init", "--json").json
    raised = program("init", "--raise-epoch", "--json").json

    assert first == again
    assert raised == {**first, "epoch": first["epoch"] + 1}
    assert first["log_id"] in program("init").out


def test_append_sets_every_field_of_an_event(program: Program) -> None:
    """A1: each option of append sets its field of the record."""
    ran = program(
        *("append", "paid", "-", "--stream", "invoice", "a/b c", "--event-version", "2"),
        *("--tag", "b", "--tag", "a", "--event-id", "E-1", "--key", "K", "--actor", "user", "ann"),
        *("--occurred-at", "2025-01-01T00:00:00+01:00", "--producer", "p", "--source", "s"),
        *("--subsystem", "t", "--request-id", "r", "--correlation-id", "c", "--app-id", "app"),
        *("--causation-id", "d", "--env-id", "env", "--metadata", "k=v=w", "--json"),
        given='{"amount": 1.50}',
    )
    record = program("read", "--event-id", "E-1", "--json").json

    assert ran.json == {
        "first_position": 1,
        "last_position": 1,
        "count": 1,
        "replayed": False,
        "events": [{"position": 1, "event_id": "E-1", "stream_seq": 1}],
    }
    expected: dict[str, Any] = {
        "stream_type": "invoice",
        "stream_id": "a/b c",
        "event_version": 2,
        "tags": ["b", "a"],
        "actor_type": "user",
        "actor_id": "ann",
        "occurred_at": "2025-01-01T00:00:00+01:00",
        "producer_id": "p",
        "source_system": "s",
        "source_subsystem": "t",
        "request_id": "r",
        "correlation_id": "c",
        "causation_id": "d",
        "app_id": "app",
        "env_id": "env",
        "metadata": {"k": "v=w"},
        "payload": {"amount": 1.5},
        "idempotency_key": "K/0",
    }
    assert {name: record[name] for name in expected} == expected
    assert "a/b c" in program("read", "--event-id", "E-1").out


def test_repeated_append_returns_the_first_receipt(program: Program) -> None:
    """C4: a repeated append returns the first receipt; other content is a conflict."""
    first = program("append", "paid", SEAT, "--key", "k", "--json").json
    again = program("append", "paid", SEAT, "--key", "k", "--json").json
    other = program("append", "paid", "{}", "--key", "k", "--json")

    assert again == {**first, "replayed": True}
    assert (other.code, other.out) == (5, "")
    assert other.error["code"] == "idempotency_conflict"


def test_append_on_a_condition(program: Program) -> None:
    """B8: append expects a sequence number or a context version, and fails with code 5."""
    stream = ("--stream", "show", "s")
    query = ("--expect-query", '{"filters": [{"types": ["seat.reserved"]}]}')

    assert program("append", "seat.reserved", *stream, "--expect-seq", "none").code == 0
    assert program("append", "seat.reserved", *stream, "--expect-seq", "none").code == 5
    assert program("append", "noted", *stream, "--expect-seq", "1").code == 0
    assert program("append", "noted", *query, "--expect-version", "none").code == 5
    assert program("append", "noted", *query, "--expect-version", "1").code == 0


def test_read_filters_and_pages(program: Program) -> None:
    """E1: read has filters, bounds and limits; text output names the next --after."""
    fill(program)

    everything = program("read", "--json").lines
    narrowed = program("read", "--stream", "show", "s:1", "--since", "1", "--json").lines
    typed = program("read", "--type", "noted", "--type", "x", "--after", "1", "--json").lines
    limited = program("read", "--limit", "1")

    assert [each["position"] for each in everything] == [1, 2, 3]
    assert everything[2]["payload"] == {"n": 10**20}
    assert [each["event_type"] for each in narrowed] == ["seat.released"]
    assert [each["position"] for each in typed] == [3]
    assert "seat.reserved" in limited.out
    assert "seat.released" not in limited.out
    assert "--after 1" in limited.err


def test_streams_are_listed(program: Program) -> None:
    """E2: streams lists each stream with its last sequence number."""
    fill(program)

    (stream,) = program("streams", "--json").lines

    assert (stream["stream_id"], stream["last_seq"]) == ("s:1", 2)
    assert "s:1" in program("streams", "--type", "show").out
    assert program("streams", "--type", "other", "--json").out == ""


def test_event_types_are_listed_with_counts(program: Program) -> None:
    """E7: types lists event types by name, with their counts, and says how to continue."""
    fill(program)

    listed = program("types", "--json").lines

    assert [(entry["event_type"], entry["counted"], entry["exact"]) for entry in listed] == [
        ("noted", 1, True),
        ("seat.released", 1, True),
        ("seat.reserved", 1, True),
    ]
    assert program("types", "--prefix", "seat.", "--after", "seat.released", "--json").lines == [
        listed[-1]
    ]
    page = program("types", "--limit", "1")
    assert "noted" in page.out
    assert "continue with --after noted" in page.out + page.err


def test_query_returns_records_and_context_version(program: Program) -> None:
    """D1: query returns records and context version; min_position does not change it."""
    fill(program)

    found = program("query", "--payload", SEAT, "--type", "seat.reserved", "--json").json
    later = program("query", "--payload", SEAT, "--min-position", "1", "--json").json
    tagged = program("query", "--tag", "vip")
    none = program("query", "--query", '{"filters": [{"types": []}]}', "--json").json

    assert (found["context_version"], len(found["records"])) == (1, 1)
    assert (later["context_version"], later["last_returned_position"]) == (2, 2)
    assert "context version 1" in tagged.out
    assert (none["context_version"], none["records"]) == (None, [])


def test_named_tail_continues(program: Program) -> None:
    """E5: a named tail continues after its last delivered append."""
    fill(program)
    named = ("tail", "--name", "mailer", "--json", "--idle-timeout", "0.3")

    first = program(*named, "--limit", "1").lines
    second = program(*named).lines
    third = program(*named).lines

    assert [each["position"] for each in first] == [1]
    assert [each["position"] for each in second] == [2, 3]
    assert third == []


def test_tail_prints_new_events_and_stops_on_ctrl_c(program: Program) -> None:
    """E5: tail prints events appended by other processes; Ctrl-C ends it with 130, quietly."""
    fill(program)
    tail = program.start("tail", "--after", "0", "--json")
    assert tail.stdout is not None
    seen = [json.loads(tail.stdout.readline())["position"] for _ in range(3)]
    program("append", "noted")
    seen.append(json.loads(tail.stdout.readline())["position"])
    tail.send_signal(signal.SIGINT)
    _, err = tail.communicate(timeout=30)

    assert seen == [1, 2, 3, 4]
    assert (tail.returncode, err) == (130, b"")


def test_export_and_import_copy_a_log(program: Program) -> None:
    """C3: an export imported once or several times gives each event once."""
    fill(program)
    program("append", "noted", "--tenant", "other")

    assert program("export", "log.ndjson.gz", "--json").json["events"] == 4
    first = program("import", "log.ndjson.gz", "--url", "sqlite:///copy.db", "--json").json
    again = program("import", "log.ndjson.gz", "--url", "sqlite:///copy.db")
    back = program("import", "log.ndjson.gz", "--json").json

    assert (first["appended"], first["ok"]) == (4, True)
    assert "4 already stored" in again.out
    assert (back["appended"], back["reused"]) == (0, 4)
    with gzip.open(program.folder / "log.ndjson.gz") as file:
        assert len(file.readlines()) == 6
    plain = program("export", "-", "--tenant", "other")
    assert [each.get("event_type") for each in plain.lines] == [None, "noted", None]
    assert not (program.folder / "log.ndjson.gz.part").exists()


def test_import_of_one_tenant_declares_nothing(program: Program) -> None:
    """K2, A8: an import into one tenant applies declarations only with --declarations."""
    source = seriatim.open(f"sqlite:///{program.folder}/source.db")
    source.declare(seriatim.StreamKind(name="order", catalogue="closed"))
    source.close()
    program("export", "rules.ndjson", "--url", f"sqlite:///{program.folder}/source.db")

    without = program("import", "rules.ndjson", "--tenant", "acme")
    accepted = program("append", "placed", "--stream", "order", "1")
    declared = program(
        "import", "rules.ndjson", "--tenant", "acme", "--declarations", "--json"
    ).json
    refused = program("append", "placed", "--stream", "order", "2")

    assert "--declarations" in without.err
    assert accepted.code == 0
    assert (declared["ok"], declared["undeclared"]) == (True, 0)
    assert refused.code != 0
    assert "closed catalogue" in refused.err


def test_import_bounds_an_append_while_reading(program: Program) -> None:
    """K3: an append above the limit is refused with its line, and the rest is imported."""
    with gzip.open(program.folder / "bomb.ndjson.gz", "wt") as file:
        for number in range(50_000):
            line = {"append_position": 1, "event_type": "x", "event_id": f"e-{number}"}
            file.write(json.dumps(line) + "\n")
        file.write('{"event_type": "x", "event_id": "after"}\n')

    done = program("import", "bomb.ndjson.gz", "--json")

    assert done.code == 1
    assert (done.json["appended"], done.json["refused"]) == (1, 50_000)
    assert "line 1" in done.json["refusals"][0]["message"]
    assert "append_events" in done.json["refusals"][0]["message"]


def test_import_of_a_damaged_file_is_no_success(program: Program) -> None:
    """L2: a truncated or damaged gzip file is reported, and the exit code is 1."""
    lines = "".join(f'{{"event_type":"x","event_id":"{uuid.uuid4()}"}}\n' for _ in range(2_000))
    packed = gzip.compress(lines.encode())
    (program.folder / "whole.gz").write_bytes(packed)
    (program.folder / "cut.gz").write_bytes(packed[: len(packed) // 2])
    (program.folder / "sum.gz").write_bytes(packed[:-8] + bytes(8))

    damaged = [program("import", name, "--json") for name in ("cut.gz", "sum.gz")]
    whole = program("import", "whole.gz", "--json")

    assert [(one.code, one.json["complete"], one.json["ok"]) for one in damaged] == [
        (1, False, False),
        (1, False, False),
    ]
    assert 0 < damaged[0].json["appended"] < 2_000
    assert (whole.code, whole.json["ok"]) == (0, True)


def test_import_keeps_the_order_of_appends_of_all_sizes(program: Program) -> None:
    """C3: appends of all sizes are imported in order; a second import reuses them all."""
    source = seriatim.open(f"sqlite:///{program.folder}/source.db")
    for size in (60, 1, 2, 60, 1, 200, 1):
        source.append([NewEvent("noted", {"n": n}, stream=("s", "a")) for n in range(size)])
    expected = [(each.append_position, each.event_id) for each in source.read()]
    source.close()
    program("export", "all.ndjson", "--url", f"sqlite:///{program.folder}/source.db")

    first = program("import", "all.ndjson", "--json").json
    again = program("import", "all.ndjson", "--json").json
    arrived = program("read", "--json").lines

    assert (first["appended"], first["refused"]) == (325, 0)
    assert (again["appended"], again["reused"]) == (0, 325)
    assert [(each["append_position"], each["event_id"]) for each in arrived] == expected


def test_init_grants_a_role_insert_and_select(postgres_url: str, tmp_path: Path) -> None:
    """F2: init grants the application's role insert and select on events, and nothing else."""
    program = Program(postgres_url, tmp_path)
    role = f"app_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'create role "{role}"')
        granted = program("init", "--app-role", role, "--json")
        question = "select has_table_privilege(%s, 'seriatim.events', %s)"
        rights = {
            right: connection.execute(question, (role, right)).fetchone()
            for right in ("INSERT", "SELECT", "UPDATE", "DELETE", "TRUNCATE")
        }
        connection.execute(f'drop owned by "{role}"')
        connection.execute(f'drop role "{role}"')

    assert granted.code == 0, granted.err
    assert [right for right, held in rights.items() if held == (True,)] == ["INSERT", "SELECT"]
    assert program("init", "--app-role", "nobody-there").code == 4


def test_verify_accepts_an_intact_log(program: Program) -> None:
    """F2: verify accepts an intact log and counts its events and appends."""
    fill(program)

    report = program("verify", "--full", "--json").json
    result = program("verify")

    assert (report["ok"], report["events"], report["appends"]) == (True, 3, 2)
    assert (result.code, "the log is sound" in result.out) == (0, True)


def test_doctor_lists_findings_with_remedies(program: Program) -> None:
    """F9: doctor lists findings with remedies, and its exit code is 1 if one is an error."""
    health = program("doctor", "--json")
    result = program("doctor")

    findings = health.json["findings"]
    errors = [each for each in findings if each["level"] == "error"]
    assert all(set(each) == {"level", "check", "message", "cure"} for each in findings)
    assert all("fsync is off" in each["message"] for each in errors)
    assert health.code == result.code == (1 if errors else 0)
    assert health.json["ok"] is (not errors)
    assert all(each["cure"] in result.out for each in errors)
