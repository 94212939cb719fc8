"""Sessions of the console: signed cookies, and tokens against forged requests (N2)."""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

import msgspec

from seriatim.core.errors import Unauthorized

COOKIE = "seriatim_session"
SECURE_COOKIE = "__Host-seriatim_session"  # browsers accept it only over TLS, for this host
SESSION_S = 12 * 3600
ANONYMOUS = "anonymous"  # in place of a token id: the service requires no tokens
_COOKIE_MAX = 1024  # ours are shorter; a longer one is refused before it is hashed


def make_local_id(code: str) -> str:
    """Return the token id of sessions that were opened by a one-time link.

    It depends on the code: a session is valid only in the process that issued the link, and not in
    a later one that shares the access store and may have other rights.
    """
    return "local:" + sha256(code.encode()).hexdigest()[:32]


class Session(msgspec.Struct, frozen=True):
    """The content of a session cookie: the token that opened the session, and its expiry."""

    token_id: str
    expires: int  # seconds since 1970
    nonce: str  # two sessions of one token have different request tokens


class SessionSigner:
    """Issue and check session cookies.

    Cookies are signed, not stored: every process that shares the access store accepts them. The
    token is looked up at each request, so a session ends with its token.

    Args:
        key: The secret of the access store, shared by all processes of the service.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, token_id: str, now: float, lifetime_s: float = SESSION_S) -> str:
        """Return the cookie of a new session."""
        session = Session(token_id, int(now + lifetime_s), secrets.token_urlsafe(12))
        content = urlsafe_b64encode(msgspec.json.encode(session)).rstrip(b"=").decode()
        return f"{content}.{self._sign('session', content)}"

    def open(self, cookie: str, now: float) -> Session:
        """Return the session of a cookie.

        Raises:
            Unauthorized: The cookie is forged, malformed or expired.
        """
        content, _, signature = cookie.partition(".")
        # Compared as bytes, in constant time: compare_digest refuses text that is not ASCII.
        is_genuine = len(cookie) <= _COOKIE_MAX and hmac.compare_digest(
            signature.encode(), self._sign("session", content).encode()
        )
        if not is_genuine:
            raise Unauthorized("this session is not valid: sign in again")
        # Only decoded after the signature was verified, so the content is our own.
        padded = content + "=" * (-len(content) % 4)
        session = msgspec.json.decode(urlsafe_b64decode(padded), type=Session)
        if session.expires <= now:
            raise Unauthorized("this session has expired: sign in again")
        return session

    def request_token(self, cookie: str) -> str:
        """Return the value that every form of a session must send back."""
        return self._sign("form", cookie)

    def is_request_token(self, token: str, cookie: str) -> bool:
        """Return whether a form was rendered for this session."""
        return hmac.compare_digest(token.encode(), self.request_token(cookie).encode())

    def _sign(self, purpose: str, text: str) -> str:
        # With the purpose, a request token never passes as the signature of a cookie.
        digest = hmac.new(self._key, f"{purpose}\0{text}".encode(), sha256).digest()
        return urlsafe_b64encode(digest).rstrip(b"=").decode()
