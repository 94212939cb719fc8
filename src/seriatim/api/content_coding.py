"""Content codings: gzip bodies of requests, within a bound, and gzip answers for who asks."""

from __future__ import annotations

import gzip
import zlib

from seriatim.api.http import JSON, Request, StatusError, too_large
from seriatim.core.errors import InvalidArgument

COMPRESS_FROM = 1024  # bytes of an answer: a smaller one fits into a packet anyway
_LEVEL = 4
_GZIP = 31  # zlib's number for a gzip header and trailer
_STEP = 256 * 1024
_UNSUPPORTED = 415
_TEXTS = (JSON, b"application/problem+json", b"text/plain", b"application/openmetrics-text")


def is_gzipped(request: Request) -> bool:
    """Tell whether a request's body is gzip; refuse any other coding by its name."""
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


def unzipped(body: bytes, at_most: int) -> bytes:
    """Return a gzip body as it was before; stop as soon as it is over the bound."""
    parts: list[bytes] = []
    size, rest = 0, body
    try:
        while rest:  # gzip may have several members
            member = zlib.decompressobj(_GZIP)
            while not member.eof:
                part = member.decompress(rest, _STEP)
                rest = member.unconsumed_tail
                size += len(part)
                if size > at_most:
                    raise too_large(size, at_most)
                parts.append(part)
                if not part and not rest and not member.eof:
                    raise _broken()
            rest = member.unused_data
    except zlib.error:
        raise _broken() from None
    return b"".join(parts)


def _broken() -> InvalidArgument:
    msg = "the body is no gzip, though its content-encoding says so"
    return InvalidArgument(msg, details={"argument": "content-encoding"})


def wants_gzip(accepted: bytes) -> bool:
    """Tell whether the header Accept-Encoding asks for gzip."""
    for one in accepted.lower().split(b","):
        name, _, quality = one.partition(b";")
        if name.strip() in (b"gzip", b"*"):
            return quality.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


def is_compressible(content_type: bytes, size: int) -> bool:
    """Tell whether an answer gets smaller by compression."""
    return size >= COMPRESS_FROM and content_type.split(b";", 1)[0].strip() in _TEXTS


def zipped(body: bytes) -> bytes:
    """Return an answer as gzip."""
    return gzip.compress(body, _LEVEL, mtime=0)
