"""Translation of Spark's errors into errors of Seriatim."""

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

from seriatim.core.error_summary import summarize_message
from seriatim.core.errors import ALL_ERRORS, BackendFailure, InvalidArgument, SeriatimError

# Errors that a driver can meet. A killed worker process arrives as the bare Java error.
SPARK_ERRORS = (PySparkException, Py4JJavaError, Py4JNetworkError)

logger = logging.getLogger(__name__)

_BY_NAME = {kind.__name__: kind for kind in ALL_ERRORS}
_BY_CODE = {kind.code: kind for kind in ALL_ERRORS}
_MESSAGE_MAX = 2000
_NOTE = "seriatim error: "  # precedes the JSON form of an error in a task's traceback
_NOTE_PATTERN = re.compile(re.escape(_NOTE) + r"(\{.*\})")
_OWN_ERROR = re.compile(r"seriatim\.core\.errors\.(\w+): (.+)")
_TRACEBACK = "Traceback (most recent call last):"
# The line of a traceback that names the error is the first one without indentation.
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
_CAUSED_BY = re.compile(r"^Caused by: (?:[\w$]+\.)*[\w$]+: (.+)$", re.MULTILINE)
# Signs of a worker process that was killed, or that was too slow to start on a busy machine.
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
    """The JSON form of an error that a task adds to its traceback."""

    code: str
    message: str
    retryable: bool
    details: dict[str, object] = {}


@contextmanager
def annotate_errors() -> Iterator[None]:
    """Attach the JSON form of an error of Seriatim to its traceback; use it in tasks.

    Spark sends only the text of a task's error to the driver. The driver decodes this form in
    `translate_spark_errors`.
    """
    try:
        yield
    except SeriatimError as error:
        error.add_note(_NOTE + msgspec.json.encode(error.as_dict(), enc_hook=str).decode())
        raise


class _SilencedThreads(threading.local):
    """How many `silence_spark_errors` blocks the current thread is in."""

    depth = 0


_silenced = _SilencedThreads()


def _is_logged(_record: logging.LogRecord) -> bool:
    return not _silenced.depth


# Spark logs every error in an expression to stderr with its Java stack, even if it is caught.
for _name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
    PySparkLogger.getLogger(_name).addFilter(_is_logged)


@contextmanager
def silence_spark_errors() -> Iterator[None]:
    """Keep Spark from logging errors of expressions in this thread; other threads still log."""
    _silenced.depth += 1
    try:
        yield
    finally:
        _silenced.depth -= 1


@contextmanager
def translate_spark_errors() -> Iterator[None]:
    """Raise the cause of a failed Spark job as an error of Seriatim; use it in the driver.

    Raises:
        SeriatimError: The error that a task raised, or a `BackendFailure` with Spark's reason.
        InvalidArgument: A function cannot be pickled for Spark's tasks.
    """
    try:
        with silence_spark_errors():
            yield
    except SPARK_ERRORS as error:
        logger.debug("a Spark job failed", exc_info=error)
        raise to_seriatim_error(error) from None
    except PicklingError as error:
        msg = f"a function cannot be sent to Spark's tasks: {error}"
        raise InvalidArgument(msg[:_MESSAGE_MAX]) from None


def to_seriatim_error(error: BaseException) -> SeriatimError:
    """Return the error of Seriatim for a Spark error.

    That is the error a task raised, if it was one of Seriatim's; else a `BackendFailure` with the
    reason, which is retryable only if a worker process died.
    """
    text = str(error)
    if (own := _find_own_error(text)) is not None:
        return own
    # An exception that the task raised is the cause, even if its process died afterwards.
    raised = _find_raised_error(text)
    if raised is not None:
        return BackendFailure(f"a Spark task failed with {raised}"[:_MESSAGE_MAX], retryable=False)
    if any(sign in text for sign in _CRASHED):
        msg = (
            "Spark failed: a Python worker process was killed or crashed: check the memory of the "
            "machine, then run the job again"
        )
        return BackendFailure(msg, retryable=True)
    return BackendFailure(f"Spark failed: {_find_reason(text)}"[:_MESSAGE_MAX], retryable=False)


def _find_own_error(text: str) -> SeriatimError | None:
    """Return the last error of Seriatim in a text: from its note, else from its traceback line."""
    for encoded in reversed(_NOTE_PATTERN.findall(text)):
        try:
            note = msgspec.json.decode(encoded, type=_Note)
        except msgspec.MsgspecError:
            continue
        if (kind := _BY_CODE.get(note.code)) is not None:
            return kind(note.message, details=dict(note.details), retryable=note.retryable)
    matches = [match for match in _OWN_ERROR.findall(text) if match[0] in _BY_NAME]
    if not matches:
        return None
    name, message = matches[-1]
    return _BY_NAME[name](message[:_MESSAGE_MAX])


def _find_raised_error(text: str) -> str | None:
    """Return type and message of the error that ended the last Python traceback in a text."""
    _, separator, traceback = text.rpartition(_TRACEBACK)
    if not separator:
        return None
    lines = iter(traceback.splitlines()[1:])
    for line in lines:
        match = _RAISED.match(line)
        if match is not None:
            message_lines = []
            for continuation in lines:
                if not continuation.strip() or continuation.startswith(
                    ("\tat ", " SQLSTATE", "Driver stack")
                ):
                    break
                message_lines.append(continuation.strip())
            name = match[1].rpartition(".")[2]
            message = " ".join([match[2] or "", *message_lines]).strip()
            return summarize_message(name, message)
    return None


def _find_reason(text: str) -> str:
    """Return the reason that Spark gives: the innermost cause of a Java error."""
    causes: list[str] = _CAUSED_BY.findall(text)
    if causes:
        return causes[-1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else "no reason given"
