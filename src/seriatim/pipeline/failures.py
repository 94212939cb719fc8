"""From Spark's errors to ours."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import PicklingError

import msgspec
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from seriatim.core.errors import ALL_ERRORS, BackendFailure, InvalidArgument, SeriatimError
from seriatim.core.reasons import kept_words

# What a driver may meet; a worker's process that was killed comes as the bare Java error.
SPARK_ERRORS = (PySparkException, Py4JJavaError, Py4JNetworkError)

logger = logging.getLogger(__name__)

_KINDS = {kind.__name__: kind for kind in ALL_ERRORS}
_BY_CODE = {kind.code: kind for kind in ALL_ERRORS}
_SAID_MAX = 2000
_NOTE = "seriatim error: "  # how a task's error tells the driver all of itself
_NOTED = re.compile(re.escape(_NOTE) + r"(\{.*\})")
_OURS = re.compile(r"seriatim\.core\.errors\.(\w+): (.+)")
_TRACEBACK = "Traceback (most recent call last):"
# The line of a traceback that names the error: alone it begins at the margin.
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
_CAUSED = re.compile(r"^Caused by: (?:[\w$]+\.)*[\w$]+: (.+)$", re.MULTILINE)
# Signs of a worker's process that was killed, or that a busy machine was too slow to start.
_CRASHED = (
    "Python worker exited unexpectedly",
    "Python worker faulthandler",
    "failed to connect back",
    "java.io.EOFException",
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
    "ExecutorLostFailure",
)


class _Note(msgspec.Struct, frozen=True):
    """All of an error of ours, as a task tells it."""

    code: str
    message: str
    retryable: bool
    details: dict[str, object] = {}


@contextmanager
def noted_errors() -> Iterator[None]:
    """In a task: let errors of ours reach the driver whole; Spark sends their text only."""
    try:
        yield
    except SeriatimError as error:
        error.add_note(_NOTE + msgspec.json.encode(error.as_dict(), enc_hook=str).decode())
        raise


class _OwnThreads(threading.local):
    """How deep this thread is in blocks whose errors we tell ourselves."""

    depth = 0


_own = _OwnThreads()


def _is_users(_record: logging.LogRecord) -> bool:
    return not _own.depth


# Spark logs each error in an expression with its whole Java stack to stderr, caught or not.
for _name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
    PySparkLogger.getLogger(_name).addFilter(_is_users)


@contextmanager
def quiet_spark() -> Iterator[None]:
    """Keep Spark's log of errors in expressions silent in this thread; users' threads log on."""
    _own.depth += 1
    try:
        yield
    finally:
        _own.depth -= 1


@contextmanager
def translated() -> Iterator[None]:
    """In the driver: raise what made a job fail as an error of ours, in one message."""
    try:
        with quiet_spark():
            yield
    except SPARK_ERRORS as error:
        logger.debug("a Spark job failed", exc_info=error)
        raise failure_of(error) from None
    except PicklingError as error:
        msg = f"a function cannot be sent to Spark's tasks: {error}"
        raise InvalidArgument(msg[:_SAID_MAX]) from None


def failure_of(error: BaseException) -> SeriatimError:
    """Say what made a job fail: our own error if a task raised one, else the reason it gave."""
    text = str(error)
    if (ours := _ours(text)) is not None:
        return ours
    # What the task itself raised is told first, even if its process then died.
    raised = _raised(text)
    if raised is not None:
        return BackendFailure(f"a Spark task failed with {raised}"[:_SAID_MAX], retryable=False)
    if any(sign in text for sign in _CRASHED):
        msg = "Spark failed: a worker's Python process was killed, or crashed"
        return BackendFailure(msg, retryable=True)
    return BackendFailure(f"Spark failed: {_first_words(text)}"[:_SAID_MAX], retryable=False)


def _ours(text: str) -> SeriatimError | None:
    for noted in reversed(_NOTED.findall(text)):
        try:
            note = msgspec.json.decode(noted, type=_Note)
        except msgspec.MsgspecError:
            continue
        if (kind := _BY_CODE.get(note.code)) is not None:
            return kind(note.message, details=dict(note.details), retryable=note.retryable)
    found = [one for one in _OURS.findall(text) if one[0] in _KINDS]
    if not found:
        return None
    name, said = found[-1]
    return _KINDS[name](said[:_SAID_MAX])


def _raised(text: str) -> str | None:
    """Return type and words of the error that ended the last Python traceback in a text."""
    _, found, last = text.rpartition(_TRACEBACK)
    if not found:
        return None
    lines = iter(last.splitlines()[1:])
    for line in lines:
        raised = _RAISED.match(line)
        if raised is not None:
            more = []
            for later in lines:
                if not later.strip() or later.startswith(("\tat ", " SQLSTATE", "Driver stack")):
                    break
                more.append(later.strip())
            name = raised[1].rpartition(".")[2]
            said = " ".join([raised[2] or "", *more]).strip()
            return kept_words(name, said)
    return None


def _first_words(text: str) -> str:
    """Return what Spark itself gives as the reason: the innermost cause of a Java error."""
    causes: list[str] = _CAUSED.findall(text)
    if causes:
        return causes[-1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else "no reason given"
