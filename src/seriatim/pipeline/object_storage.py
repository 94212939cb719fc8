"""Object storage in a folder or an S3 bucket, with the few operations that an archive needs."""

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
from seriatim.factory import redact_url

# The suffix of unfinished files in a folder; a bucket shows only complete objects.
PARTIAL_SUFFIX = ".part"
_CHUNK_BYTES = 8 * 1024 * 1024
_CONCURRENT_UPLOADS = 4
_RETRY_CONFIG: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=60)}


class ObjectStorage(Protocol):
    """Storage of named objects; implementations can be pickled for other processes."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Store a small object unless its name exists, and return whether it was stored.

        If the response to a put is lost, the repeated put finds the object and returns False,
        although this call stored it: read the object to be sure.
        """
        ...

    def read(self, name: str) -> bytes:
        """Return the bytes of a small object.

        Raises:
            NotFound: There is no object of this name.
        """
        ...

    def size(self, name: str) -> int:
        """Return the size of an object in bytes."""
        ...

    def list_names(self, folder: str) -> list[str]:
        """Return the names of objects in a folder, sorted and including the folder."""
        ...

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""
        ...

    def open_writer(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a new object for writing; it becomes visible when the block ends without error."""
        ...

    def open_reader(self, name: str) -> AbstractContextManager[Any]:
        """Open an object for random access, in a form that pyarrow can read."""
        ...

    def local_copy(self, name: str) -> AbstractContextManager[Path]:
        """Provide the object as a local file for the duration of a block."""
        ...


def open_storage(at: str | ObjectStorage) -> ObjectStorage:
    """Return the storage at a location.

    Args:
        at: A path, `file:///path` or `s3://bucket/prefix`; an open storage is returned as it is.

    Raises:
        InvalidArgument: The location has another form.
    """
    if not isinstance(at, str):
        return at
    parts = urlsplit(at)
    if parts.scheme in ("s3", "s3a") and parts.netloc and not parts.query:
        return BucketStorage(parts.netloc, parts.path.strip("/"), config.object_store_options())
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return FolderStorage(unquote(parts.path))
    if not parts.scheme and at:
        return FolderStorage(str(Path(at).absolute()))
    msg = (
        f"a storage location must be a path, file:///path or s3://bucket/prefix, not "
        f"{redact_url(at)!r:.120}"
    )
    raise InvalidArgument(msg, details={"argument": "at"})


class FolderStorage(msgspec.Struct, frozen=True):
    """Storage in a folder that every Spark worker can reach."""

    path: str

    def __str__(self) -> str:
        return self.path

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Store a small object unless its name exists.

        A hard link is created atomically, and fails if the name exists.
        """
        target = self._resolve(name)
        with _translate_errors(name), self._open_partial(target) as (part, sink):
            sink.write(data)
            _sync_file(sink)
            try:
                target.hardlink_to(part)
            except FileExistsError:
                return False
            _sync_folder(target.parent)
        return True

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        with _translate_errors(name):
            return self._resolve(name).read_bytes()

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        with _translate_errors(name):
            return self._resolve(name).stat().st_size

    def version(self, name: str) -> tuple[int, ...]:
        """Return a tuple that changes whenever the file is replaced or written to."""
        with _translate_errors(name):
            stat = self._resolve(name).stat()
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    def list_names(self, folder: str) -> list[str]:
        """Return the names of files in a folder, sorted and including the folder."""
        path = self._resolve(folder)
        with _translate_errors(folder):
            if not path.is_dir():
                return []
            return sorted(f"{folder}/{entry.name}" for entry in path.iterdir())

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with _translate_errors(name):
            self._resolve(name).unlink(missing_ok=True)

    @contextmanager
    def open_writer(self, name: str) -> Iterator[IO[bytes]]:
        """Open a new file under a temporary name, and rename it when it is safely on disk."""
        target = self._resolve(name)
        with _translate_errors(name), self._open_partial(target) as (part, sink):
            yield sink
            # In this order, no crash leaves the final name with incomplete contents.
            _sync_file(sink)
            part.replace(target)
            _sync_folder(target.parent)

    @contextmanager
    def open_reader(self, name: str) -> Iterator[Any]:
        """Memory-map a file for reading."""
        with _translate_errors(name), pa.memory_map(str(self._resolve(name))) as source:
            yield source

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """Provide the path of the file itself."""
        with _translate_errors(name):
            yield self._resolve(name)

    def _resolve(self, name: str) -> Path:
        return Path(self.path, name)

    @contextmanager
    def _open_partial(self, target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}{PARTIAL_SUFFIX}")
        try:
            with part.open("xb") as sink:
                yield part, sink
        finally:
            part.unlink(missing_ok=True)


def _sync_file(sink: IO[bytes]) -> None:
    sink.flush()
    os.fsync(sink.fileno())


def _sync_folder(folder: Path) -> None:
    # A new name survives a crash of the machine only after its folder was synced too.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class BucketStorage(msgspec.Struct, frozen=True):
    """Storage in an S3 bucket, under a prefix."""

    name: str
    prefix: str
    settings: dict[str, str] = {}

    def __str__(self) -> str:
        return f"s3://{self.name}/{self.prefix}"

    def __repr__(self) -> str:
        return str(self)  # never show the settings, which contain the access keys

    @property
    def _store(self) -> S3Store:
        with _translate_errors(str(self)):
            return _open_client(self.name, self.prefix, tuple(sorted(self.settings.items())))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Store a small object unless its name exists, by a conditional put."""
        with _translate_errors(name):
            try:
                # In one request, because the condition must hold for the whole object.
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
        return True

    def read(self, name: str) -> bytes:
        """Return the bytes of a small object."""
        with _translate_errors(name):
            return bytes(obstore.get(self._store, name).bytes())

    def size(self, name: str) -> int:
        """Return the size of an object in bytes."""
        with _translate_errors(name):
            return int(obstore.head(self._store, name)["size"])

    def list_names(self, folder: str) -> list[str]:
        """Return the names of objects in a folder, sorted and including the folder."""
        with _translate_errors(folder):
            pages = obstore.list(self._store, folder)
            return sorted(entry["path"] for page in pages for entry in page)

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""
        with _translate_errors(name):
            obstore.delete(self._store, name)

    @contextmanager
    def open_writer(self, name: str) -> Iterator[IO[bytes]]:
        """Upload an object in parts; closing the upload makes it visible."""
        with _translate_errors(name):
            sink: Any = obstore.open_writer(
                self._store, name, buffer_size=_CHUNK_BYTES, max_concurrency=_CONCURRENT_UPLOADS
            )
            yield sink
            # Not in a finally clause: an upload that failed is never closed, and never visible.
            sink.close()

    @contextmanager
    def open_reader(self, name: str) -> Iterator[Any]:
        """Open an object for reading; each read requests a range of bytes."""
        with _translate_errors(name):
            yield _RangeReader(obstore.open_reader(self._store, name))

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """Download the object to a temporary file."""
        with _translate_errors(name), tempfile.NamedTemporaryFile(prefix="seriatim-") as copy:
            for chunk in obstore.get(self._store, name).stream(min_chunk_size=_CHUNK_BYTES):
                copy.write(chunk)
            copy.flush()
            yield Path(copy.name)


@lru_cache(maxsize=16)  # a client keeps its connections open between calls
def _open_client(bucket: str, prefix: str, settings: tuple[tuple[str, str], ...]) -> S3Store:
    options: Any = dict(settings)
    return S3Store(bucket, prefix=prefix or None, config=options, retry_config=_RETRY_CONFIG)


class _RangeReader:
    """Adapts an object reader to the file interface that pyarrow expects."""

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
        """Do nothing: the reader keeps nothing open."""


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Translate errors of the file system and the S3 client, naming the object.

    Raises:
        NotFound: The object does not exist.
        BackendFailure: The storage failed.
    """
    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        msg = f"the storage has no object {name}"
        raise NotFound(msg, details={"name": name}) from error
    except (BaseError, OSError) as error:
        # The client appends its Rust debug output to the message; the part before it suffices.
        reason = " ".join(str(error).partition("Debug source")[0].split())[:400]
        msg = f"the storage failed at {name}: {reason or type(error).__name__}"
        raise BackendFailure(msg, details={"name": name}) from error
