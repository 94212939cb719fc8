"""`*` stands for every tenant, so no entry point accepts it as the name of a tenant (K2)."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from pyspark.sql import SparkSession

import seriatim
from seriatim import Delivery, InvalidArgument, Log, NewEvent, open_registry
from seriatim.core.event import EventRecord
from seriatim.log.export_format import export_log
from seriatim.log.importer import import_events
from seriatim.pipeline.kafka.address import Target
from seriatim.pipeline.kafka.messages import decode_record, encode_value
from seriatim.pipeline.publish.publisher import Publisher
from seriatim.pipeline.scan.options import parse_source_options
from seriatim.pipeline.sink.frame_writer import parse_sink_options
from seriatim.pipeline.work.worker import Worker
from tests.acceptance.cli_program import Program

ALL = "*"
UNUSED = cast(SparkSession, None)  # the name is refused before Spark is touched
TARGET = Target("127.0.0.1:9")


@seriatim.handler("reserved", effect="keyed")
def reserved(_event: EventRecord, _effect: Any) -> None:
    """Do nothing."""


class LogWithRegistry:
    """A log with one event, and the URL of a registry."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/log.db"
        self.registry = f"sqlite:///{folder}/registry.db"
        self.log: Log = seriatim.open(self.url)
        self.log.append([NewEvent("seat.reserved", {"seat": "1A"}, stream=("show", "s-1"))])

    @property
    def record(self) -> EventRecord:
        """Return the event as if it were of the reserved tenant."""
        [event] = self.log.read()
        return msgspec.structs.replace(event, tenant_id=ALL)

    def lines(self) -> list[bytes]:
        """Return the log's export."""
        written: list[bytes] = []
        export_log(self.log.store, written.append)
        return b"".join(written).splitlines(keepends=True)


def claim_one(place: LogWithRegistry) -> None:
    """Claim a delivery in a `with` block."""
    with (
        closing(open_registry(place.registry)) as registry,
        registry.claim(reserved, Delivery(event_id="e", tenant_id=ALL)),
    ):
        pytest.fail("it was claimed")


def claim_many(place: LogWithRegistry) -> None:
    """Claim several deliveries at once, one of them of the reserved tenant."""
    deliveries = [Delivery(event_id="e"), Delivery(event_id="e", tenant_id=ALL)]
    with closing(open_registry(place.registry)) as registry:
        registry.claim_all(reserved, deliveries)


def handle_record(place: LogWithRegistry) -> None:
    """Handle a record of the reserved tenant."""
    with closing(open_registry(place.registry, log=place.log)) as registry:
        registry.handle(reserved, place.record)


def reset(place: LogWithRegistry) -> None:
    """Reset a handler for the reserved tenant."""
    with closing(open_registry(place.registry)) as registry:
        registry.reset("reserved", place.log, reason="restored", tenant_id=ALL)


ENTRIES: dict[str, Callable[[LogWithRegistry], object]] = {
    "open": lambda place: seriatim.open(place.url, tenant_id=ALL),
    "for_tenant": lambda place: place.log.for_tenant(ALL),
    "for_tenant, awaited": lambda place: place.log.aio.for_tenant(ALL),
    "import": lambda place: import_events(place.log, place.lines(), tenant_id=ALL),
    "export": lambda place: export_log(place.log.store, len, tenant_id=ALL),
    "claim": claim_one,
    "claim_all": claim_many,
    "handle": handle_record,
    "reset": reset,
    "Worker": lambda place: Worker(UNUSED, reserved, url=place.url, tenant_id=ALL),
    "Publisher": lambda place: Publisher(UNUSED, place.url, TARGET, "kept", tenant_id=ALL),
    "source": lambda place: parse_source_options({"url": place.url, "tenant": ALL}),
    "sink": lambda place: parse_sink_options({"url": place.url, "tenant": ALL}),
}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LogWithRegistry]:
    """A log with one event."""
    tested = LogWithRegistry(tmp_path)
    yield tested
    tested.log.close()


@pytest.mark.parametrize("entry", ENTRIES)
def test_functions_refuse_the_reserved_tenant(place: LogWithRegistry, entry: str) -> None:
    """K2: `*` is refused with `invalid_argument`, which names the argument."""
    with pytest.raises(InvalidArgument, match=r"name one tenant: \* stands for all") as refused:
        ENTRIES[entry](place)
    assert refused.value.details["argument"] in ("tenant_id", "tenant")


def test_import_refuses_the_reserved_tenant(place: LogWithRegistry) -> None:
    """K2: the events of an export with the reserved tenant are refused one by one."""
    lines = [line.replace(b'"tenant_id":"default"', b'"tenant_id":"*"') for line in place.lines()]
    assert lines != place.lines()
    with seriatim.open("memory:") as empty:
        report = import_events(empty, lines)
        assert (report.appended, empty.head()) == (0, 0)
        assert [refusal.code for refusal in report.refusals] == ["invalid_argument"]


def test_a_message_of_the_reserved_tenant_is_not_decoded(place: LogWithRegistry) -> None:
    """K2: a message of the reserved tenant is refused when it is decoded."""
    with pytest.raises(ValueError, match="stands for all"):
        decode_record(encode_value(place.record))


@pytest.mark.parametrize(
    "command",
    [
        ("append", "seat.reserved", "{}"),
        ("read",),
        ("tail",),
        ("streams",),
        ("import", "export.ndjson"),
        ("export", "written.ndjson"),
        ("publish", "--to", "kafka://127.0.0.1:9/{tenant}"),
        ("work", "shop:mail"),
        ("registry", "status"),
        ("dlq", "list"),
        ("project", "status"),
    ],
    ids=" ".join,
)
def test_commands_refuse_the_reserved_tenant(sqlite: Program, command: tuple[str, ...]) -> None:
    """K2: `--tenant '*'` ends a command with code 2 and one line."""
    Path(sqlite.folder, "export.ndjson").write_bytes(b"")
    ran = sqlite(*command, "--tenant", ALL)
    assert ran.code == 2
    assert "stands for all" in ran.err.replace("\n", " ")
    assert "Traceback" not in ran.err
