"""Content codings: gzip bodies of requests, within a bound, and gzip answers for who asks."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

from seriatim.api.http import JSON, HttpRequest, StatusError, too_large_error
from seriatim.core.errors import InvalidArgument
from seriatim.core.limits import limit_error

COMPRESS_MIN_BYTES = 1024  # bytes of an answer: a smaller one fits into a packet anyway
_LEVEL = 4
_GZIP = 31  # zlib's number for a gzip header and trailer
_STEP = 256 * 1024
_FEED = 16 * 1024  # of a packed body at once: what is left over after a member is copied
MEMBERS_MAX = 1024  # of a packed body; each costs time, however little it holds
_UNSUPPORTED = 415
_NOT_IMPLEMENTED = 501
_TEXTS = (JSON, b"application/problem+json", b"text/plain", b"application/openmetrics-text")


def _check_transfer_coding(request: HttpRequest) -> None:
    """Refuse a body that is packed for the transfer, by the name of its coding."""
    given = request.headers.get(b"transfer-encoding", b"").strip().lower()
    if given in (b"", b"chunked"):
        return
    name = given.decode("latin-1")[:40]
    error = InvalidArgument(
        f"the transfer encoding {name!r} is not understood: send content-encoding: gzip, or none",
        details={"argument": "transfer-encoding"},
    )
    raise StatusError(error, _NOT_IMPLEMENTED)


def is_gzipped(request: HttpRequest) -> bool:
    """Tell whether a request's body is gzip; refuse any other coding by its name."""
    _check_transfer_coding(request)
    given = request.headers.get(b"content-encoding", b"").strip().lower()
    if given in (b"", b"identity"):
        return False
    if given in (b"gzip", b"x-gzip"):
        return True
    name = given.decode("latin-1")[:40]
    error = InvalidArgument(
        f"the content encoding {name!r} is not understood: send gzip, or none",
        details={"argument": "content-encoding"},
    )
    raise StatusError(error, _UNSUPPORTED, ((b"accept-encoding", b"gzip"),))


def decompress(body: bytes, max_bytes: int) -> bytes:
    """Return a gzip body as it was before; stop as soon as it is over the bound."""
    parts: list[bytes] = []
    size, members, packed = 0, 0, _Packed(body)
    try:
        while packed.left:  # gzip may have several members
            members += 1
            if members > MEMBERS_MAX:
                raise limit_error("gzip_members", MEMBERS_MAX, members)
            for part in packed.member():
                size += len(part)
                if size > max_bytes:
                    raise too_large_error(size, max_bytes)
                parts.append(part)
    except zlib.error:
        raise _broken() from None
    return b"".join(parts)


class _Packed:
    """A packed body, read in small pieces: whatever it holds, each byte is copied a few times."""

    def __init__(self, body: bytes) -> None:
        self._body = memoryview(body)
        self._at = 0

    @property
    def left(self) -> bool:
        """Whether there is more to read."""
        return self._at < len(self._body)

    def member(self) -> Iterator[bytes]:
        """Yield the next member unpacked, and stop at its end."""
        member = zlib.decompressobj(_GZIP)
        while True:
            fed = self._body[self._at : self._at + _FEED]
            part = member.decompress(fed, _STEP)
            # At the end both may hold what is left over.
            unread = member.unused_data if member.eof else member.unconsumed_tail
            self._at += len(fed) - len(unread)
            yield part
            if member.eof:
                return
            if not part and not fed:
                raise _broken()


def _broken() -> InvalidArgument:
    msg = "the body is no gzip, though its content-encoding says so"
    return InvalidArgument(msg, details={"argument": "content-encoding"})


def accepts_gzip(accepted: bytes) -> bool:
    """Tell whether the header Accept-Encoding asks for gzip."""
    wanted: dict[bytes, bool] = {}
    for one in accepted.lower().split(b","):
        name, _, quality = one.partition(b";")
        _, _, weight = quality.partition(b"=")
        wanted[name.strip()] = not weight or weight.strip().strip(b"0.") != b""
    found = [wanted[name] for name in (b"gzip", b"x-gzip", b"*") if name in wanted]
    return bool(found) and found[0]


def is_compressible(content_type: bytes, size: int) -> bool:
    """Tell whether an answer gets smaller by compression."""
    return size >= COMPRESS_MIN_BYTES and content_type.split(b";", 1)[0].strip() in _TEXTS


def compress(body: bytes) -> bytes:
    """Return an answer as gzip."""
    return gzip.compress(body, _LEVEL, mtime=0)
