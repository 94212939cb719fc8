"""The command console: a one-time link, pages only, no writes, and a quiet end."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.acceptance.cli_program import Program


class Page(msgspec.Struct, frozen=True):
    """A response: its status, location, cookie and text."""

    status: int
    location: str
    cookie: str
    text: str


class RunningConsole:
    """A console that the program has started, and a browser of its pages."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        line = process.stdout.readline()
        assert line, process.communicate()
        self.announced = json.loads(line)
        self._host = urlsplit(self.announced["url"]).netloc
        self.cookie = ""

    def get(self, address: str) -> Page:
        """Request a URL."""
        connection = http.client.HTTPConnection(self._host, timeout=60)
        parts = urlsplit(address)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Cookie": self.cookie} if self.cookie else {})
        response = connection.getresponse()
        cookie = response.headers.get("set-cookie", "").partition(";")[0]
        text = response.read().decode()
        connection.close()
        return Page(response.status, response.headers.get("location", ""), cookie, text)

    def sign_in(self) -> Page:
        """Use the sign-in link, and keep the cookie."""
        page = self.get(self.announced["sign_in_link"])
        self.cookie = page.cookie
        return page

    def interrupt(self) -> tuple[int, str]:
        """Press Ctrl-C; return the exit code and stderr."""
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err.decode()


@contextmanager
def running_console(program: Program, *args: str) -> Iterator[RunningConsole]:
    """Run the console of a program's log."""
    process = program.start("console", "--no-open", "--json", *args)
    try:
        yield RunningConsole(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def test_the_sign_in_link_works_once(program: Program) -> None:
    """N2: the link signs in once, pages need the session, and Ctrl-C ends the console with 0."""
    program("append", "seat.reserved", '{"seat": "12A"}')
    with running_console(program) as console:
        before = console.get("/console/traces")
        signed_in = console.sign_in()
        traces = console.get("/console/traces")
        again = console.get(console.announced["sign_in_link"])
        ended = console.interrupt()

    assert before.status == 303
    assert before.location.startswith("/console/sign-in")
    assert (signed_in.status, signed_in.location) == (303, "/console/")
    assert traces.status == 200
    assert again.status == 403
    assert not again.cookie
    assert ended == (0, "")


def test_the_api_refuses_the_session_cookie(sqlite: Program) -> None:
    """N2, K4: the API refuses the session cookie of a console."""
    with running_console(sqlite) as console:
        console.sign_in()
        events = console.get("/v1/events")

    assert events.status == 401


def test_the_session_is_read_only_by_default(sqlite: Program) -> None:
    """N2: only a console started with --operate has the form for dry runs of appends."""
    has_form = []
    for args in ((), ("--operate",)):
        with running_console(sqlite, *args) as console:
            console.sign_in()
            has_form.append("<textarea" in console.get("/console/why").text)

    assert has_form == [False, True]


def test_reading_writes_no_file(sqlite: Program) -> None:
    """N1: reading in the console changes neither the log nor its folder."""
    sqlite("append", "seat.reserved", '{"seat": "12A"}')
    before = list_files(sqlite.folder)
    content = (sqlite.folder / "log.db").read_bytes()
    with running_console(sqlite) as console:
        console.sign_in()
        console.get("/console/traces")
        console.interrupt()

    assert list_files(sqlite.folder) == before
    assert (sqlite.folder / "log.db").read_bytes() == content


def list_files(folder: Path) -> set[str]:
    """Return the relative paths of all files in a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_log_in_memory_has_a_console(program_without_log: Program) -> None:
    """N1: the console opens a log in memory."""
    with running_console(program_without_log, "--url", "memory:") as console:
        console.sign_in()

        assert console.get("/console/traces").status == 200


@pytest.mark.parametrize(
    ("url", "code", "part"),
    [
        ("sqlite:///missing.db", "backend_failure", "there is no log"),
        ("https://log.example", "invalid_argument", "https://log.example/console/"),
    ],
)
def test_missing_and_remote_logs_are_refused(
    program_without_log: Program, url: str, code: str, part: str
) -> None:
    """N1: a missing log is not created, and a service's URL is refused with its console's URL."""
    result = program_without_log("console", "--no-open", "--url", url, "--json")

    assert result.error["code"] == code
    assert part in result.error["message"]
    assert not list_files(program_without_log.folder)


def test_the_browser_opens_the_sign_in_link(sqlite: Program) -> None:
    """N2: the program opens the browser with the printed link."""
    seen = sqlite.folder / "seen"
    browser = sqlite.folder / "browser"
    browser.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(seen)!r}, 'w').write(sys.argv[1])"
    )
    browser.chmod(0o755)
    sqlite.env["BROWSER"] = str(browser)
    process = sqlite.start("console", "--json")
    try:
        console = RunningConsole(process)
        console.sign_in()
        while not (seen.exists() and seen.read_text()):
            assert process.poll() is None
    finally:
        process.kill()
        process.communicate(timeout=30)

    assert seen.read_text() == console.announced["sign_in_link"]
