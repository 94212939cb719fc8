"""Options and helpers of the commands that run on Spark: session, settings, progress."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seriatim.cli.command_session import CommandSession
from seriatim.cli.output import make_progress_bar
from seriatim.core.errors import BackendFailure
from seriatim.log.arguments import invalid_argument
from seriatim.telemetry.metrics import JobMetrics

if TYPE_CHECKING:
    from seriatim.pipeline.source.spark_session import Spark
    from seriatim.runs.job_loop import RunReport

SparkMaster = Annotated[
    str | None,
    typer.Option(
        "--master",
        help="The Spark master, such as spark://host:7077. [default: $SERIATIM_SPARK_MASTER, "
        "else all cores of this machine]",
        show_default=False,
    ),
]
ArchiveLocation = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="PLACE",
        help="Read sealed events from this archive instead of the log: a folder or "
        "s3://bucket/prefix.",
        show_default=False,
    ),
]
SparkSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="KEY=VALUE",
        help="A Spark setting, such as spark.jars.packages=…; may be repeated.",
        show_default=False,
    ),
]


@contextmanager
def spark_session(
    command: CommandSession,
    master: str | None,
    conf: list[str] | None = None,
    *,
    alternative: str = "",
) -> Iterator[Spark]:
    """Start Spark for the duration of a command.

    Args:
        command: The command.
        master: The Spark master; None for the default.
        conf: Settings as KEY=VALUE.
        alternative: What else to try if the extra is missing, for the message.

    Raises:
        BackendFailure: If the extra `spark` is not installed.

    """
    try:
        from seriatim.pipeline.source.spark_session import session, stop_after_use
    except ModuleNotFoundError as error:
        msg = f"this command runs on Spark and needs {error.name}: pip install 'seriatim[spark]'"
        msg += f", {alternative}" if alternative else ""
        raise BackendFailure(msg, retryable=False) from error
    spinner = (
        command.stderr.status("starting Spark …") if command.stderr.is_terminal else nullcontext()
    )
    with _quiet_interrupts():
        with spinner:
            spark = session(master, settings=parse_key_values("conf", conf))
        with stop_after_use(spark):
            yield spark


@contextmanager
def _quiet_interrupts() -> Iterator[None]:
    """Keep py4j, the bridge to Java, from logging a stack trace when Ctrl-C ends a call."""
    root, gateway = logging.getLogger(), logging.getLogger("py4j")
    level = gateway.level
    root.addFilter(_is_not_from_py4j)
    gateway.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        root.removeFilter(_is_not_from_py4j)
        gateway.setLevel(level)


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    # py4j logs some errors with the root logger, so the source file identifies them.
    return Path(record.pathname).parent.name != "py4j"


def parse_key_values(option: str, entries: list[str] | None) -> dict[str, str]:
    """Parse settings given as KEY=VALUE; `option` is the option to name in errors."""
    settings: dict[str, str] = {}
    for entry in entries or []:
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise invalid_argument(option, "must be given as KEY=VALUE")
        settings[key.strip()] = value
    return settings


@contextmanager
def report_job_progress(
    command: CommandSession, name: str, metrics: JobMetrics | None = None
) -> Iterator[Callable[[RunReport], None]]:
    """Report the progress of a job on the terminal and as metrics.

    Yields:
        A function to call with each report of the job.

    """
    with make_progress_bar(command.stderr, quiet=command.as_json) as bar:
        task = bar.add_task(name, total=None)

        def update(report: RunReport) -> None:
            description = f"{report.name} {report.activity} {report.events_per_s:,.0f}/s"
            bar.update(task, description=description, completed=report.position, total=report.head)
            if metrics is not None and not report.waits:
                metrics.set_progress(name, report.position, report.lag, report.events_per_s)

        yield update
