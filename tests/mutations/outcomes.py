"""A pytest plugin that records the outcome of each test for the mutation runner.

`SERIATIM_OUTCOMES` names the file to write and `SERIATIM_MUTANT` the tree under test. A run that
imports the package from another tree is aborted, because it proves nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

import seriatim

_outcomes: dict[str, list[str]] = {}


def pytest_configure() -> None:
    """Abort unless the imported package belongs to the tested tree."""
    tree = Path(os.environ["SERIATIM_MUTANT"])
    if not Path(seriatim.__file__).is_relative_to(tree):
        pytest.exit(f"seriatim is imported from {seriatim.__file__}, not from {tree}", 3)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record the outcome of each phase: nothing, or the classes of its exception."""
    report = yield
    if report.when == "call" or report.failed:
        _outcomes[item.nodeid] = [report.when, report.outcome, *_classes(call)]
    return report


def _classes(call: pytest.CallInfo[None]) -> list[str]:
    """Return the class names of an exception and its bases; timeouts are separate."""
    if call.excinfo is None:
        return []
    if "Timeout" in str(call.excinfo.value) and call.excinfo.errisinstance(pytest.fail.Exception):
        return ["Timeout"]
    return [kind.__name__ for kind in call.excinfo.type.__mro__]


def pytest_sessionfinish() -> None:
    """Write the outcomes to the file."""
    Path(os.environ["SERIATIM_OUTCOMES"]).write_text(json.dumps(_outcomes), encoding="utf-8")
