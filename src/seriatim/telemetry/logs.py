"""The logger `seriatim` as lines of JSON or of text, with who it was about and without secrets."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO

import msgspec

from seriatim.core.errors import SeriatimError
from seriatim.core.guard import DEFAULT
from seriatim.core.reasons import reason_of
from seriatim.telemetry import tracing

Format = Literal["text", "json"]
REQUEST_FIELDS = ("method", "route", "status", "duration_ms")  # in text they are the message
FIELDS = ("request_id", "tenant", "caller", "error_code", "limit", *REQUEST_FIELDS)

_HIDDEN = "these words are not shown, they look like a secret"
_bound: ContextVar[dict[str, str]] = ContextVar("seriatim_log_fields", default={})  # noqa: B039
_encode = msgspec.json.Encoder(enc_hook=str).encode


@contextmanager
def bound(
    *, request_id: str | None = None, tenant: str | None = None, error_code: str | None = None
) -> Iterator[None]:
    """Say in every line that a block logs, in this thread or task, whom it is about."""
    given = {"request_id": request_id, "tenant": tenant, "error_code": error_code}
    fields = {name: value for name, value in given.items() if value is not None}
    token = _bound.set(_bound.get() | fields)
    try:
        yield
    finally:
        _bound.reset(token)


def bind(request_id: str) -> None:
    """Say so in every line of this task, which ends with the request."""
    _bound.set({"request_id": request_id})


def write_logs(
    form: Format, *, level: int = logging.INFO, stream: TextIO | None = None
) -> Callable[[], None]:
    """Write the logger `seriatim` to a stream, stderr if none is given; returns the undoing."""
    handler = _Handler(stream)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logger = logging.getLogger("seriatim")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)

    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    return undo


def write_every_log(form: Format, *, stream: TextIO | None = None) -> Callable[[], None]:
    """Write what any library logs, warns or raises in this process; returns the undoing.

    Other loggers than `seriatim` write warnings and errors. A second call in the same process
    changes nothing.
    """
    root = logging.getLogger()
    if any(isinstance(one, _Handler) for one in root.handlers):
        return lambda: None
    handler = _Handler(stream)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logger = logging.getLogger("seriatim")
    before = logger.level, sys.excepthook, threading.excepthook, sys.unraisablehook
    root.addHandler(handler)
    logger.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_of_thread
    sys.unraisablehook = _log_unraisable

    def undo() -> None:
        root.removeHandler(handler)
        logging.captureWarnings(capture=False)
        level, sys.excepthook, threading.excepthook, sys.unraisablehook = before
        logger.setLevel(level)

    return undo


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return  # the command says that it was interrupted
    logging.getLogger("seriatim").error("uncaught error", exc_info=(kind, error, trace))


def _log_uncaught_of_thread(args: Any) -> None:
    if args.exc_value is not None:
        _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _log_unraisable(args: Any) -> None:
    if args.exc_value is not None:
        _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and what is known beside it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        made: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **_known(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error, trace = record.exc_info[1], record.exc_info[2]
            made["exception"] = reason_of(error)
            made["stack"] = _stack(trace)
            if isinstance(error, SeriatimError):
                made.setdefault("error_code", error.code)
        return _encode(made).decode()


class TextLines(logging.Formatter):
    """The same for people: time, level, message, and what is known beside it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line, and under it the way to its error."""
        fields = _known(record).items()
        known = "".join(f" {name}={value}" for name, value in fields if name not in REQUEST_FIELDS)
        line = f"{_time(record)} {record.levelname.lower()} {_message(record)}{known}"
        if record.exc_info and record.exc_info[1] is not None:
            error, trace = record.exc_info[1], record.exc_info[2]
            line = "\n  ".join([line, *_stack(trace), reason_of(error)])
        return line


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to stderr as it is at the moment: a progress bar may stand in for it."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream or sys.stderr)
        self._given = stream

    def emit(self, record: logging.LogRecord) -> None:
        if self._given is None:
            self.stream = sys.stderr
        super().emit(record)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    return _shown(record.getMessage())


def _shown(said: str) -> str:
    """Return words as every reader of logs can take them, unless they look like a secret."""
    if DEFAULT.refuses(said):
        return _HIDDEN
    return said.encode(errors="backslashreplace").decode()


def _known(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that the record or its block gives, and the span that it stands in."""
    known: dict[str, Any] = dict(_bound.get())
    known |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
    known = {
        name: value if isinstance(value, int | float) else _shown(str(value))
        for name, value in known.items()
    }
    ids = tracing.current_ids()
    return known if ids is None else known | {"trace_id": ids[0], "span_id": ids[1]}


def _stack(trace: TracebackType | None) -> list[str]:
    """Return the way to an error, without the lines of code, which may hold anything."""
    return [f"{one.filename}:{one.lineno} {one.name}" for one in traceback.extract_tb(trace)]
