"""Appends on their way to a service over a socket that an event loop watches by itself."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from email.message import Message
from http.client import HTTPConnection

from seriatim.client.answers import Answer, may_help, refusal, retry_after
from seriatim.client.appends import again, answers_of
from seriatim.core.errors import SeriatimError
from seriatim.core.request import Request
from seriatim.store.port import Deferred, Outcome, unanswered

_CHUNK = 256 * 1024
_END = b"\r\n\r\n"
_OK = 200
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class HttpExchange:
    """One group under way on a connection that is its own until it is answered.

    What another try may help is deferred to the threads, which try again as they always do.
    """

    def __init__(  # noqa: PLR0913 - a request, and what is done with its answer
        self,
        connection: HTTPConnection,
        group: Sequence[Request],
        request: bytes,
        seconds: float,
        give_back: Callable[[HTTPConnection, Answer], None],
        learn: Callable[[Iterable[object]], None],
    ) -> None:
        self._connection = connection
        self._socket = connection.sock
        self._number = self._socket.fileno()  # kept: a closed socket has none
        self._group = group
        self._size = len(request)
        self._left = memoryview(request)
        self._give_back = give_back
        self._learn = learn
        self._got = bytearray()
        self._head_ends = -1
        self._length = 0
        self._broken = False
        self._socket.setblocking(False)
        # A service that is gone without a word is noticed by nothing else.
        self._alarm = asyncio.get_running_loop().call_later(seconds, self._hang_up)

    def _hang_up(self) -> None:
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def fileno(self) -> int:
        """Return the socket to wait for."""
        return self._number

    def flushed(self) -> bool:
        """Send what is still to be sent; True when all of it is."""
        try:
            while self._left:
                self._left = self._left[self._socket.send(self._left) :]
        except _NOT_NOW:
            return False
        except OSError:
            self._broken = True  # which the reading side learns, too
        return True

    def answered(self) -> bool:
        """Take in what has come; True when the answer is whole, or will never be."""
        try:
            while not self._whole():
                piece = self._socket.recv(_CHUNK)
                if not piece:
                    self._broken = True
                    return True
                self._got += piece
        except _NOT_NOW:
            return self._broken
        except OSError:
            self._broken = True
        return True

    def _whole(self) -> bool:
        if self._head_ends < 0:
            self._head_ends = self._got.find(_END)
            if self._head_ends < 0:
                return False
            length = _header(bytes(self._got[: self._head_ends]), b"content-length")
            self._length = int(length) if length.isdigit() else -1
        if self._length < 0:  # in pieces, say: not what this service has answered so far
            self._broken = True
            return True
        return len(self._got) >= self._ends()

    def _ends(self) -> int:
        return self._head_ends + len(_END) + self._length

    def outcomes(self) -> list[Outcome | Deferred]:
        """Return each append's own answer; what may succeed when it is sent again is deferred."""
        self._alarm.cancel()
        if self._broken:
            self._connection.close()
            sent = len(self._left) < self._size
            raise Deferred([again(one, doubt=sent) for one in self._group])
        answer = self._answer()
        if len(self._got) == self._ends():
            self._give_back(self._connection, answer)
        else:
            self._connection.close()  # it says more than it was asked
        if answer.status == _OK:
            found = answers_of(self._group, answer.body)
            self._learn(found)
            return [_or_again(*pair) for pair in zip(self._group, found, strict=True)]
        failure = refusal(answer, acts=True)
        if not may_help(failure):
            return [failure] * len(self._group)
        doubt, wait_s = bool(failure.details.get("ambiguous")), retry_after(answer, failure)
        raise Deferred([again(one, doubt=doubt, wait_s=wait_s) for one in self._group])

    def _answer(self) -> Answer:
        head = bytes(self._got[: self._head_ends])
        headers = Message()
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            headers[name.decode("latin-1")] = value.strip().decode("latin-1")
        body = self._got[self._head_ends + len(_END) : self._ends()]
        return Answer(int(head.split(b" ", 2)[1]), headers, bytes(body))

    def wait(self, timeout: float) -> list[Outcome | Deferred]:
        """Wait for the answers here; when time is up the connection is given up with them."""
        until = time.monotonic() + timeout
        self._alarm.cancel()
        while not (self.flushed() and self.answered()):
            left = until - time.monotonic()
            if left <= 0:
                self._connection.close()
                raise unanswered()
            time.sleep(min(left, 0.001))
        return self.outcomes()

    def abandon(self) -> None:
        """Let go of it: nobody will ask for its answers."""
        self._alarm.cancel()
        self._connection.close()


def _or_again(request: Request, outcome: Outcome) -> Outcome | Deferred:
    if not may_help(outcome) or not isinstance(outcome, SeriatimError):
        return outcome
    doubt = bool(outcome.details.get("ambiguous"))
    return Deferred([again(request, doubt=doubt, wait_s=outcome.retry_after_s)])


def _header(head: bytes, name: bytes) -> bytes:
    _, found, rest = head.lower().partition(b"\r\n" + name + b":")
    return rest.split(b"\r\n", 1)[0].strip() if found else b""
