"""What commands on Spark share: the master, the session, and errors in our own words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from seriatim.cli.session import Session
from seriatim.core.errors import BackendFailure

if TYPE_CHECKING:
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


@contextmanager
def spark_session(one: Session, master: str | None) -> Iterator[Spark]:
    """Start Spark for one command, and stop it after."""
    try:
        from seriatim.pipeline.session import session, using  # noqa: PLC0415 - an extra, and slow
    except ModuleNotFoundError as error:
        msg = f"this command runs on Spark and misses {error.name}: pip install 'seriatim[spark]'"
        raise BackendFailure(msg, retryable=False) from error
    waiting = one.err.status("starting Spark …") if one.err.is_terminal else nullcontext()
    with waiting:
        spark = session(master)
    with using(spark):
        yield spark
