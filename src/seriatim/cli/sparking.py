"""What commands on Spark share: the master, the session, and errors in our own words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from seriatim.cli.session import Session
from seriatim.core.errors import BackendFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


@contextmanager
def spark_session(one: Session, master: str | None) -> Iterator[SparkSession]:
    """Start Spark for one command, and stop it after."""
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra, and slow to import

        from seriatim.pipeline.failures import failure_of  # noqa: PLC0415
        from seriatim.pipeline.session import session as start  # noqa: PLC0415
    except ModuleNotFoundError as error:
        msg = f"this command runs on Spark and misses {error.name}: pip install 'seriatim[spark]'"
        raise BackendFailure(msg, retryable=False) from error
    with one.err.status("starting Spark …") if one.err.is_terminal else _quiet():
        spark = start(master)
    try:
        yield spark
    except PySparkException as error:
        raise failure_of(error) from error
    finally:
        spark.stop()


@contextmanager
def _quiet() -> Iterator[None]:
    yield
