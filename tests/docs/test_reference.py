"""The reference is complete and has no entry for a name that does not exist."""

import importlib
import inspect
import re
import typing
from types import ModuleType
from typing import Any

import msgspec
import pytest
import typer.main

import seriatim
import seriatim.guards
import seriatim.server
import seriatim.spark
import seriatim.telemetry
from seriatim import (
    AppendResult,
    EventRecord,
    Filter,
    Limits,
    Log,
    NewEvent,
    Query,
    Registry,
    RegistrySettings,
    Settings,
)
from seriatim.access.rights import RIGHTS
from seriatim.cli import exit_codes
from seriatim.cli.app import app
from seriatim.config import (
    JAVA_VARIABLE,
    MASTER_VARIABLE,
    MISMATCH_VARIABLE,
    OBJECT_STORE_VARIABLES,
    TOKEN_VARIABLE,
    URL_VARIABLE,
)
from seriatim.config.delivery import DELIVERY_VARIABLES
from seriatim.config.telemetry import (
    DISABLED_VARIABLE,
    ENDPOINT_VARIABLES,
    METRICS_VARIABLE,
)
from seriatim.core.errors import ALL_ERRORS
from seriatim.core.guard import BUILT_IN_GUARDS
from seriatim.core.guard_rules import CREDENTIALS, PERSONAL_DATA
from seriatim.delivery.claims import Status
from seriatim.delivery.handlers import Handlers
from seriatim.factory import AsyncLog
from seriatim.log.projections import Projections
from seriatim.log.query_execution import QueryResult
from seriatim.pipeline.builtin_projections import BUILTIN_PROJECTIONS
from seriatim.pipeline.columns import EVENT_COLUMNS
from seriatim.pipeline.scan.options import SOURCE_OPTIONS
from seriatim.pipeline.sink.frame_writer import SINK_OPTIONS
from seriatim.profiles.base import Profile
from seriatim.profiles.trace_rules import TRACE_TYPES
from seriatim.spark import (
    AppendReport,
    Archive,
    ArchiveReport,
    ArchiveVerificationReport,
    AuditReport,
    Counts,
    ExportReport,
    Progress,
    Projector,
    Proof,
    PublisherSettings,
    PublishReport,
    ReconciliationReport,
    RestoreReport,
    RunReport,
    Target,
)
from seriatim.store.readmodel.port import ProjectionStanding
from seriatim.telemetry.event_bus import EventName
from seriatim.telemetry.metric_families import FAMILIES
from tests.docs.pages import DOCS, ROOT, first_cells, read, rows, section
from tests.tidy.test_public_imports import PUBLIC_MODULES

CLI = "docs/reference/cli.md"
COMMON = {"--url", "--tenant", "--json", "--help"}
GROUP: Any = typer.main.get_command(app)


def list_commands(group: Any, before: str = "") -> dict[str, Any]:
    """Return the commands under their full names, in the order of the help."""
    found: dict[str, Any] = {}
    for name, one in group.commands.items():
        inner = getattr(one, "commands", None)
        if inner is None or one.invoke_without_command:
            found[before + name] = one
        if inner is not None:
            found |= list_commands(one, f"{before}{name} ")
    return found


COMMANDS = list_commands(GROUP)


def list_documented(page: str, heading: str | None = None) -> list[str]:
    """Return the names in the first cells of a page's tables, or of those under a heading."""
    text = read(f"docs/{page}")
    return first_cells(text if heading is None else section(text, heading))


def public_names(kind: type) -> set[str]:
    """Return the names of a class without a leading underscore."""
    return {name for name in dir(kind) if not name.startswith("_")}


def test_every_error_is_documented() -> None:
    """Each error is listed with its code, class and whether it is retryable."""
    expected = [
        [f"`{error.code}`", f"`{error.__name__}`", "yes" if error.retryable_by_default else "no"]
        for error in ALL_ERRORS
    ]

    codes = read("docs/reference/errors.md").partition("\n## ")[0]
    assert expected == [row[:3] for row in rows(codes)]


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("limits", Limits),
        ("settings", Settings),
        ("settings", RegistrySettings),
        ("settings", PublisherSettings),
    ],
    ids=["limits", "settings", "registering", "publishing"],
)
def test_every_default_is_documented(page: str, kind: type[msgspec.Struct]) -> None:
    """Each limit and setting is listed with its default, in the order of the code."""
    text = read(f"docs/reference/{page}.md")
    documented = [row[:2] for row in rows(text) if row[0].strip("`") in kind.__struct_fields__]
    defaults = kind()
    expected = [
        [f"`{name}`", "`Limits()`" if name == "limits" else str(getattr(defaults, name))]
        for name in kind.__struct_fields__
    ]

    assert expected == documented
    assert set(first_cells(text)) >= set(kind.__struct_fields__)


def test_only_existing_limits_are_documented() -> None:
    """The page of limits lists exactly the existing limits, in order."""
    assert list(Limits.__struct_fields__) == list_documented("reference/limits.md")


def test_environment_is_documented() -> None:
    """The settings page lists exactly the environment variables that are read."""
    page = list_documented("reference/settings.md", "Environment")
    own = [URL_VARIABLE, TOKEN_VARIABLE, MISMATCH_VARIABLE, MASTER_VARIABLE, JAVA_VARIABLE]

    assert own == page[: len(own)]
    telemetry = [*ENDPOINT_VARIABLES, DISABLED_VARIABLE, METRICS_VARIABLE]
    others = [*OBJECT_STORE_VARIABLES, *DELIVERY_VARIABLES, *telemetry]
    assert sorted(others) == sorted(page[len(own) :])


def test_arguments_of_open_are_documented() -> None:
    """Each argument of `seriatim.open` is documented."""
    code = seriatim.open.__code__
    expected = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    assert list(expected) == list_documented(
        "reference/settings.md", "Arguments of `seriatim.open`"
    )


def receipt_fields() -> tuple[str, ...]:
    """Return the public names of a receipt."""
    receipt = AppendResult(1, 1, tuple)
    own = {name for name in vars(receipt) if not name.startswith("_")}
    return tuple(own | (public_names(AppendResult) - {"replay"}))


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        ("events.md", "NewEvent", NewEvent.__struct_fields__),
        ("events.md", "EventRecord", (*EventRecord.__struct_fields__, "payload")),
        ("events.md", "AppendResult", receipt_fields()),
        ("queries.md", "What a query returns", QueryResult.__struct_fields__),
    ],
    ids=["new event", "record", "receipt", "query result"],
)
def test_every_field_is_documented(page: str, heading: str, names: tuple[str, ...]) -> None:
    """Each field has a row, and each row is a field."""
    assert sorted(names) == sorted(list_documented(f"reference/{page}", heading))


def test_fields_of_filters_are_documented() -> None:
    """Each field of a filter and of a query has its row."""
    known = {*Filter.__struct_fields__, *Query.__struct_fields__}

    assert known <= set(list_documented("reference/queries.md"))


def test_every_telemetry_event_is_documented() -> None:
    """The page of telemetry lists exactly the emitted events, in order."""
    assert list(typing.get_args(EventName)) == list_documented("reference/telemetry.md", "Events")


def test_every_metric_is_documented() -> None:
    """The page of telemetry lists exactly the exported metrics, with their labels."""
    expected = [
        [f"`{family.name}`", ", ".join(f"`{n}`" for n in family.labels)] for family in FAMILIES
    ]
    table = rows(section(read("docs/reference/telemetry.md"), "Metrics"))

    assert expected == [row[:2] for row in table]


def test_every_exported_name_is_documented() -> None:
    """The reference lists exactly the exported names of the package."""
    page = list_documented("reference/api.md", "Exported by `seriatim`")
    names = [name for name in page if not name.startswith("seriatim.")]

    assert sorted(seriatim.__all__) == sorted(names)


def test_every_method_is_documented() -> None:
    """Each method of a log, its asyncio form, its profiles and related classes is documented."""
    page = read("docs/reference/api.md")
    facades: list[tuple[str, type]] = [
        ("Log", Log),
        ("Log.aio", AsyncLog),
        ("Log.projections", Projections),
        ("Log.handlers", Handlers),
        ("Projector", Projector),
        ("Registry", Registry),
    ]
    for name in ("traces", "facts", "aggregates"):
        kind = typing.get_type_hints(getattr(Log, name).fget)["return"]
        facades.append((f"Log.{name}", kind))
    missing = [
        f"{facade}.{name}"
        for facade, kind in facades
        for name in public_names(kind) - public_names(Profile) - {"append_draft"}
        if not re.search(rf"`{name}\b", section(page, f"`{facade}`"))
    ]

    assert missing == []


def options_of(command: Any) -> set[str]:
    """Return a command's long options, except hidden and common ones."""
    found: set[str] = set()
    for param in command.params:
        if not getattr(param, "hidden", False):
            found |= {name for name in param.opts if name.startswith("--")}
    return found - COMMON


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str) -> None:
    """The section of a command lists exactly its options."""
    page = first_cells(section(read(CLI), f"seriatim {name}"))

    assert options_of(COMMANDS[name]) == set(page)


def test_every_command_is_documented() -> None:
    """The reference has a heading and a row for each command, in order."""
    headings = re.findall(r"^## seriatim (\w+(?: \w+)?)$", read(CLI), re.MULTILINE)
    firsts = [f"seriatim {name}" for name in GROUP.commands]

    assert list(COMMANDS) == headings
    assert firsts == first_cells(section(read(CLI), "All commands"))


def test_common_options_are_documented() -> None:
    """Common options are documented once, and every command has them."""
    head = read(CLI).partition("## seriatim")[0]

    assert {*COMMON, *options_of(GROUP)} == set(first_cells(head))
    for name, command in COMMANDS.items():
        taken = {opt for param in command.params for opt in param.opts}
        assert taken >= COMMON - {"--help", *(["--tenant"] if name == "demo" else [])}, name


def test_exit_codes_are_documented() -> None:
    """The reference has the exit codes and meanings of the code."""
    head = read(CLI).partition("## seriatim")[0]
    documented = {row[0]: row[1] for row in rows(head) if row[0].isdigit()}

    assert {str(code): meaning for code, meaning in exit_codes.MEANINGS.items()} == documented


def test_every_guard_and_rule_is_documented() -> None:
    """The page of guards lists exactly the built-in guards and their rules."""
    rules = {
        rule.name for rule in (*CREDENTIALS, *PERSONAL_DATA)
    }  # a rule may have several patterns

    assert sorted([*BUILT_IN_GUARDS, *rules]) == sorted(list_documented("howto/guard.md"))


def test_every_contract_is_documented() -> None:
    """The page lists the classes of the contract suite, in order."""
    testing = importlib.import_module("seriatim.testing")
    names = [contract.__name__ for contract in testing.CONTRACTS]

    assert names == list_documented("howto/contract-suite.md")


def test_trace_types_are_documented() -> None:
    """The contract lists the trace types, in order."""
    assert list(TRACE_TYPES) == list_documented("reference/contract.md", "The trace catalogue")


@pytest.mark.parametrize(("backend", "heading"), [("postgres", "Postgres"), ("sqlite", "SQLite")])
def test_tables_and_indexes_are_documented(backend: str, heading: str) -> None:
    """The page lists exactly the tables and indexes that each backend creates."""
    folder = ROOT / "src" / "seriatim" / "store" / backend
    source = "\n".join(
        path.read_text("utf-8") for path in [*folder.rglob("*.sql"), *folder.rglob("*.py")]
    )
    created: set[str] = set()
    for pattern in (
        r"create table (?:if not exists )?(?:\{schema\}\.)?(\w+)",
        r"create (?:unique )?index (?:concurrently )?(?:if not exists )?(\w+)",
        r"constraint (\w+) primary key",
    ):
        created |= set(re.findall(pattern, source))

    dropped = set(re.findall(r"drop index (?:if exists )?(?:\{schema\}\.)?(\w+)", source))
    assert created - dropped == set(list_documented("reference/schema.md", heading))


def test_tables_of_read_models_are_documented() -> None:
    """The page lists exactly the tables that every read model has."""
    folder = ROOT / "src" / "seriatim" / "store" / "readmodel"
    source = (folder / "statements.sql").read_text("utf-8")
    tables = re.findall(r"create table if not exists \{at\}(\w+)", source)

    assert tables == list_documented("reference/schema.md", "Read models")


def test_tables_of_the_registry_are_documented() -> None:
    """The page lists exactly the registry's tables, indexes, columns and statuses."""
    source = (ROOT / "src/seriatim/delivery/statements.sql").read_text("utf-8")
    tables = re.findall(r"create table if not exists \{at\}(\w+)", source)
    indexes = re.findall(r"create index if not exists (\w+)", source)
    shown = list_documented("reference/schema.md", "The registry")
    body = source.partition("{at}seriatim_handled (")[2].partition("primary key")[0]
    columns = re.findall(r"^    (\w+) +(?:text|bigint|integer)\b", body, re.MULTILINE)

    assert sorted([*tables, *indexes]) == sorted(n for n in shown if n.startswith("seriatim_"))
    assert columns == list_documented("reference/schema.md", "Columns of `seriatim_handled`")
    assert list(typing.get_args(Status)) == list_documented(
        "reference/schema.md", "Statuses of events"
    )


def test_tables_of_the_service_are_documented() -> None:
    """The page lists exactly the tables and indexes of tokens and quotas."""
    source = (ROOT / "src/seriatim/access/statements.sql").read_text("utf-8")
    tables = re.findall(r"create table if not exists \{at\}(\w+)", source)
    indexes = re.findall(r"create index if not exists (\w+)", source)

    assert [*tables, *indexes] == list_documented("reference/schema.md", "The service")


def test_rights_are_documented() -> None:
    """The page of tokens lists exactly the rights, in order."""
    assert list(RIGHTS) == list_documented("howto/tokens.md", "Rights")


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("Options of a read", SOURCE_OPTIONS),
        ("Write a DataFrame", SINK_OPTIONS),
        ("Columns", EVENT_COLUMNS),
    ],
)
def test_every_option_of_the_format_is_documented(heading: str, names: tuple[str, ...]) -> None:
    """The page lists exactly the options of reads and writes, and the columns, in order."""
    assert list(names) == list_documented("howto/spark.md", heading)


def test_arguments_of_projections_are_documented() -> None:
    """The page lists the arguments of a declaration, in order."""
    page = list_documented("howto/projections.md", "Declare one")

    assert list(inspect.signature(seriatim.projection).parameters) == page


def test_shipped_projections_are_documented() -> None:
    """The page lists exactly the shipped projections, in order."""
    assert list(BUILTIN_PROJECTIONS) == list_documented("howto/projections.md", "Shipped ones")


def list_public_names(module: str) -> list[str]:
    """Return the names that the reference lists for a module, with their arguments."""
    return first_cells(section(read("docs/reference/api.md"), f"Exported by `{module}`"))


@pytest.mark.parametrize("documented", list_public_names("seriatim.spark"))
def test_documented_names_on_spark_exist(documented: str) -> None:
    """The names listed for Spark exist and have the listed arguments."""
    name, _, arguments = documented.removesuffix(")").partition("(")
    found = getattr(seriatim.spark, name)

    if arguments:
        names = [part.partition("=")[0].strip("* ") for part in arguments.split(",")]
        expected = list(inspect.signature(found).parameters)
        assert expected == [name for name in names if name]


@pytest.mark.parametrize("module", [seriatim.spark, seriatim.server])
def test_names_of_public_modules_are_documented(module: ModuleType) -> None:
    """F1: the section of a public module lists exactly its names."""
    listed = [name.partition("(")[0] for name in list_public_names(module.__name__)]

    assert sorted(listed) == module.__all__


@pytest.mark.parametrize("module", [seriatim.guards, seriatim.telemetry])
def test_names_of_small_modules_are_documented(module: ModuleType) -> None:
    """F1: the row of a small public module lists exactly its names."""
    table = rows(section(read("docs/reference/api.md"), "Exported by `seriatim`"))
    [row] = [row for row in table if row[0] == f"`{module.__name__}`"]

    assert sorted(re.findall(r"`(\w+)`", row[1])) == sorted(module.__all__)


def test_public_modules_are_documented() -> None:
    """F1: the reference lists exactly the public modules."""
    table = first_cells(section(read("docs/reference/api.md"), "Exported by `seriatim`"))
    listed = [name for name in table if name.startswith("seriatim.")]

    assert {"seriatim", *listed} == PUBLIC_MODULES


@pytest.mark.parametrize(
    "kind",
    [
        AppendReport,
        ArchiveReport,
        ArchiveVerificationReport,
        RestoreReport,
        AuditReport,
        ExportReport,
        PublishReport,
        ReconciliationReport,
        Counts,
        Proof,
        Progress,
        RunReport,
        Archive,
        Target,
    ],
)
def test_fields_of_reports_are_documented(kind: type[msgspec.Struct]) -> None:
    """Each field of a report is in its row."""
    table = rows(section(read("docs/reference/api.md"), "Exported by `seriatim.spark`"))
    [row] = [row for row in table if row[0] == f"`{kind.__name__}`"]
    shown = re.findall(r"`(\w+)`", row[1])

    assert public_names(kind) - set(shown) == set()


def test_fields_of_projection_status_are_documented() -> None:
    """The row of `status()` lists exactly the fields of a projection's status, in order."""
    table = rows(section(read("docs/reference/api.md"), "`Log.projections`"))
    [row] = [row for row in table if row[0] == "`status()`"]

    assert list(ProjectionStanding.__struct_fields__) == re.findall(r"`(\w+)`", row[1])


def test_decisions_are_numbered_and_complete() -> None:
    """Decisions are numbered without a gap; each has context, decision and consequences."""
    found = sorted((DOCS / "decisions").glob("*.md"))
    numbers = [int(path.name[:4]) for path in found]
    texts: dict[str, Any] = {path.name: path.read_text("utf-8") for path in found}
    lacking = [
        name
        for name, text in texts.items()
        if not text.startswith(f"# {name[:4]} ")
        or not all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequences"))
    ]

    assert list(range(1, len(found) + 1)) == numbers
    assert lacking == []
