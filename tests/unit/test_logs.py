"""Logs as JSON or text, with context and trace, and without secrets."""

import io
import json
import logging
from typing import Any, Self

import pytest
from opentelemetry.sdk.trace import TracerProvider

from seriatim.core.errors import BackendFailure
from seriatim.telemetry import tracer
from seriatim.telemetry.log_format import LogFormat, bind_fields, write_logs

SECRET = "password=hunter2hunter2"
logger = logging.getLogger("seriatim")


class Written:
    """Collects the log lines of a block."""

    def __init__(self, form: LogFormat) -> None:
        self._form = form
        self._stream = io.StringIO()

    def __enter__(self) -> Self:
        self._stop = write_logs(self._form, stream=self._stream)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def text(self) -> str:
        """Return all lines as text."""
        return self._stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return each line as JSON."""
        return [json.loads(line) for line in self.text.splitlines()]


def fail(error: Exception) -> None:
    """Log an error with its traceback."""
    try:
        raise error
    except type(error):
        logger.exception("it failed")


def test_a_json_line() -> None:
    """M2: a JSON line has time, level, logger, message and the fields of its block."""
    with Written("json") as written, bind_fields(request_id="r-1", tenant="acme"):
        logger.info("published up to %d", 7)
        logging.getLogger("seriatim.kafka").warning("slow", extra={"error_code": "timeout"})
        logger.debug("not shown")
        with bind_fields(tenant="other"):
            logger.info("inner")

    first, second, third = written.lines
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "info",
        "logger": "seriatim",
        "message": "published up to 7",
        "request_id": "r-1",
        "tenant": "acme",
    }
    assert second["logger"] == "seriatim.kafka"
    assert second["error_code"] == "timeout"
    assert (third["tenant"], third["request_id"]) == ("other", "r-1")


def test_lines_have_the_ids_of_the_current_span() -> None:
    """M2: within a span, lines have its ids."""
    provider = TracerProvider()
    undo = tracer.use_provider(provider)
    with Written("json") as written, tracer.span("work"):
        ids = tracer.current_ids()
        logger.info("here")
    undo()

    assert ids == (written.lines[0]["trace_id"], written.lines[0]["span_id"])


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_in_logs(form: LogFormat) -> None:
    """M2: K1: text that looks like a secret is not logged, in messages or errors."""
    with Written(form) as written, bind_fields(tenant=SECRET):
        logger.warning("connecting with %s", SECRET)
        fail(ValueError(SECRET))

    assert "hunter2" not in written.text
    assert "looks like a secret" in written.text
    assert "test_logs.py" in written.text
    assert "ValueError" in written.text


def test_seriatim_errors_are_logged_with_their_code() -> None:
    """M2: a Seriatim error is logged with its code."""
    with Written("json") as written:
        fail(BackendFailure("the database is away"))

    [line] = written.lines
    assert line["error_code"] == "backend_failure"
    assert line["exception"] == "BackendFailure: the database is away"
    assert line["stack"][0].endswith(" fail")


def test_a_text_line() -> None:
    """M2: a text line has level, message and the fields of its block."""
    with Written("text") as written, bind_fields(tenant="acme"):
        logger.info("hello")

    assert written.text.endswith(" info hello tenant=acme\n")


def test_unencodable_characters_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """M2: characters that cannot be encoded are escaped."""
    monkeypatch.setattr(logger, "propagate", False)  # pytest cannot encode the message either
    with Written("json") as written:
        logger.info("lone surrogate: %s", "\ud800")

    assert written.lines[0]["message"] == "lone surrogate: \\ud800"


def test_logging_setup_can_be_undone(capsys: pytest.CaptureFixture[str]) -> None:
    """M2: lines go to stderr until logging is reset."""
    before = list(logger.handlers), logger.level
    stop = write_logs("text")
    logger.info("shown")
    stop()
    logger.info("not shown")

    assert (list(logger.handlers), logger.level) == before
    assert capsys.readouterr().err.count("shown") == 1
