"""Structured logging: write the logger `seriatim` as JSON or text, without secrets."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Literal, TextIO

import msgspec

from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import SeriatimError
from seriatim.core.guard import DEFAULT_GUARD
from seriatim.telemetry import tracer

LogFormat = Literal["text", "json"]
REQUEST_FIELDS = ("method", "route", "status", "duration_ms")  # in text: part of the message
FIELDS = ("request_id", "tenant", "caller", "error_code", "limit", *REQUEST_FIELDS)

_REDACTED = "redacted: the text looks like a secret"
_bound_fields: ContextVar[Mapping[str, str]] = ContextVar(
    "seriatim_log_fields", default=MappingProxyType({})
)
_encode = msgspec.json.Encoder(enc_hook=str).encode


@contextmanager
def bind_fields(
    *, request_id: str | None = None, tenant: str | None = None, error_code: str | None = None
) -> Iterator[None]:
    """Add fields to every line that this thread or task logs within a block.

    Args:
        request_id: The id of the request that the block serves.
        tenant: The tenant that it works for.
        error_code: The code of an error that it reports.

    Example:
        with bind_fields(request_id="r-1", tenant="acme"):
            log.append([NewEvent("order.placed")])
    """
    values = {"request_id": request_id, "tenant": tenant, "error_code": error_code}
    fields = {name: value for name, value in values.items() if value is not None}
    token = _bound_fields.set({**_bound_fields.get(), **fields})
    try:
        yield
    finally:
        _bound_fields.reset(token)


def bind_request_id(request_id: str) -> None:
    """Add the request id to every line that the current task logs from now on."""
    _bound_fields.set({"request_id": request_id})


def write_logs(
    format: LogFormat, *, level: int = logging.INFO, stream: TextIO | None = None
) -> Callable[[], None]:
    """Write the logger `seriatim` to a stream.

    Args:
        format: `text` or `json`.
        level: The minimum level.
        stream: The stream; by default standard error.

    Returns:
        A function that stops writing.

    Example:
        stop = write_logs("json")
        log.append([NewEvent("order.placed")])
        stop()
    """
    handler = _Handler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logger = logging.getLogger("seriatim")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)

    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(before)

    return undo


def write_all_logs(format: LogFormat, *, stream: TextIO | None = None) -> Callable[[], None]:
    """Write the logs, warnings and uncaught errors of all libraries in this process.

    Loggers other than `seriatim` write warnings and errors only. A second call has no effect.

    Returns:
        A function that restores the previous state.
    """
    root = logging.getLogger()
    if any(isinstance(existing, _Handler) for existing in root.handlers):
        return lambda: None
    handler = _Handler(stream)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logger = logging.getLogger("seriatim")
    before = logger.level, sys.excepthook, threading.excepthook, sys.unraisablehook
    root.addHandler(handler)
    logger.setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
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
        return  # the command line reports the interruption itself
    logging.getLogger("seriatim").error("uncaught error", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(args: Any) -> None:
    if args.exc_value is not None:
        _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _log_unraisable(args: Any) -> None:
    if args.exc_value is not None:
        _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)


class JsonFormatter(logging.Formatter):
    """Format a record as one JSON object: time, level, logger, message and context fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line."""
        fields: dict[str, Any] = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _format_message(record),
            **_context_fields(record),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error, trace = record.exc_info[1], record.exc_info[2]
            fields["exception"] = summarize_error(error)
            fields["stack"] = _stack(trace)
            if isinstance(error, SeriatimError):
                fields.setdefault("error_code", error.code)
        return _encode(fields).decode()


class TextFormatter(logging.Formatter):
    """Format a record as readable text: time, level, message and context fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line, followed by the stack of its error."""
        fields = _context_fields(record).items()
        context = "".join(
            f" {name}={value}" for name, value in fields if name not in REQUEST_FIELDS
        )
        line = (
            f"{_format_time(record)} {record.levelname.lower()} {_format_message(record)}{context}"
        )
        if record.exc_info and record.exc_info[1] is not None:
            error, trace = record.exc_info[1], record.exc_info[2]
            line = "\n  ".join([line, *_stack(trace), summarize_error(error)])
        return line


class _Handler(logging.StreamHandler[TextIO]):
    """Write to the current `sys.stderr`, which a progress bar may have replaced."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream or sys.stderr)
        self._fixed_stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        if self._fixed_stream is None:
            self.stream = sys.stderr
        super().emit(record)


def _format_time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _format_message(record: logging.LogRecord) -> str:
    # The arguments of a message are only known now, and may come from any library.
    return _redact(record.getMessage())


def _redact(text: str) -> str:
    """Return a text as valid UTF-8, or a placeholder if it looks like a secret."""
    if DEFAULT_GUARD.rejects(text):
        return _REDACTED
    return text.encode(errors="backslashreplace").decode()


def _context_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of the record, of the enclosing block, and of the current span."""
    fields: dict[str, Any] = dict(_bound_fields.get())
    fields |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
    fields = {
        name: value if isinstance(value, int | float) else _redact(str(value))
        for name, value in fields.items()
    }
    ids = tracer.current_ids()
    return fields if ids is None else fields | {"trace_id": ids[0], "span_id": ids[1]}


def _stack(trace: TracebackType | None) -> list[str]:
    """Return file, line and function of each frame, without source code or values."""
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)
    ]
