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


def create_token(program: Program, *args: str) -> str:
    """Create a token."""
    text: str = program("token", "create", *args, "--json").json["token"]
    return text


def test_token_lifecycle(program: Program) -> None:
    """K4: a token is created, listed without its secret, used, revoked, and then refused."""
    created = program(
        *("token", "create", "--service", "shop", "--tenant", "acme", "--rights", "append,read"),
        *("--expires", "90d", "--note", "the shop", "--json"),
    ).json
    secret = created["token"]
    listed = program("token", "list", "--json")
    [entry] = listed.lines
    output = program("token", "list").out
    with serving(program) as (port, _):
        caller = Caller(port, secret)
        assert caller.append(make_event("order.placed")).status == 201
        assert caller("GET", "/v1/events").json["records"][0]["actor_id"] == "shop"
        assert program("token", "revoke", created["token_id"]).code == 0
        wait_until(lambda: caller("GET", "/v1/log").status == 401, "refused", within_s=5)

    assert entry == {name: value for name, value in created.items() if name != "token"}
    assert (entry["subject"], entry["tenant_id"], entry["rights"]) == (
        "shop",
        "acme",
        ["append", "read"],
    )
    assert secret.split("_", 2)[2] not in listed.out + output
    assert "the shop" in output
    assert program("token", "revoke", created["token_id"]).code != 0
    assert program("token", "list", "--json").lines[0]["revoked_at"]


def test_invalid_tokens_are_not_created(sqlite: Program) -> None:
    """K4: invalid combinations of rights, types, expiry and tenant are refused."""
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
    """K4: a quota is set, listed, enforced for its tenant only, and removed."""
    calm = create_token(program, "--service", "s", "--tenant", "calm", "--rights", "append")
    loud = create_token(program, "--service", "s", "--tenant", "loud", "--rights", "append")
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
    """F5: the service accepts calls once its address is printed; SIGTERM ends it with 0."""
    text = create_token(program, "--service", "s", "--tenant", "t", "--rights", "append,read")
    with serving(program, "--processes", "2") as (port, process):
        assert Caller(port)("GET", "/health").status == 200
        assert Caller(port, text).append(make_event()).status == 201
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0


def test_a_service_is_open_until_the_first_token(sqlite: Program) -> None:
    """K4: a service without tokens accepts anonymous calls until the first token is created."""
    with serving(sqlite) as (port, process):
        anonymous = Caller(port)
        assert anonymous.append(make_event()).status == 201
        create_token(sqlite, "--service", "s", "--rights", "append")
        wait_until(lambda: anonymous("GET", "/v1/log").status == 401, "closed", within_s=6)
        process.terminate()
        assert process.wait(40) == 0


def test_other_hosts_require_tls(sqlite: Program) -> None:
    """K2: a public host without TLS is refused, and the error names --certificate."""
    ran = sqlite("serve", "--host", "0.0.0.0", "--json")  # noqa: S104 - refused

    assert (ran.code, ran.error["code"]) == (2, "invalid_argument")
    assert "--certificate" in ran.error["message"]
