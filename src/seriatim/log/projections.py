"""Reading one's own writes from read models: wait for a projection, or demand that it is fresh."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from seriatim.core.errors import (
    Conflict,
    InvalidArgument,
    LogIdentityChanged,
    NotFound,
    ProjectionOutOfDate,
    ProjectionTimeout,
    SeriatimError,
)
from seriatim.core.event import LogIdentity
from seriatim.core.tenants import EVERY_TENANT
from seriatim.log.arguments import bad, check_name, check_position, check_timeout
from seriatim.log.cursors import problem_with
from seriatim.log.in_thread import InThread
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import FailureRecord, Progress, Standing

if TYPE_CHECKING:
    from seriatim.log.base import BaseLog

_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.1
_GROWTH = 1.5


class Places:
    """The read models that a log has looked into, one connection to each.

    `find` opens the one at a URL, None while there is none; `beside` names a tenant's own.
    """

    def __init__(
        self, find: Callable[[str], ReadModel | None], beside: Callable[[str], str] | None
    ) -> None:
        self._find = find
        self._beside = beside
        # By process: what a fork inherits is not ours to use, nor to close.
        self._open: dict[tuple[int, str], ReadModel] = {}

    def beside(self, tenant_id: str) -> str:
        """Return where a tenant's read models are unless told otherwise."""
        if self._beside is None:
            msg = (
                "this log has no place for read models beside it: a log in memory has none, "
                "name one with log.projections_at(url)"
            )
            raise InvalidArgument(msg, details={"argument": "target"})
        return self._beside(tenant_id)

    def at(self, url: str) -> ReadModel | None:
        """Return the read model at a URL, None while there is none."""
        place = (os.getpid(), url)
        if place in self._open:
            return self._open[place]
        made = self._find(url)
        if made is None:
            return None
        found = self._open.setdefault(place, made)
        if found is not made:  # another thread was quicker
            made.close()
        return found

    def close(self) -> None:
        """Let go of them all."""
        for place in [place for place in self._open if place[0] == os.getpid()]:
            self._open.pop(place).close()


class Projections:
    """The projections of a log, as those see them who read their tables."""

    def __init__(self, log: BaseLog, target: str) -> None:
        self._log = log
        self._target = target

    def wait_for(self, name: str, position: int, timeout_s: float = 10.0) -> Progress:
        """Wait until a projection has passed a position of the log, and return how far it is."""
        until = time.monotonic() + check_timeout(timeout_s, "timeout_s")
        self.check(position)
        for pause in pauses():
            found = self.look(name)
            if found.position >= position:
                return found
            left = until - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(pause, left))
        raise too_late(found, position, timeout_s)

    def demand(self, name: str, position: int) -> Progress:
        """Return how far a projection is, or raise at once unless it has passed a position."""
        self.check(position)
        found = self.look(name)
        if found.position < position:
            msg = f"projection {name} has reached {found.position}, not {position}"
            raise _behind(ProjectionOutOfDate, msg, found, position)
        return found

    def status(self) -> list[Standing]:
        """Return where every projection stands."""
        model = self._log.places.at(self._target)
        if model is None:
            return []
        head = self._log.head()
        return [
            Standing(
                name=one.name,
                position=one.position,
                lag=max(0, head - one.position),
                updated_at=one.updated_at,
                status=one.status,
                running=bool(one.owner),
                failures=len(model.failures(one.name)),
                held_until=one.held_until,
            )
            for one in model.every()
            if not one.shadow
        ]

    def failures(self, name: str) -> list[FailureRecord]:
        """Return what a projection could not take, and what became of it."""
        self.look(name)
        return self._model(name).failures(name)

    def check(self, position: object) -> None:
        """Refuse a position that the log has not reached: nothing will ever pass it by itself."""
        if check_position("position", position) > self._log.head():
            raise bad("position", "must not lie beyond the head")

    def look(self, name: str) -> Progress:
        """Return how far a projection of this log has come."""
        found = self._model(check_name("name", name)).progress(name)
        if found is None:
            raise _unknown(name)
        if found.tenant_id not in (self._log.tenant_id, EVERY_TENANT):
            msg = f"projection {name} is of another tenant"
            raise Conflict(msg, details={"projection": name, "tenant_id": self._log.tenant_id})
        seen = LogIdentity(found.log_id, found.epoch)
        problem = problem_with(self._log.store, seen, found.position, found.tip)
        if problem is not None:
            msg = (
                f"projection {name} {problem}: the log was restored or replaced; "
                f"seriatim project rebuild {name} makes the read model of this log"
            )
            raise LogIdentityChanged(msg, details={"projection": name})
        return found

    def _model(self, name: str) -> ReadModel:
        model = self._log.places.at(self._target)
        if model is None:
            raise _unknown(name)
        return model


class AsyncProjections:
    """The same, awaited: only looks take a thread, pauses do not."""

    def __init__(self, projections: Projections, in_thread: InThread = asyncio.to_thread) -> None:
        self._projections = projections
        self._in_thread = in_thread

    async def wait_for(self, name: str, position: int, timeout_s: float = 10.0) -> Progress:
        """Wait until a projection has passed a position; see `Projections.wait_for`."""
        until = time.monotonic() + check_timeout(timeout_s, "timeout_s")
        await self._in_thread(self._projections.check, position)
        for pause in pauses():
            found = await self._in_thread(self._projections.look, name)
            if found.position >= position:
                return found
            left = until - time.monotonic()
            if left <= 0:
                break
            await asyncio.sleep(min(pause, left))
        raise too_late(found, position, timeout_s)

    async def demand(self, name: str, position: int) -> Progress:
        """Raise unless a projection is fresh; see `Projections.demand`."""
        return await self._in_thread(self._projections.demand, name, position)

    async def status(self) -> list[Standing]:
        """Return where every projection stands."""
        return await self._in_thread(self._projections.status)

    async def failures(self, name: str) -> list[FailureRecord]:
        """Return what a projection could not take."""
        return await self._in_thread(self._projections.failures, name)


def pauses() -> Iterator[float]:
    """Yield small growing pauses, for ever."""
    pause = _FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(pause * _GROWTH, _LONGEST_PAUSE_S)


def too_late(found: Progress, position: int, seconds: float) -> SeriatimError:
    """Make the error for a wait that was in vain."""
    msg = (
        f"projection {found.name} has reached {found.position}, not {position}, within "
        f"{seconds:g} s: it is {found.status} and {'runs' if found.owner else 'does not run'}"
    )
    return _behind(ProjectionTimeout, msg, found, position)


def _behind(kind: type[SeriatimError], msg: str, found: Progress, position: int) -> SeriatimError:
    details = {
        "projection": found.name,
        "position": position,
        "reached": found.position,
        "status": found.status,
    }
    return kind(msg, details=details)


def _unknown(name: str) -> NotFound:
    msg = f"there is no projection {name!r:.80} in this read model: seriatim project run"
    return NotFound(msg, details={"projection": name})
