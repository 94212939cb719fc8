"""What commands on Spark share: the master, the session, and errors in our own words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seriatim.cli.output import progress_bar
from seriatim.cli.session import Session
from seriatim.core.errors import BackendFailure
from seriatim.log.arguments import bad
from seriatim.telemetry.job_metrics import JobMetrics

if TYPE_CHECKING:
    from seriatim.pipeline.project.job import Report
    from seriatim.pipeline.session import Spark

Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="The Spark master, such as spark://host:7077. [default: $SERIATIM_SPARK_MASTER, "
        "else all cores of this machine]",
        show_default=False,
    ),
]
ArchiveAt = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="PLACE",
        help="Read what is sealed there from the archive: a folder or s3://bucket/prefix.",
        show_default=False,
    ),
]
SparkConf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="KEY=VALUE",
        help="A setting of Spark, such as spark.jars.packages=…; may be repeated.",
        show_default=False,
    ),
]


@contextmanager
def spark_session(
    one: Session, master: str | None, conf: list[str] | None = None
) -> Iterator[Spark]:
    """Start Spark for one command, and stop it after."""
    try:
        from seriatim.pipeline.session import session, using  # noqa: PLC0415 - an extra, and slow
    except ModuleNotFoundError as error:
        msg = f"this command runs on Spark and misses {error.name}: pip install 'seriatim[spark]'"
        raise BackendFailure(msg, retryable=False) from error
    waiting = one.err.status("starting Spark …") if one.err.is_terminal else nullcontext()
    with _quiet_interrupts():
        with waiting:
            spark = session(master, settings=pairs_of("conf", conf))
        with using(spark):
            yield spark


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Keep the gateway to Java from logging a stack when Ctrl-C ends one of its calls."""
    root, gateway = logging.getLogger(), logging.getLogger("py4j")
    level = gateway.level
    root.addFilter(_is_not_the_gateways)
    gateway.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        root.removeFilter(_is_not_the_gateways)
        gateway.setLevel(level)


def _is_not_the_gateways(record: logging.LogRecord) -> bool:
    # It logs by the root logger itself.
    return Path(record.pathname).parent.name != "py4j"


def pairs_of(option: str, given: list[str] | None) -> dict[str, str]:
    """Read settings that are written as KEY=VALUE."""
    found: dict[str, str] = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise bad(option, "is written as KEY=VALUE")
        found[key.strip()] = value
    return found


@contextmanager
def watching(
    one: Session, name: str, metrics: JobMetrics | None = None
) -> Iterator[Callable[[Report], None]]:
    """Show how far a job is, to people, and to who gathers metrics."""
    with progress_bar(one.err, quiet=one.as_json) as bar:
        task = bar.add_task(name, total=None)

        def watch(report: Report) -> None:
            said = f"{report.projection} {report.doing} {report.events_per_s:,.0f}/s"
            bar.update(task, description=said, completed=report.position, total=report.head)
            if metrics is not None and report.head:
                metrics.progress(name, report.position, report.lag, report.events_per_s)

        yield watch
