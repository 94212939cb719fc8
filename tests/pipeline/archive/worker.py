"""A job in a process of its own, which kills itself at a named point: for tests of crashes."""

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from seriatim.pipeline.archive import restoring, writing
from seriatim.pipeline.lake import exporting
from seriatim.pipeline.lake.delta import export_delta
from seriatim.pipeline.lake.iceberg import export_iceberg
from seriatim.pipeline.session import session


def die() -> None:
    """End as if by power cut."""
    os.kill(os.getpid(), signal.SIGKILL)


def around(owner: Any, name: str, *, before: int = 0, after: int = 0) -> None:
    """Die before or after the so manieth call of a function."""
    act: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == before:
            die()
        found = act(*arguments, **options)
        if calls == after:
            die()
        return found

    setattr(owner, name, counted)


POINTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "before the second seal": lambda: around(writing._Run, "_seal", before=2),
    "after the second seal": lambda: around(writing._Run, "_seal", after=2),
    "between two groups": lambda: around(restoring._Restoring, "_flush", after=3),
    "before the second commit": lambda: around(exporting, "commit", before=2),
    "after the second commit": lambda: around(exporting, "commit", after=2),
}
JOBS: dict[str, Callable[..., Any]] = {
    "archive": writing.archive,
    "restore": restoring.restore,
    "delta": export_delta,
    "iceberg": export_iceberg,
}


def main() -> None:
    """Run the job that the arguments name, up to its point."""
    job, point, arguments, options = json.loads(sys.argv[1])
    spark = session("local[2]", settings={"spark.driver.memory": "1g"})
    POINTS[point]()
    JOBS[job](spark, *arguments, **options)
    spark.stop()


if __name__ == "__main__":
    main()
