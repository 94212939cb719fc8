"""Clients can be generated from the OpenAPI document, in Python and TypeScript."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fixtures.client_generators import python_generator, typescript_generator
from tests.fixtures.service import RunningService
from tests.service.http_calls import make_caller

# Runs where the generator is installed, with the client that it has made.
USE = """
import sys
from made import AuthenticatedClient
from made.api.default import get_events, get_log, post_events
from made.models import AppendBody, WireEvent

url, token = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=token, raise_on_unexpected_status=True)
body = AppendBody(events=[WireEvent(event_type="made.by.client", payload={"n": 1})])
receipt = post_events.sync(client=client, body=body)
page = get_events.sync(client=client, types=["made.by.client"], limit=10)
head = get_log.sync(client=client).head
assert receipt.last_position == head, (receipt, head)
assert [one.event_type for one in page.records] == ["made.by.client"], page
"""


@pytest.fixture(scope="module")
def described(quick: RunningService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The OpenAPI document of a service, in a file."""
    found = tmp_path_factory.mktemp("described") / "openapi.json"
    found.write_bytes(make_caller(quick)("GET", "/v1/openapi.json").body)
    return found


def test_a_python_client_is_generated(
    quick: RunningService, described: Path, tmp_path: Path
) -> None:
    """L1: openapi-python-client accepts the document; its client appends and reads."""
    tools = python_generator() / "bin"
    made = subprocess.run(
        [
            *(tools / "openapi-python-client", "generate", "--path", described),
            *("--meta", "none", "--output-path", tmp_path / "made"),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "ERROR" not in made.stdout + made.stderr, made
    assert "unsupported" not in (made.stdout + made.stderr).lower(), made
    subprocess.run(
        [tools / "python", "-c", USE, quick.url, quick.token(tenant_id="generated")],
        check=True,
        cwd=tmp_path,
        timeout=60,
    )


def test_typescript_types_are_generated(described: Path, tmp_path: Path) -> None:
    """L1: openapi-typescript accepts the document; its types compile."""
    tools = typescript_generator() / "node_modules/.bin"
    made = tmp_path / "seriatim.ts"
    subprocess.run([tools / "openapi-typescript", described, "-o", made], check=True)
    assert '"/v1/events"' in made.read_text()
    subprocess.run([tools / "tsc", "--noEmit", "--strict", "--skipLibCheck", made], check=True)
