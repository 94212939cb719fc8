"""Where an archive lies: a folder or a bucket, with the few acts that an archive needs of it."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import unquote, urlsplit

import msgspec
import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import S3Store

from seriatim import config
from seriatim.core.errors import BackendFailure, InvalidArgument, NotFound

PART = ".part"  # what is being written to a folder; a bucket shows nothing before it is whole
_CHUNK_BYTES = 8 * 1024 * 1024
_UPLOADS = 4
_RETRIES: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}


class Place(Protocol):
    """What an archive needs; a place can be sent to another process."""

    def create(self, name: str, data: bytes) -> bool:
        """Store a small object unless there is one of that name; tell whether it was stored.

        Of a put whose answer was lost it may say no: what is stored then tells more.
        """
        ...

    def read(self, name: str) -> bytes:
        """Return a small object."""
        ...

    def size(self, name: str) -> int:
        """Return the size of an object in bytes."""
        ...

    def names(self, under: str) -> list[str]:
        """Return the names that begin with `under` and a slash, sorted."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        ...

    def writing(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a new object to write; nobody sees it before the block ends well."""
        ...

    def file(self, name: str) -> AbstractContextManager[Any]:
        """Open an object for reading here and there in it, as pyarrow does."""
        ...

    def copied(self, name: str) -> AbstractContextManager[Path]:
        """Lend the whole object as a file of this machine."""
        ...


def open_place(at: str | Place) -> Place:
    """Return the place that a URL names: a path, `file:///path` or `s3://bucket/prefix`."""
    if not isinstance(at, str):
        return at
    parts = urlsplit(at)
    if parts.scheme in ("s3", "s3a") and parts.netloc and not parts.query:
        return Bucket(parts.netloc, parts.path.strip("/"), config.object_store())
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return Folder(unquote(parts.path))
    if not parts.scheme and at:
        return Folder(str(Path(at).absolute()))
    msg = "an archive lies at a path, file:///path or s3://bucket/prefix"
    raise InvalidArgument(msg, details={"argument": "at"})


class Folder(msgspec.Struct, frozen=True):
    """A folder that every worker reaches."""

    path: str

    def __str__(self) -> str:
        return self.path

    def create(self, name: str, data: bytes) -> bool:
        """Store a small object unless there is one: a link is made whole or not at all."""
        target = self._at(name)
        with _told(name), self._part(target) as (part, sink):
            sink.write(data)
            _to_disk(sink)
            try:
                target.hardlink_to(part)
            except FileExistsError:
                return False
            _sync_folder(target.parent)
        return True

    def read(self, name: str) -> bytes:
        """Return a small object."""
        with _told(name):
            return self._at(name).read_bytes()

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        with _told(name):
            return self._at(name).stat().st_size

    def version(self, name: str) -> tuple[int, ...]:
        """Return numbers that change whenever the file is replaced or written to."""
        with _told(name):
            found = self._at(name).stat()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def names(self, under: str) -> list[str]:
        """Return the names of one folder, sorted."""
        folder = self._at(under)
        with _told(under):
            return (
                sorted(f"{under}/{each.name}" for each in folder.iterdir())
                if folder.is_dir()
                else []
            )

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with _told(name):
            self._at(name).unlink(missing_ok=True)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Open a new file under another name, which becomes its own when it is on disk."""
        target = self._at(name)
        with _told(name), self._part(target) as (part, sink):
            yield sink
            _to_disk(sink)
            part.replace(target)
            _sync_folder(target.parent)

    @contextmanager
    def file(self, name: str) -> Iterator[Any]:
        """Open a file for reading."""
        with _told(name), pa.memory_map(str(self._at(name))) as source:
            yield source

    @contextmanager
    def copied(self, name: str) -> Iterator[Path]:
        """Lend the file itself."""
        with _told(name):
            yield self._at(name)

    def _at(self, name: str) -> Path:
        return Path(self.path, name)

    @contextmanager
    def _part(self, target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}{PART}")
        try:
            with part.open("xb") as sink:
                yield part, sink
        finally:
            part.unlink(missing_ok=True)


def _to_disk(sink: IO[bytes]) -> None:
    sink.flush()
    os.fsync(sink.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Bucket(msgspec.Struct, frozen=True):
    """A bucket of an S3 server, and the prefix under which the archive lies."""

    name: str
    prefix: str
    settings: dict[str, str] = {}

    def __str__(self) -> str:
        return f"s3://{self.name}/{self.prefix}"

    def __repr__(self) -> str:
        return str(self)  # without the keys among its settings

    @property
    def _store(self) -> S3Store:
        with _told(str(self)):
            return _client(self.name, self.prefix, tuple(sorted(self.settings.items())))

    def create(self, name: str, data: bytes) -> bool:
        """Store a small object unless there is one, by a conditional put."""
        with _told(name):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def read(self, name: str) -> bytes:
        """Return a small object."""
        with _told(name):
            return bytes(obstore.get(self._store, name).bytes())

    def size(self, name: str) -> int:
        """Return the size of an object in bytes."""
        with _told(name):
            return int(obstore.head(self._store, name)["size"])

    def names(self, under: str) -> list[str]:
        """Return the names under a prefix, sorted."""
        with _told(under):
            pages = obstore.list(self._store, under)
            return sorted(entry["path"] for page in pages for entry in page)

    def remove(self, name: str) -> None:
        """Remove an object, if it is there."""
        with _told(name):
            obstore.delete(self._store, name)

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Upload an object piece by piece; the last act makes it visible."""
        with _told(name):
            sink: Any = obstore.open_writer(
                self._store, name, buffer_size=_CHUNK_BYTES, max_concurrency=_UPLOADS
            )
            yield sink
            sink.close()

    @contextmanager
    def file(self, name: str) -> Iterator[Any]:
        """Open an object for reading: each read is a request for a range."""
        with _told(name):
            yield _Ranges(obstore.open_reader(self._store, name))

    @contextmanager
    def copied(self, name: str) -> Iterator[Path]:
        """Fetch an object to a file that is removed afterwards."""
        with _told(name), tempfile.NamedTemporaryFile(prefix="seriatim-") as copy:
            for chunk in obstore.get(self._store, name).stream(min_chunk_size=_CHUNK_BYTES):
                copy.write(chunk)
            copy.flush()
            yield Path(copy.name)


@lru_cache(maxsize=16)  # a client keeps its connections
def _client(bucket: str, prefix: str, settings: tuple[tuple[str, str], ...]) -> S3Store:
    options: Any = dict(settings)
    return S3Store(bucket, prefix=prefix or None, config=options, retry_config=_RETRIES)


class _Ranges:
    """An object of a bucket in the words in which pyarrow reads files."""

    closed = False

    def __init__(self, reader: obstore.ReadableFile) -> None:
        self._reader = reader
        self.seek = reader.seek
        self.tell = reader.tell

    def read(self, size: int = -1) -> bytes:
        return bytes(self._reader.read(None if size < 0 else size))

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is held open."""


@contextmanager
def _told(name: str) -> Iterator[None]:
    """Say which object of the archive failed, and how."""
    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        msg = f"the archive has no {name}"
        raise NotFound(msg, details={"name": name}) from error
    except (BaseError, OSError) as error:
        reason = " ".join(str(error).partition("Debug source")[0].split())[:400]
        msg = f"the archive's place failed at {name}: {reason or type(error).__name__}"
        raise BackendFailure(msg, details={"name": name}) from error
