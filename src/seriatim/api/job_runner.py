"""Run verifications and rebuilds of projections as child processes of the service."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, Any, Literal

import msgspec

from seriatim.access.jobs import Job, JobKind, JobStore
from seriatim.access.store import AccessStore
from seriatim.config import make_child_environment
from seriatim.core.error_summary import sanitize_reason
from seriatim.core.errors import BackendFailure, NotFound, SeriatimError
from seriatim.core.limits import KIB, limit_error

JOBS_PER_PROCESS = 2
QUEUED_MAX = 8  # unfinished jobs of one process
_OUTPUT_BYTES = 256 * KIB
_PROGRESS_LINES = 20
_LINE_BYTES = 400
_UPDATE_S = 2.0
_TERMINATE_S = 2.0  # from SIGTERM to SIGKILL
_EXIT_DIFFERENCE = 1  # the exit code of a verification that finds a difference


class JobRunner:
    """The jobs that one process of the service runs, at most two at a time.

    Args:
        access: The access store, whose database also contains the states of jobs.
        url: The URL of the log, passed to child processes in their environment.
        projections: The projections that may be run, by name, each as the command line takes it.
        timeout_s: The maximum time of a job.
    """

    def __init__(
        self, access: AccessStore, url: str, projections: Mapping[str, str], timeout_s: float
    ) -> None:
        self._access = access
        self._url = url
        self._projections = projections
        self._timeout_s = timeout_s
        self._store: JobStore | None = None
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(JOBS_PER_PROCESS, "seriatim-job")
        self._open: set[str] = set()  # ids of queued and running jobs of this process
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = threading.Event()

    @property
    def store(self) -> JobStore:
        """The states of jobs, on a connection of its own that is opened at first use."""
        with self._lock:
            if self._store is None:
                self._store = self._access.open_jobs()
            return self._store

    def submit(
        self, kind: JobKind, projection: str, tenant_id: str, *, actor_id: str, reason: str
    ) -> Job:
        """Queue a job.

        Raises:
            NotFound: The service was not given this projection.
            BackendFailure: The log is in memory, or the service stops.
            LimitExceeded: This process has too many unfinished jobs.
            Conflict: A job for this projection is queued or running.
        """
        if projection not in self._projections:
            names = ", ".join(sorted(self._projections)) or "none"
            msg = f"this service runs no projection {projection!r:.80}: it was given {names}"
            raise NotFound(msg, details={"projection": projection})
        if self._url.startswith("memory:"):
            raise BackendFailure("a log in memory has no projections to run", retryable=False)
        if len(self._open) >= QUEUED_MAX:
            raise limit_error("queued_jobs", QUEUED_MAX, len(self._open) + 1)
        job = self.store.add(kind, projection, tenant_id, actor_id=actor_id, reason=reason)
        self._open.add(job.job_id)
        try:
            self._threads.submit(self._run, job)
        except RuntimeError:  # the threads were shut down
            self._finish(job, None, "the service was stopped")
            raise BackendFailure("the service stops") from None
        return job

    def stop(self) -> None:
        """End all jobs of this process; each is stored as failed."""
        self._stopping.set()
        with self._lock:
            running = list(self._processes.values())
        for process in running:  # all at once, so that the waits below overlap
            _signal_group(process, signal.SIGTERM)
        for process in running:
            _end_process(process)
        self._threads.shutdown(wait=True)
        if self._store is not None:
            self._store.close()

    def _run(self, job: Job) -> None:
        """Run a job to its end, in a thread."""
        error = "the job failed unexpectedly: see the log of the service"
        result = None
        try:
            result, error = self._run_process(job)
        except (SeriatimError, OSError) as failure:
            error = sanitize_reason(f"{type(failure).__name__}: {failure}")
        finally:
            self._finish(job, result, error)

    def _finish(self, job: Job, result: Any, error: str) -> None:
        self._open.discard(job.job_id)
        with suppress(SeriatimError):  # without an update the job counts as lost in a minute
            status: Literal["failed", "succeeded"] = "failed" if error else "succeeded"
            self.store.finish(job.job_id, status, result=result, error=error)

    def _run_process(self, job: Job) -> tuple[Any, str]:
        """Run the command of a job; return its result, and its error or an empty text."""
        # The lock is held until the process is listed, so that `stop` ends it or prevents it.
        with self._lock:
            if self._stopping.is_set():
                return None, "the service was stopped"
            process = subprocess.Popen(  # noqa: S603 - the arguments are the operator's own
                self._make_command(job),
                env=make_child_environment(self._url),  # the URL may contain a password
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # so that the JVM ends with it
            )
            self._processes[job.job_id] = process
        try:
            return self._watch(job, process)
        finally:
            _end_process(process)
            with self._lock:
                del self._processes[job.job_id]

    def _make_command(self, job: Job) -> Sequence[str]:
        path = self._projections[job.projection]
        name = "verify" if job.kind == "verify" else "rebuild"
        # Where Spark is not installed, the job folds the log in its own process.
        engine = "spark" if importlib.util.find_spec("pyspark") else "local"
        command = [sys.executable, "-m", "seriatim", "project", name, path, "--json"]
        command.append(f"--engine={engine}")
        if job.kind == "rebuild_accept":
            command.append("--accept")
        if name == "rebuild":
            command.append(f"--reason=job {job.job_id}")
        return [*command, f"--tenant={job.tenant_id}"]

    def _watch(self, job: Job, process: subprocess.Popen[bytes]) -> tuple[Any, str]:
        """Store the progress of a process until it ends, and interpret its output."""
        assert process.stdout is not None and process.stderr is not None  # noqa: S101, PT018
        output, log = _OutputReader(process.stdout), _OutputReader(process.stderr)
        deadline = time.monotonic() + self._timeout_s
        while True:
            # False: the job counts as lost, and another one may run for its projection.
            if not self.store.update(job.job_id, log.last_lines()):
                return None, "the job was given up because it was not updated in time"
            with suppress(subprocess.TimeoutExpired):
                process.wait(_UPDATE_S)
                break
            if time.monotonic() > deadline:
                _end_process(process)
                return None, f"the job was ended because it took longer than {self._timeout_s:g} s"
        if self._stopping.is_set():
            return None, "the service was stopped"
        result = _parse_line(output.finish())
        code = process.returncode
        if result is not None and code in (0, _EXIT_DIFFERENCE):
            return result, ""
        problem = _parse_line(log.finish())
        message = problem.get("message") if problem is not None else None
        return result, sanitize_reason(str(message or f"the command ended with exit code {code}"))


class _OutputReader:
    """Read the output of a process in a thread and keep its end, so that the process never waits.

    Args:
        stream: The output.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._thread = threading.Thread(target=self._read, name="seriatim-job-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while chunk := os.read(self._stream.fileno(), _OUTPUT_BYTES // 16):
                self._chunks.append(chunk)
                self._size += len(chunk)
                while self._size > _OUTPUT_BYTES:
                    self._size -= len(self._chunks.popleft())

    def finish(self) -> list[str]:
        """Return the lines of the end of the output, after the process has ended."""
        self._thread.join(_TERMINATE_S)
        return b"".join(list(self._chunks)).decode(errors="replace").splitlines()

    def last_lines(self) -> tuple[str, ...]:
        """Return the last lines so far, shortened and without secrets."""
        text = b"".join(list(self._chunks)).decode(errors="replace")
        lines = [line.rstrip() for line in text.splitlines() if line.strip()]
        return tuple(sanitize_reason(line[:_LINE_BYTES]) for line in lines[-_PROGRESS_LINES:])


def _parse_line(lines: list[str]) -> dict[str, Any] | None:
    """Return the last line that is a JSON object, None if there is none."""
    for line in reversed(lines):
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(line, type=dict[str, Any])
    return None


def _end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children: the group is terminated, and killed if that takes long."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        _signal_group(process, signal_number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATE_S)


def _signal_group(process: subprocess.Popen[bytes], signal_number: signal.Signals) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
