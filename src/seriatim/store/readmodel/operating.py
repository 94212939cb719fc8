"""What an operator does with a projection: pause it, and say what becomes of its failures."""

from __future__ import annotations

from seriatim.core.errors import Conflict, NotFound
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import FailureRecord, Progress


def known(model: ReadModel, name: str) -> Progress:
    """Return how far a projection has come, or say that there is none."""
    found = model.progress(name)
    if found is None:
        msg = f"there is no projection {name!r:.80} in this read model: seriatim project run"
        raise NotFound(msg, details={"projection": name})
    return found


def pause(model: ReadModel, name: str) -> None:
    """Hold a projection where it is until it is resumed."""
    if known(model, name).status == "ready":
        model.set_status(name, "paused")


def resume(model: ReadModel, name: str) -> None:
    """Let a paused projection go on."""
    if known(model, name).status == "paused":
        model.set_status(name, "ready")


def retry(model: ReadModel, name: str, position: int | None = None) -> int:
    """Ask that failures be tried again, all or the one at a position; tell how many.

    The next run does it, or the runner that is at work.
    """
    wanted = [one for one in failures(model, name, position) if one.status != "passed"]
    if position is not None and not wanted:
        msg = f"projection {name} passes over position {position}: there is no failure to retry"
        raise NotFound(msg, details={"projection": name, "position": position})
    for one in wanted:
        if one.status != "stopped" and not one.failure.key:
            msg = (
                f"the event at position {one.failure.position} had no key that could be found, so "
                f"no key can be folded anew: seriatim project rebuild {name}"
            )
            raise Conflict(msg, details={"projection": name, "position": one.failure.position})
    for one in wanted:
        if one.status == "stopped":
            model.forget_failure(name, one.failure.position)
            model.set_status(name, "ready")
        else:
            model.mark(name, one.failure.position, one.status, again=True)
    return len(wanted)


def skip(model: ReadModel, name: str, position: int) -> None:
    """Pass over the event at a position, now and in every rebuild; its key goes on after it."""
    for one in failures(model, name, position):
        model.mark(
            name, position, "passed", again=one.status != "stopped" and bool(one.failure.key)
        )
        if one.status == "stopped":
            model.set_status(name, "ready")


def failures(model: ReadModel, name: str, position: int | None = None) -> list[FailureRecord]:
    """Return a projection's failures, or the one at a position."""
    known(model, name)
    found = [
        one for one in model.failures(name) if position is None or one.failure.position == position
    ]
    if position is not None and not found:
        msg = f"projection {name} has no failure at position {position}"
        raise NotFound(msg, details={"projection": name, "position": position})
    return found
