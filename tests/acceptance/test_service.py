"""The commands serve, token and quota."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.acceptance.cli_program import Program
from tests.faults.support import wait_until
from tests.service.http_calls import Caller, make_event

_AT = re.compile(r"http://127\.0\.0\.1:(\d+)")


@contextmanager
def serving(program: Program, *args: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Serve the program's log; yield the port and the process."""
    process = program.start("serve", "--port", "0", *args)
    assert process.stderr is not None
    try:
        while not (found := _AT.search(line := process.stderr.readline().decode())):
            assert line, "it ended"
        yield int(found[1]), process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def token(program: Program, *args: str) -> str:
    """Make a token."""
    made: str = program("token", "create", *args, "--json").json["token"]
    return made


def test_token_lifecycle(program: Program) -> None:
    """K4: created, listed without its secret, used, revoked; then it is refused."""
    made = program(
        *("token", "create", "--service", "shop", "--tenant", "acme", "--rights", "append,read"),
        *("--expires", "90d", "--note", "the shop", "--json"),
    ).json
    text = made["token"]
    listed = program("token", "list", "--json")
    [known] = listed.lines
    output = program("token", "list").out
    with serving(program) as (port, _):
        who = Caller(port, text)
        assert who.append(make_event("order.placed")).status == 201
        assert who("GET", "/v1/events").json["records"][0]["actor_id"] == "shop"
        assert program("token", "revoke", made["token_id"]).code == 0
        wait_until(lambda: who("GET", "/v1/log").status == 401, "refused", within_s=5)

    assert known == {name: value for name, value in made.items() if name != "token"}
    assert (known["subject"], known["tenant_id"], known["rights"]) == (
        "shop",
        "acme",
        ["append", "read"],
    )
    assert text.split("_", 2)[2] not in listed.out + output
    assert "the shop" in output
    assert program("token", "revoke", made["token_id"]).code != 0
    assert program("token", "list", "--json").lines[0]["revoked_at"]


def test_tokens_that_make_no_sense_are_refused(sqlite: Program) -> None:
    """K4: a tenant's token only reads; rights, types and ends are checked."""
    for wrong in (
        ("--rights", "append"),
        ("--service", "x", "--rights", "fly"),
        ("--service", "x", "--rights", "read", "--type", "order.*"),
        ("--service", "x", "--expires", "soon"),
        ("--all-tenants", "--tenant", "t"),
        ("--service", "x", "--tenant", "*"),
        ("--service", "x", "--tenant", "_infrastructure"),
        ("--all-tenants",),
    ):
        ran = sqlite("token", "create", *wrong, "--json")
        assert (ran.code, ran.error["code"], ran.out) == (2, "invalid_argument", "")


def test_quota_lifecycle(program: Program) -> None:
    """K4: set, listed, felt by its tenant alone, removed."""
    calm = token(program, "--service", "s", "--tenant", "calm", "--rights", "append")
    loud = token(program, "--service", "s", "--tenant", "loud", "--rights", "append")
    of_loud = ("--tenant", "loud")
    with serving(program) as (port, _):
        ran = program("quota", "set", *of_loud, "--events-per-second", "1", "--json")
        assert ran.json == {"tenant_id": "loud", "events_per_s": 1.0, "bytes_per_s": 0.0}
        assert program("quota", "list", "--json").lines == [ran.json]
        assert "1 events per second" in program("quota", "list").out
        wait_until(lambda: Caller(port, loud).append(make_event()).status == 429, "bounded", 10)
        assert Caller(port, calm).append(make_event()).status == 201
        assert program("quota", "remove", *of_loud, "--json").json == {"removed": "loud"}
        wait_until(lambda: Caller(port, loud).append(make_event()).status == 201, "free", 10)

    assert program("quota", "list", "--json").out == ""
    assert program("quota", "remove", *of_loud).code != 0


def test_serve_prints_its_address_and_stops_on_sigterm(program: Program) -> None:
    """F5: the address is on stderr and takes calls at once; SIGTERM ends it with 0."""
    text = token(program, "--service", "s", "--tenant", "t", "--rights", "append,read")
    with serving(program, "--processes", "2") as (port, process):
        assert Caller(port)("GET", "/health").status == 200
        assert Caller(port, text).append(make_event()).status == 201
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0


def test_an_embedded_log_is_open_until_the_first_token(sqlite: Program) -> None:
    """K4: a service without tokens warns clearly; the first token ends that."""
    with serving(sqlite) as (port, process):
        anybody = Caller(port)
        assert anybody.append(make_event()).status == 201
        token(sqlite, "--service", "s", "--rights", "append")
        wait_until(lambda: anybody("GET", "/v1/log").status == 401, "closed", within_s=6)
        process.terminate()
        assert process.wait(40) == 0


def test_other_machines_are_not_served_in_the_clear(sqlite: Program) -> None:
    """K2: beyond this machine only with TLS, or with a word that a proxy speaks it."""
    ran = sqlite("serve", "--host", "0.0.0.0", "--json")  # noqa: S104 - refused

    assert (ran.code, ran.error["code"]) == (2, "invalid_argument")
    assert "--certificate" in ran.error["message"]
