"""Rejected rows of a write: their reasons, and a file with the rows for later inspection."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from seriatim.core.errors import SeriatimError

_PARTIAL_SUFFIX = ".part"
_FIRST_REASONS = 10
_encode = msgspec.json.Encoder(enc_hook=str).encode


class Reason(msgspec.Struct, frozen=True):
    """The error with which the log refused a row."""

    code: str
    message: str


class RefusedRows:
    """Collects the refused rows of one task: the first reasons and, with a folder, all rows.

    The file has one JSON object per line with the error's `code` and `message` and the `row`. It
    keeps the suffix `.part` until the job commits (`finalize_files`), and is removed if the task
    fails, because Spark then runs the task again.

    Attributes:
        first: The first reasons.
        file: The path of the file, None if no row was written to one.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._sink: IO[bytes] | None = None
        self.first: list[Reason] = []
        self.file: str | None = None

    def add(self, error: SeriatimError, row: dict[str, Any]) -> None:
        """Add a row and the error with which it was refused."""
        if len(self.first) < _FIRST_REASONS:
            self.first.append(Reason(error.code, error.message))
        if self._folder is None:
            return
        if self._sink is None:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
            path = Path(self._folder, f"refused-{uuid.uuid4().hex}.jsonl{_PARTIAL_SUFFIX}")
            self.file = str(path)
            self._sink = path.open("xb")
        line = {"code": error.code, "message": error.message, "row": row}
        self._sink.write(_encode(line) + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._sink is not None:
            self._sink.close()
            if failure[0] is not None and self.file is not None:
                # Spark runs the task again, which writes its refused rows anew.
                Path(self.file).unlink(missing_ok=True)


def keep_files(files: Sequence[str]) -> None:
    """Give the files of successful tasks their final names, without `.part`."""
    for name in files:
        Path(name).rename(name.removesuffix(_PARTIAL_SUFFIX))
