"""The examples in the docstrings of a projector run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import seriatim
from seriatim.spark import Projector, register
from tests.pipeline.project.support import SEAT, count_seats, fill
from tests.unit.test_docstring_examples import find_example

# In an order in which each has something to do.
METHODS = ("run", "status", "verify", "failures", "retry", "skip", "pause", "resume", "rebuild")


def fail_once(state: dict[str, Any] | None, event: seriatim.EventRecord) -> dict[str, Any] | None:
    """Count the seats of a show; one guest cannot be counted."""
    if event.payload["guest"] == "g5":
        raise ValueError(event.payload["guest"])
    return count_seats(state, event)


def test_examples_run(spark: SparkSession, tmp_path: Path) -> None:
    """F1: the example of each method of a projector runs."""
    url = f"sqlite:///{tmp_path}/log.db"
    register(spark)
    with seriatim.open(url) as log:
        fill(log, 20)
    declare = seriatim.projection(
        "seats", key="stream_id", events=["seat.*"], columns=SEAT, on_failure="park"
    )
    projector = Projector(spark, declare(fail_once), url)
    for name in (*METHODS, "close"):
        example = find_example(getattr(Projector, name))
        assert example is not None, name
        if name == "failures":
            assert len(projector.failures()) == 1
        exec(compile(example, name, "exec"), {"projector": projector})  # noqa: S102 - our own docstring
