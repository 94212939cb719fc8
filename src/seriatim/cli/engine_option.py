"""The option that chooses the engine of a projection or handler."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from seriatim.log.arguments import invalid_argument

EngineName = Literal["local", "spark"]
EngineOption = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="Run on Spark, or locally: in this process, without Spark and Java.",
    ),
]
# What to try if the extra `spark` is missing, for commands that have the option.
WITHOUT_SPARK = "or run it in this process with --engine local"


def refuse_spark_options(**options: object) -> None:
    """Raise `InvalidArgument` if an option that only Spark has is given to the local engine."""
    for name, value in options.items():
        if value is not None:
            option = name.replace("_", "-")
            raise invalid_argument(
                option, "is an option of Spark: leave it out with --engine local"
            )
