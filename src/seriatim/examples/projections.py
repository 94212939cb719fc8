"""Demo steps: read models in this process, then on Spark: killed, resumed and rebuilt."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

from seriatim import NewEvent, aggregate_states, decision_graph
from seriatim.examples.decision_trace import TRACE
from seriatim.examples.demo_report import DemoReport, make_demo_table
from seriatim.factory import open_read_model, read_model_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from seriatim.spark import Projector

_NAME = "decision_graph"
_ALL_TENANTS = "*"
_BATCHES = 8  # enough for the kill to hit the runner between two batches
_WAIT_S = 120.0


def show_local_projection(report: DemoReport) -> None:
    """Follow the log in a thread of this process, wait for an own write, and rebuild."""
    report.start_step(
        "a read model in this process: live, read your own writes, rebuilt",
        "Proves: without Spark, the tables follow each append, and equal a fold of the log.",
    )
    projections = report.log.projections
    with projections.follow(aggregate_states):
        projections.wait_for(aggregate_states.name, report.log.head(), _WAIT_S)
        invoice = NewEvent("invoice.sent", {"total": 12}, stream=("invoice", "2026-1"))
        written = report.log.append([invoice]).last_position
        started = time.perf_counter()
        projections.wait_for(aggregate_states.name, written)
        elapsed_ms = (time.perf_counter() - started) * 1000
    proof = projections.rebuild(aggregate_states)
    report.print(
        Text.assemble(
            f"aggregate_states: {proof.rows:,} rows, own write visible after ",
            (f"{elapsed_ms:.1f} ms", "bold"),
            f", digest …{(proof.stored_digest or '')[-12:]}, rebuilt …{proof.digest[-12:]}",
        )
    )
    report.check(
        "the read model that followed the log equals its rebuild",
        proof.equal and proof.position >= written,
    )


def show_spark_projection(report: DemoReport) -> None:
    """Project the log on Spark, after killing a first runner half-way."""
    if importlib.util.find_spec("pyspark") is None:
        report.start_step("read models on Spark", "Skipped: pip install 'seriatim[spark]'.")
        return
    report.start_step(
        "read models on Spark: killed half-way, resumed, rebuilt",
        "Proves: each event counts once despite a crash, and a rebuild gives the same result.",
    )
    reached = _kill_runner(report, _start_runner(report))
    from seriatim.spark import session

    spark = session()
    try:
        head = report.log.head()
        report.print(
            Text.assemble(
                "seriatim project run decision_graph: ",
                ("kill -9", "bold red"),
                f" at position {reached:,} of {head:,}",
            )
        )
        _project(report, spark, head)
    finally:
        spark.stop()


def _start_runner(report: DemoReport) -> subprocess.Popen[bytes]:
    size = str(max(1, report.log.head() // _BATCHES))
    command = [sys.executable, "-m", "seriatim", "project", "run", _NAME, "--live"]
    options = ["--all-tenants", "--batch-events", size, "--url", report.url]
    return subprocess.Popen(  # noqa: S603 - runs this program
        [*command, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _kill_runner(report: DemoReport, runner: subprocess.Popen[bytes]) -> int:
    """Kill the runner and its processes after its first batch; return its last cursor."""
    reached = 0
    with closing(open_read_model(read_model_url(report.url, _ALL_TENANTS))) as model:
        deadline = time.monotonic() + _WAIT_S
        while not reached and runner.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
            progress = model.progress(_NAME)
            reached = progress.position if progress else 0
        os.killpg(runner.pid, signal.SIGKILL)
        runner.wait()
        progress = model.progress(_NAME)
        return progress.position if progress else 0


def _project(report: DemoReport, spark: SparkSession, head: int) -> None:
    from seriatim.spark import Projector, activity

    listing = make_demo_table(
        "projection", "rows", "position", "caught up", "rebuilt", right=("rows",)
    )
    equal = True
    # decision_graph is last, because the lease of the killed runner must expire.
    for projection in (activity, aggregate_states, decision_graph):
        with Projector(spark, projection, report.url, tenant_id=_ALL_TENANTS) as job:
            position = job.run().position
            proof = job.rebuild()
            equal = equal and proof.equal and position == head
            stored = (proof.stored_digest or "")[-12:]
            cells = (projection.name, f"{proof.rows:,}", f"{position:,}", f"…{stored}")
            listing.add_row(*cells, Text(f"…{proof.digest[-12:]}", style="green"))
            if projection is decision_graph:
                graph = _draw_graph(job)
    report.print(listing)
    report.check("after the kill and a restart, every read model equals its rebuild", equal)
    report.print(graph)
    with Projector(spark, aggregate_states, report.url) as job:
        report.check(
            "the read model that was folded in this process has the same digest on Spark",
            job.verify().equal,
        )


def _draw_graph(job: Projector) -> Tree:
    """Draw the decision graph of one trace from its read model."""
    tree = Tree(Text(f"trace {TRACE}", style="bold magenta"))
    for edge in _read_edges(job):
        kind = edge["edge_type"].removeprefix("trace_").replace("_", " ")
        origin = "" if edge["from_node_id"] == f"trace:{TRACE}" else f"{edge['from_node_id']} "
        tree.add(
            Text.assemble(
                (f"{origin}", "yellow"), (kind, "dim"), " → ", (edge["to_node_id"], "cyan")
            )
        )
    return tree


def _read_edges(job: Projector) -> Iterator[dict[str, Any]]:
    table = job.projection.table("edges")
    with job.model.snapshot() as snapshot:
        edges = [row for _, row, _ in snapshot.rows(job.projection, table)]
    yield from sorted(
        (row for row in edges if row["trace_id"] == TRACE), key=lambda row: int(row["log_seq"])
    )
