"""The commands publish, reconcile, work, registry and dlq."""

import os
import signal
import socket
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest

import seriatim
from seriatim import NewEvent, RetryPolicy, handler, open_registry
from seriatim.factory import registry_url
from seriatim.testing.factories import wait_for
from tests.acceptance.cli_program import Program
from tests.fixtures.spark import kafka_packages

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_java")]

LOCAL = ("--engine", "local")
DECLARED = """
from pathlib import Path

from seriatim import RetryPolicy, handler


@handler("seats", events=["seat.*"], effect="keyed", retry=RetryPolicy(attempts=1))
def seats(event, context):
    if event.payload["seat"] == "13F" and not Path("mended").exists():
        raise ValueError("there is no row 13")
    with Path("effects").open("a") as file:
        file.write(f"{event.payload['seat']} {context.key}\\n")
"""


def fill(program: Program, *seats: str) -> None:
    """Reserve seats of one show."""
    with seriatim.open(program.env["SERIATIM_URL"]) as log:
        for seat in seats:
            log.append([NewEvent("seat.reserved", {"seat": seat}, stream=("show", "s-1"))])


def effects(program: Program) -> list[str]:
    """Return the seats in the file written by the handler."""
    lines = Path(program.folder, "effects").read_text().splitlines()
    return [line.split()[0] for line in lines]


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_handler_lifecycle(sqlite: Program, engine: str) -> None:
    """G5, I10: work, dead letters, retry after a fix, and pause; errors have no traceback."""
    Path(sqlite.folder, "shop.py").write_text(DECLARED)
    missing = sqlite("registry", "status")
    fill(sqlite, "1A", "13F", "1C")
    work = ("work", "shop:seats", "--engine", engine)
    ran = sqlite(*work, "--json")
    status = sqlite("registry", "status").out
    dead_letters = sqlite("dlq", "list", "--json").lines
    details = sqlite("dlq", "show", dead_letters[0]["event_id"])
    waiting = sqlite("registry", "waiting", "--json").lines
    unspecified = sqlite("dlq", "retry")
    Path(sqlite.folder, "mended").touch()
    retried = sqlite("dlq", "retry", "--event", dead_letters[0]["event_id"], "--json")
    again = sqlite(*work, "--json")

    assert (missing.code, "there is no registry" in missing.err) == (3, True)
    assert (ran.code, ran.json["done"], ran.json["dead"], ran.json["kept"]) == (0, 1, 1, 1)
    assert "dead" in status
    assert "blocked" in status
    assert dead_letters[0]["error"] == "ValueError: there is no row 13"
    assert "13F" in details.out
    assert [one["stream_seq"] for one in waiting] == [3]
    assert (unspecified.code, "must be one event id, or use --all" in unspecified.err) == (2, True)
    assert retried.json == {"retried": 1}
    assert (again.code, again.json["done"]) == (0, 2)
    assert effects(sqlite) == ["1A", "13F", "1C"]
    assert sqlite("dlq", "drop", "--all", "--reason", "none left").code == 1
    assert sqlite("registry", "pause", "seats", "--reason", "deploying").code == 0
    paused = sqlite(*work)
    assert (paused.code, "paused: deploying" in paused.err) == (5, True)
    assert sqlite("registry", "resume", "seats").code == 0
    assert "Traceback" not in missing.err + unspecified.err + paused.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_signal_ends_a_live_local_handler(sqlite: Program, number: int) -> None:
    """G7, M2: a live handler on the local engine reports metrics, and leaves no claim behind."""
    Path(sqlite.folder, "shop.py").write_text(DECLARED)
    fill(sqlite, "1A")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    following = sqlite.start(
        *("work", "shop:seats", "--engine", "local", "--live", "--metrics", address)
    )
    wait_for(lambda: Path(sqlite.folder, "effects").exists())
    fill(sqlite, "1B", "1C")
    wait_for(lambda: len(effects(sqlite)) == 3)
    text = 'seriatim_job_position{job="seats"} 3.0'
    wait_for(lambda: text in urlopen(f"http://{address}/metrics").read().decode())
    os.killpg(following.pid, number)
    _, output = following.communicate(timeout=60)

    assert following.returncode == 130
    assert b"Traceback" not in output
    assert b"press Ctrl-C to stop" in output
    with closing(open_registry(registry_url(sqlite.env["SERIATIM_URL"]))) as registry:
        assert [(one.status, one.count) for one in registry.counts(finished=True)] == [("done", 3)]


def test_operator_commands_report_missing_events(sqlite: Program) -> None:
    """L3, G9: a missing event is `not_found`; a reset reports its changes."""
    fill(sqlite, "1A", "1B")
    url = sqlite.env["SERIATIM_URL"]
    seats = handler("seats", effect="keyed")(lambda _event, _context: None)
    with seriatim.open(url) as log:
        registry = open_registry(registry_url(url), log=log)
        records = list(log.read())
        registry.mark_done(seats, registry.claim_all(seats, registry.deliveries(records[:1])))
        registry.claim_all(seats, registry.deliveries(records[1:]))
        registry.close()
        log.store.raise_epoch()
    status = sqlite("registry", "status")
    finished = sqlite("registry", "status", "--finished", "--json")
    acts = [
        sqlite("dlq", "retry", "--event", "nobody"),
        sqlite("dlq", "drop", "--event", "nobody", "--reason", "none"),
        sqlite("registry", "retry", "--event", "nobody"),
        sqlite("registry", "skip", "--event", "nobody", "--reason", "none"),
        sqlite("dlq", "show", "nobody"),
        sqlite("registry", "prune", "nobody", "--days", "1", "--reason", "none"),
        sqlite("registry", "reset", "nobody", "--reason", "none"),
    ]
    dry = sqlite("registry", "reset", "seats", "--reason", "restored", "--dry-run", "--json")
    reset = sqlite(
        *("registry", "reset", "seats", "--reason", "restored"),
        *("--position", "1", "--yes", "--json"),
    )
    unasked = sqlite("registry", "reset", "seats", "--reason", "restored", "--position", "0")

    assert "not declared" in status.out
    assert "claimed" in status.out
    assert [log["epoch"] for log in finished.json["logs"]] == [1]
    for act in acts:
        assert (act.code, "not_found" in act.err, "Traceback" in act.err) == (3, True, False)
    assert (dry.code, dry.json["position"], dry.json["forgotten"]) == (0, 2, {})
    assert (unasked.code, "--yes" in unasked.err or "yes is required" in unasked.err) == (2, True)
    assert (reset.code, reset.json["epoch"], reset.json["forgotten"]) == (0, 2, {"claimed": 1})


def test_brackets_are_printed_as_text(sqlite: Program) -> None:
    """L3: ids and errors are printed unchanged, even if they look like markup."""
    url = sqlite.env["SERIATIM_URL"]
    error = "KeyError: [red]row[/] of orders[3] [/nowhere]"

    def fail(_event: object, _context: object) -> None:
        raise ValueError(error)

    seats = handler("seats[1]", effect="keyed", retry=RetryPolicy(attempts=1))(fail)
    with seriatim.open(url) as log:
        log.append([NewEvent("seat[x].reserved", event_id="e-[/b]")])
        registry = open_registry(registry_url(url), log=log)
        registry.handle(seats, list(log.read()))
        registry.close()
    listed = sqlite("dlq", "list")
    status = sqlite("registry", "status")

    assert listed.code == 0
    for text in ("seats[1]", "e-[/b]", "seat[x].reserved", error):
        assert text in listed.out
    assert "seats[1]" in status.out


def test_publish_reconcile_and_work_from_kafka(sqlite: Program, topic_url: str) -> None:
    """H1, H5: commands publish to a topic, compare it with the log, and handle its events."""
    Path(sqlite.folder, "shop.py").write_text(DECLARED)
    fill(sqlite, "1A", "1B", "1C")
    jars = f"spark.jars={kafka_packages()['spark.jars']}"
    published = sqlite("publish", "--to", topic_url, "--create-topics", "--json")
    again = sqlite("publish", "--to", topic_url, "--json")
    equal = sqlite("reconcile", "--to", topic_url, "--conf", jars, "--json")
    worked = sqlite("work", "shop:seats", "--from", topic_url, "--conf", jars, "--json")
    fill(sqlite, "1D")
    differs = sqlite("reconcile", "--to", topic_url, "--conf", jars)

    assert (published.code, published.json["sent"], published.json["position"]) == (0, 3, 3)
    assert again.json["sent"] == 0
    assert (equal.code, equal.json["equal"], equal.json["messages"]) == (0, True, 3)
    assert (worked.code, worked.json["done"]) == (0, 3)
    assert effects(sqlite) == ["1A", "1B", "1C"]
    assert (differs.code, "missing" in differs.out) == (1, True)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("publish", "--to", "http://x"), "kafka://host:port/topic"),
        (("publish", "--to", "kafka://x:1/t?sasl.password=abc"), "is a secret"),
        (("publish", "--to", "kafka://x:1/t", "--kafka", "nonsense"), "KEY=VALUE"),
        (("work", "nowhere:thing"), "cannot be imported"),
        (("work", "shop:effects"), "is not a handler"),
        (("work", "shop:seats", "--role", "boss"), "must be one of"),
        (("work", "shop:seats", *LOCAL, "--from", "kafka://x:1/t"), "a topic needs Spark"),
        (("work", "shop:seats", *LOCAL, "--master", "local[1]"), "leave it out with --engine"),
        (("work", "shop:seats", *LOCAL, "--on-outage", "dlq"), "dlq needs a dead-letter topic"),
    ],
    ids=["address", "secret", "setting", "module", "name", "role", "source", "master", "dlq"],
)
def test_invalid_options_are_refused(sqlite: Program, command: tuple[str, ...], words: str) -> None:
    """K: invalid options are refused before anything starts, with the reason."""
    Path(sqlite.folder, "shop.py").write_text(DECLARED)
    ran = sqlite(*command)

    assert (ran.code, words in ran.err) == (2, True), ran.err
    assert "abc" not in ran.err
    assert "Traceback" not in ran.err
