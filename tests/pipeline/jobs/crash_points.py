"""A driver that runs several jobs and kills itself when each has reached its point.

Every job has a thread of its own; the last one to come to its point kills the process. So one death
is the crash of them all, and costs one start of Spark.
"""

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

import seriatim
from seriatim.pipeline.archive import archiver, restore
from seriatim.pipeline.lake import table_export
from seriatim.pipeline.lake.delta import export_delta
from seriatim.pipeline.lake.iceberg import export_iceberg
from seriatim.pipeline.project import job as spark_job
from seriatim.pipeline.project.live_stream import LiveStream
from seriatim.pipeline.project.projector import Projector
from seriatim.pipeline.source.spark_session import session
from tests.pipeline.project.support import fill, seats

PATIENCE_S = 240.0
LIVE_EVENTS = 30  # more than one batch of a stream

Act = Callable[..., Any]
_lock = threading.Lock()


def crash() -> None:
    """Kill this process with SIGKILL."""
    os.kill(os.getpid(), signal.SIGKILL)


class CrashBarrier:
    """A barrier at which jobs wait for each other before the process is killed.

    They gather before the call, where they hold no lock that another needs, and then continue to
    the point itself.
    """

    def __init__(self, jobs: int) -> None:
        self._gathered = threading.Barrier(jobs, timeout=PATIENCE_S)
        self._end = threading.Barrier(jobs, action=crash, timeout=PATIENCE_S)

    def around(self, act: Act, *, gather: int = 0, before: int = 0, after: int = 0) -> Act:
        """Wait at the barrier before the n-th call of a function; be killed before or after it."""
        calls = 0

        def counted(*arguments: Any, **options: object) -> Any:
            nonlocal calls
            calls += 1
            if calls == gather:
                self._gathered.wait()
            if calls == before:
                self._end.wait()
            found = act(*arguments, **options)
            if calls == after:
                self._end.wait()
            return found

        return counted

    def around_in_this_thread(self, owner: Any, name: str, call: int, when: str) -> None:
        """Apply `around` to the calls of a function by this thread only."""
        with _lock:
            others: Act = getattr(owner, name)
            wrapped = self.around(others, gather=call, **{when: call})
            me = threading.get_ident()

            def either(*arguments: Any, **options: object) -> Any:
                act = wrapped if threading.get_ident() == me else others
                return act(*arguments, **options)

            setattr(owner, name, either)


COPIES: dict[str, Act] = {
    "archive": archiver.archive,
    "restore": restore.restore,
    "delta": export_delta,
    "iceberg": export_iceberg,
}
POINTS: dict[str, Callable[[CrashBarrier], None]] = {
    "none": lambda _: None,
    "before the second seal": lambda d: d.around_in_this_thread(
        archiver._ArchiveRun, "_seal", 2, "before"
    ),
    "after the second seal": lambda d: d.around_in_this_thread(
        archiver._ArchiveRun, "_seal", 2, "after"
    ),
    "between two groups": lambda d: d.around_in_this_thread(
        restore._RestoreRun, "_flush", 3, "after"
    ),
    "before the second commit": lambda d: d.around_in_this_thread(
        table_export, "commit", 2, "before"
    ),
    "after the second commit": lambda d: d.around_in_this_thread(
        table_export, "commit", 2, "after"
    ),
}


def run_copy(
    spark: SparkSession,
    doom: CrashBarrier,
    job: str,
    point: str,
    arguments: list[Any],
    options: Any,
) -> None:
    """Archive, restore or export, up to a point."""
    POINTS[point](doom)
    COPIES[job](spark, *arguments, **options)


def run_projection(
    spark: SparkSession,
    doom: CrashBarrier,
    url: str,
    do: str,
    point: str,
    commits: int = 1,
    batch_events: int = 200_000,
) -> None:
    """Catch up, follow live or rebuild, up to a point of a given commit.

    A live run counts the commits of the stream, which receives its events when it has started.
    """
    with Projector(spark, seats, url, batch_events=batch_events) as job:

        def arm() -> None:
            model: Any = job.model
            if point == "inside":  # all is written, and nothing committed
                model.commit = doom.around(model.commit, gather=commits)
                model.write = doom.around(model.write, after=commits)
            else:
                model.commit = doom.around(model.commit, gather=commits, **{point: commits})

        if do == "rebuild":
            arm()
            job.rebuild()
        elif do == "run":
            arm()
            job.run(lease_s=2.0)
        else:
            _this_job.url, _this_job.arm = job.url, arm
            job.run(live=True, lease_s=2.0)


class _JobOfThread(threading.local):
    """The log that a thread projects, and what to do when its stream begins."""

    url: str
    arm: Callable[[], None]


_this_job = _JobOfThread()


class FedStream(LiveStream):
    """A stream that receives events as soon as it has started."""

    def __init__(self, *arguments: Any) -> None:
        _this_job.arm()
        super().__init__(*arguments)
        with seriatim.open(_this_job.url) as log:
            fill(log, LIVE_EVENTS, start=log.head())


def main(jobs: list[dict[str, Any]]) -> None:
    """Run the jobs until all are killed; a job that fails or ends stops everything."""
    spark = session("local[2]", settings={"spark.driver.memory": "1g"})
    doom = CrashBarrier(len(jobs))
    vars(spark_job)["LiveStream"] = FedStream

    def run(job: dict[str, Any]) -> None:
        try:
            act: Act = run_projection if "do" in job else run_copy
            act(spark, doom, **job)
            print("a job came to its end:", job, file=sys.stderr)  # noqa: T201 - its last words
        except BaseException:  # noqa: BLE001 - for the test to see
            traceback.print_exc()
        os._exit(1)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:  # when the main thread ends, pools of threads take no more work
        thread.join()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
