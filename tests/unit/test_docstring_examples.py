"""The examples in the docstrings of public calls run, and every public call has one."""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import msgspec
import pytest

import seriatim
import seriatim.server
from seriatim import telemetry, testing
from seriatim.delivery.async_handlers import AsyncHandlers
from seriatim.delivery.handlers import Handlers
from seriatim.factory import AsyncLog
from seriatim.log.async_projections import AsyncProjections
from seriatim.log.projections import Projections
from seriatim.log.subscription import Subscription, Tail
from seriatim.log.subscriptions import AsyncSubscriptions, Subscriptions
from seriatim.profiles.aggregates import Aggregates, AsyncAggregates
from seriatim.profiles.facts import AsyncFacts, Facts
from seriatim.profiles.traces import (
    AsyncTraces,
    EventEnvelope,
    TraceActor,
    Traces,
    TraceSource,
)
from seriatim.runs.follower import AsyncFollower, Follower

CLASSES: tuple[type, ...] = (
    seriatim.Log,
    AsyncLog,
    Traces,
    AsyncTraces,
    Facts,
    AsyncFacts,
    Aggregates,
    AsyncAggregates,
    seriatim.Aggregate,
    seriatim.Catalogue,
    seriatim.Registry,
    seriatim.server.AccessStore,
    Subscription,
    Tail,
    Subscriptions,
    AsyncSubscriptions,
    Projections,
    AsyncProjections,
    Handlers,
    AsyncHandlers,
    Follower,
    AsyncFollower,
    testing.HandlerRunner,
    telemetry.JobMetrics,
    telemetry.LogMetrics,
    telemetry.Metrics,
    telemetry.MetricsServer,
    telemetry.Telemetry,
)
# Methods for facades and tools of the package, not for users; the operations that `handle` and
# `claim` of a registry consist of; and those of the access store that the service uses.
INTERNAL = {
    *("add_log_identity", "check_handler_exists", "check_log_identity", "check_origin"),
    *("claim_all", "cursor", "declare_once", "defer", "deliveries", "due", "has_deferred"),
    *("heartbeat", "inactive_reason", "mark_dead", "mark_done", "mark_done_in", "mark_failed"),
    *("mark_stale", "move_cursor", "pass_over", "pass_ranges", "reject_invalid", "release"),
    *("authenticate", "authenticate_id", "find_ended_tokens", "has_tokens", "mark_used"),
    *("open_jobs", "purge_responses", "release_reservation", "reserve", "secret"),
    *("store_response", "tokens_after"),
    *("append_draft", "draft", "read_page", "iterate_batches"),
    *("make_runs", "run_once"),
    "take_fault",
    *("make_owner", "remember_owner", "check_position", "get_progress", "emit", "record"),
}
NAMES: dict[str, Any] = {
    **{name: getattr(seriatim, name) for name in seriatim.__all__ if name != "open"},
    **{name: getattr(telemetry, name) for name in telemetry.__all__},
    "seriatim": seriatim,
    "asyncio": asyncio,
    "msgspec": msgspec,
    "closing": closing,
    "send_receipt": lambda *_, **__: None,  # a call of the user
    "EventEnvelope": EventEnvelope,
    "TraceActor": TraceActor,
    "TraceSource": TraceSource,
}


def find_example(documented: object) -> str | None:
    """Return the code of the `Example:` section of a docstring, or None."""
    docstring = inspect.getdoc(documented) or ""
    _, found, section = docstring.partition("Example:\n")
    if not found:
        return None
    lines = section.splitlines()
    end = next((i for i, line in enumerate(lines) if line and line[0] != " "), len(lines))
    return textwrap.dedent("\n".join(lines[:end]))


def list_methods(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield the public methods of a class, with those that it inherits."""
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_") and name not in INTERNAL:
            yield f"{cls.__name__}.{name}", method


METHODS = {name: method for cls in CLASSES for name, method in list_methods(cls)}
DOCUMENTED: dict[str, object] = {
    **METHODS,
    **{cls.__name__: cls for cls in CLASSES},
    "seriatim": seriatim,
    "seriatim.open": seriatim.open,
    "seriatim.open_registry": seriatim.open_registry,
    **{
        name: getattr(telemetry, name)
        for name in ("bind_fields", "export_spans", "use_provider", "write_logs")
    },
    **{
        name: getattr(seriatim, name)
        for name in (
            *("Command", "Delivery", "EntryFilter", "ExpectedContext", "ExpectedSeq", "Filter"),
            *("Limits", "NewEvent", "Query", "RetryPolicy", "Settings", "Table"),
            *("documents", "export_log", "frame_projection", "handler", "import_events"),
            *("projection", "verify"),
        )
    },
    **{name: getattr(seriatim.server, name) for name in seriatim.server.__all__},
    **{name: getattr(testing, name) for name in ("check_batches", "fold", "given")},
}
EXAMPLES = {name: code for name, one in DOCUMENTED.items() if (code := find_example(one))}
ENDLESS = {"serve"}  # it serves until the process is interrupted


def test_every_public_method_has_an_example() -> None:
    """Every public method of a facade has an example, and so has every other public call."""
    facades = {cls.__name__ for cls in CLASSES}

    assert sorted(DOCUMENTED.keys() - facades - EXAMPLES.keys()) == []


def list_section(docstring: str, section: str) -> list[str]:
    """Return the names that a section of a docstring lists."""
    text = docstring.partition(f"{section}:\n")[2].partition("\n\n")[0]
    return [
        line.partition(":")[0].strip().lstrip("*")
        for line in text.splitlines()
        if line.startswith("    ") and not line.startswith("     ")
    ]


def test_documented_parameters_exist() -> None:
    """A docstring that lists parameters lists all of them, in their order."""
    for name, method in METHODS.items():
        if listed := list_section(inspect.getdoc(method) or "", "Args"):
            assert listed == list(inspect.signature(method).parameters)[1:], name


def test_documented_attributes_exist() -> None:
    """A docstring that lists the fields of a value lists all of them, in their order."""
    values = [getattr(seriatim, name) for name in seriatim.__all__] + [
        getattr(seriatim.server, name) for name in seriatim.server.__all__
    ]
    documented = {
        cls: listed
        for cls in values
        if inspect.isclass(cls) and issubclass(cls, msgspec.Struct)
        if (listed := list_section(inspect.getdoc(cls) or "", "Attributes"))
    }
    # The others are those of `NewEvent`, to which its docstring refers.
    own = documented.pop(seriatim.EventRecord)

    assert set(seriatim.EventRecord.__struct_fields__) - set(own) < set(
        seriatim.NewEvent.__struct_fields__
    )
    for cls, listed in documented.items():
        assert listed == list(cls.__struct_fields__), cls


@pytest.mark.parametrize("example", sorted(EXAMPLES.keys() - ENDLESS))
def test_examples_run(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example runs with an open log and the names of Seriatim."""
    monkeypatch.chdir(tmp_path)
    code = compile(
        EXAMPLES[example], example, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    # A log in memory has no read models.
    url = "sqlite:///log.db" if "projections" in EXAMPLES[example] else "memory:"
    with seriatim.open(url) as log:
        log.append(
            [
                seriatim.NewEvent(
                    "order.placed", {"total": 12}, stream=("order", "7"), event_id="e-1"
                ),
                seriatim.NewEvent("order.paid", stream=("order", "7"), tags=("customer:4",)),
            ]
        )
        with ExitStack() as opened:
            names: dict[str, Any] = {
                name: open_part(opened, log)
                for name, open_part in PARTS.items()
                if name in EXAMPLES[example]
            }
            batch = list(log.read())
            names["event"] = batch[0]
            run(code, {**NAMES, **names, "log": log, "receipts": receipts, "batch": batch})


@seriatim.handler("receipts", effect="keyed")
def receipts(event: object, context: object) -> None:
    """Stand for a handler of the user."""


def open_registry(opened: ExitStack, log: seriatim.Log) -> seriatim.Registry:
    """Return a registry with a declared handler."""
    registry = opened.enter_context(
        closing(seriatim.open_registry("sqlite:///registry.db", log=log))
    )
    registry.declare(receipts)
    return registry


def open_access(opened: ExitStack, _: seriatim.Log) -> seriatim.server.AccessStore:
    """Return an empty access store."""
    return opened.enter_context(closing(seriatim.server.open_access("sqlite:///access.db")))


def open_runner(opened: ExitStack, _: seriatim.Log) -> testing.HandlerRunner:
    """Return a runner of a handler."""
    return opened.enter_context(testing.HandlerRunner(receipts))


PARTS = {"registry": open_registry, "access": open_access, "runner": open_runner}


def run(code: CodeType, namespace: dict[str, Any]) -> None:
    """Execute an example, on an event loop if it awaits something."""
    result = eval(code, namespace)  # noqa: S307 - our own docstrings
    if inspect.iscoroutine(result):
        asyncio.run(result)
