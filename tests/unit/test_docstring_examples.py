"""The examples in the docstrings of public calls run, and every public call has one."""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import msgspec
import pytest

import seriatim
from seriatim import telemetry
from seriatim.log.async_log import AsyncLog
from seriatim.log.projections import AsyncProjections, Projections
from seriatim.log.subscription import Subscription, Tail
from seriatim.profiles.aggregates import Aggregates, AsyncAggregates
from seriatim.profiles.facts import AsyncFacts, Facts
from seriatim.profiles.traces import (
    AsyncTraces,
    EventEnvelope,
    TraceActor,
    Traces,
    TraceSource,
)

CLASSES: tuple[type, ...] = (
    seriatim.Log,
    AsyncLog,
    Traces,
    AsyncTraces,
    Facts,
    AsyncFacts,
    Aggregates,
    AsyncAggregates,
    seriatim.Catalogue,
    Subscription,
    Tail,
    Projections,
    AsyncProjections,
    telemetry.LogMetrics,
    telemetry.Metrics,
    telemetry.MetricsServer,
    telemetry.Telemetry,
)
# Methods for facades and tools of the package, not for users.
INTERNAL = {
    *("append_draft", "draft", "read_page", "iterate_batches"),
    *("make_owner", "remember_owner", "check_position", "get_progress", "emit", "record"),
}
NAMES: dict[str, Any] = {
    **{name: getattr(seriatim, name) for name in seriatim.__all__ if name != "open"},
    **{name: getattr(telemetry, name) for name in telemetry.__all__},
    "seriatim": seriatim,
    "msgspec": msgspec,
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
    "NewEvent": seriatim.NewEvent,
}
EXAMPLES = {name: code for name, one in DOCUMENTED.items() if (code := find_example(one))}


def test_every_public_method_has_an_example() -> None:
    """Every public method of a facade has an example."""
    assert sorted(METHODS.keys() - EXAMPLES.keys()) == []


def test_documented_parameters_exist() -> None:
    """A docstring that lists parameters lists all of them, in their order."""
    for name, method in METHODS.items():
        section = (inspect.getdoc(method) or "").partition("Args:\n")[2].partition("\n\n")[0]
        listed = [
            line.partition(":")[0].strip().lstrip("*")
            for line in section.splitlines()
            if line.startswith("    ") and not line.startswith("     ")
        ]
        if listed:
            assert listed == list(inspect.signature(method).parameters)[1:], name


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example runs with an open log and the names of Seriatim."""
    monkeypatch.chdir(tmp_path)
    code = compile(
        EXAMPLES[name], name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    # A log in memory has no read models.
    url = "sqlite:///log.db" if "projections" in EXAMPLES[name] else "memory:"
    with seriatim.open(url) as log:
        log.append(
            [
                seriatim.NewEvent(
                    "order.placed", {"total": 12}, stream=("order", "7"), event_id="e-1"
                ),
                seriatim.NewEvent("order.paid", stream=("order", "7"), tags=("customer:4",)),
            ]
        )
        run(code, {**NAMES, "log": log})


def run(code: CodeType, namespace: dict[str, Any]) -> None:
    """Execute an example, on an event loop if it awaits something."""
    result = eval(code, namespace)  # noqa: S307 - our own docstrings
    if inspect.iscoroutine(result):
        asyncio.run(result)
