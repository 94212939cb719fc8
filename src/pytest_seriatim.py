"""The pytest plugin of Seriatim: logs for tests of your own code.

It is a module of its own, so that pytest loads it without importing Seriatim, and every fixture
imports what it needs. `-p no:seriatim` disables it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from seriatim import Log


@pytest.fixture
def memory_log() -> Iterator[Log]:
    """An empty log in memory, which is closed after the test."""
    import seriatim  # noqa: PLC0415 - only tests that use it pay for the import

    with seriatim.open("memory:") as log:
        yield log


@pytest.fixture
def sqlite_log(tmp_path: Path) -> Iterator[Log]:
    """An empty log in a SQLite file of the test, which is closed after the test."""
    import seriatim  # noqa: PLC0415 - only tests that use it pay for the import

    with seriatim.open(f"sqlite:///{tmp_path / 'log.db'}") as log:
        yield log
