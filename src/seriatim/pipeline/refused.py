"""Rows that the log refused: kept with their reasons, so that somebody can look after them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from seriatim.core.errors import SeriatimError

_PART = ".part"
_FIRST = 10
_encode = msgspec.json.Encoder(enc_hook=str).encode


class Reason(msgspec.Struct, frozen=True):
    """Why a row was refused."""

    code: str
    message: str


class RefusedRows:
    """The refused rows of one task: the first reasons, and all rows in a file if there is a folder.

    A line of the file has the error's code, its message and the row.
    """

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._sink: IO[bytes] | None = None
        self.first: list[Reason] = []
        self.file: str | None = None

    def add(self, error: SeriatimError, row: dict[str, Any]) -> None:
        """Keep one."""
        if len(self.first) < _FIRST:
            self.first.append(Reason(error.code, error.message))
        if self._folder is None:
            return
        if self._sink is None:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
            path = Path(self._folder, f"refused-{uuid.uuid4().hex}.jsonl{_PART}")
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
                Path(self.file).unlink(missing_ok=True)  # the task is tried again


def keep_files(files: Sequence[str]) -> None:
    """Give the files of tasks that succeeded their names."""
    for name in files:
        Path(name).rename(name.removesuffix(_PART))
