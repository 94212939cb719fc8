"""Content codings: gzip request bodies, within bounds, and gzip responses on request."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

from seriatim.api.http import JSON, HttpRequest, StatusError, too_large_error
from seriatim.core.errors import InvalidArgument
from seriatim.core.limits import limit_error

COMPRESS_MIN_BYTES = 1024  # a smaller response fits into one packet anyway
_LEVEL = 4
_GZIP = 31  # zlib's `wbits` for a gzip header and trailer
_STEP = 256 * 1024
_FEED = 16 * 1024  # input per call: zlib copies the input that is left after a member
MEMBERS_MAX = 1024  # of one body: even an empty member takes time
_UNSUPPORTED_MEDIA_TYPE = 415
_NOT_IMPLEMENTED = 501
_TEXTS = (JSON, b"application/problem+json", b"text/plain", b"application/openmetrics-text")


def _check_transfer_coding(request: HttpRequest) -> None:
    """Refuse transfer codings other than chunked."""
    given = request.headers.get(b"transfer-encoding", b"").strip().lower()
    if given in (b"", b"chunked"):
        return
    name = given.decode("latin-1")[:40]
    error = InvalidArgument(
        f"the transfer encoding {name!r} is not supported: send content-encoding: gzip, or none",
        details={"argument": "transfer-encoding"},
    )
    raise StatusError(error, _NOT_IMPLEMENTED)


def is_gzipped(request: HttpRequest) -> bool:
    """Return whether the body of a request is gzip.

    Raises:
        StatusError: The body has another coding: 415, or 501 for a transfer coding.
    """
    _check_transfer_coding(request)
    given = request.headers.get(b"content-encoding", b"").strip().lower()
    if given in (b"", b"identity"):
        return False
    if given in (b"gzip", b"x-gzip"):
        return True
    name = given.decode("latin-1")[:40]
    error = InvalidArgument(
        f"the content encoding {name!r} is not supported: send gzip, or none",
        details={"argument": "content-encoding"},
    )
    raise StatusError(error, _UNSUPPORTED_MEDIA_TYPE, ((b"accept-encoding", b"gzip"),))


def decompress(body: bytes, max_bytes: int) -> bytes:
    """Decompress a gzip body of one or more members.

    Raises:
        LimitExceeded: It is larger than `max_bytes`, or has too many members.
        InvalidArgument: It is not valid gzip.
    """
    parts: list[bytes] = []
    size, members, reader = 0, 0, _GzipReader(body)
    try:
        while reader.has_input:  # gzip may have several members
            members += 1
            if members > MEMBERS_MAX:
                raise limit_error("gzip_members", MEMBERS_MAX, members)
            for part in reader.member():
                size += len(part)
                if size > max_bytes:
                    raise too_large_error(size, max_bytes)
                parts.append(part)
    except zlib.error:
        raise _invalid_gzip_error() from None
    return b"".join(parts)


class _GzipReader:
    """A gzip body, decompressed in small steps.

    zlib copies unread input at the end of every member; small steps keep that linear in the size
    of the body, also for a body of many empty members.
    """

    def __init__(self, body: bytes) -> None:
        self._body = memoryview(body)
        self._at = 0

    @property
    def has_input(self) -> bool:
        """Whether input remains."""
        return self._at < len(self._body)

    def member(self) -> Iterator[bytes]:
        """Yield the decompressed next member in parts."""
        member = zlib.decompressobj(_GZIP)
        while True:
            fed = self._body[self._at : self._at + _FEED]
            part = member.decompress(fed, _STEP)
            # After the last member, both attributes may hold the remaining input.
            unread = member.unused_data if member.eof else member.unconsumed_tail
            self._at += len(fed) - len(unread)
            yield part
            if member.eof:
                return
            if not part and not fed:
                raise _invalid_gzip_error()


def _invalid_gzip_error() -> InvalidArgument:
    msg = "the body is not valid gzip, as its content-encoding states"
    return InvalidArgument(msg, details={"argument": "content-encoding"})


def accepts_gzip(accepted: bytes) -> bool:
    """Return whether the header Accept-Encoding accepts gzip."""
    qualities: dict[bytes, bool] = {}
    for one in accepted.lower().split(b","):
        name, _, quality = one.partition(b";")
        _, _, weight = quality.partition(b"=")
        qualities[name.strip()] = not weight or weight.strip().strip(b"0.") != b""
    found = [qualities[name] for name in (b"gzip", b"x-gzip", b"*") if name in qualities]
    return bool(found) and found[0]


def is_compressible(content_type: bytes, size: int) -> bool:
    """Return whether compression makes a response smaller."""
    return size >= COMPRESS_MIN_BYTES and content_type.split(b";", 1)[0].strip() in _TEXTS


def compress(body: bytes) -> bytes:
    """Compress a response with gzip."""
    return gzip.compress(body, _LEVEL, mtime=0)
