"""Operations on projections: pause, resume, and retry or skip failures."""

from __future__ import annotations

from seriatim.core.errors import Conflict, NotFound
from seriatim.store.readmodel.model import ReadModel, no_failure_error
from seriatim.store.readmodel.port import FailureRecord, Progress


def get_progress(model: ReadModel, name: str) -> Progress:
    """Return the progress of a projection.

    Raises:
        NotFound: The read model has no such projection.

    """
    progress = model.progress(name)
    if progress is None:
        msg = f"there is no projection {name!r:.80} in this read model: run seriatim project run"
        raise NotFound(msg, details={"projection": name})
    return progress


def pause(model: ReadModel, name: str) -> None:
    """Pause a projection until it is resumed."""
    if get_progress(model, name).status == "ready":
        model.set_status(name, "paused")


def resume(model: ReadModel, name: str) -> None:
    """Resume a paused projection."""
    if get_progress(model, name).status == "paused":
        model.set_status(name, "ready")


def retry(
    model: ReadModel, name: str, position: int | None = None, tenant_id: str | None = None
) -> int:
    """Request a retry of failures; the current run or the next one performs it.

    Args:
        model: The read model.
        name: The projection.
        position: The position of one failure; None for all.
        tenant_id: Only failures of this tenant's events; None for all.

    Returns:
        The number of failures to be retried.

    Raises:
        NotFound: There is no such projection or failure, or the failure was skipped.
        Conflict: The key of the failed event is unknown; a rebuild is required.

    """
    to_retry = find_retryable(model, name, position, tenant_id)
    if position is not None and not to_retry:
        msg = f"projection {name} skips position {position}: there is no failure to retry"
        raise NotFound(msg, details={"projection": name, "position": position})
    # All are checked before one is changed, as each change is a transaction of its own.
    for record in to_retry:
        if record.status != "stopped" and not record.failure.key:
            failed = record.failure.position
            msg = (
                f"the key of the event at position {failed} is unknown, so it cannot be folded "
                f"again: run seriatim project rebuild {name}"
            )
            raise Conflict(msg, details={"projection": name, "position": failed})
    for record in to_retry:
        if record.status == "stopped":
            model.forget_failure(name, record.failure.position)
            model.set_status(name, "ready")
        else:
            model.set_failure_status(name, record.failure.position, record.status, again=True)
    return len(to_retry)


def skip(model: ReadModel, name: str, position: int, tenant_id: str | None = None) -> None:
    """Skip the event at a position, now and in every rebuild; its key continues after it.

    Args:
        model: The read model.
        name: The projection.
        position: The position of the failed event.
        tenant_id: Only if the event belongs to this tenant; None for any.

    Raises:
        NotFound: There is no such projection or failure.

    """
    for record in find_failures(model, name, position, tenant_id):
        model.set_failure_status(
            name, position, "passed", again=record.status != "stopped" and bool(record.failure.key)
        )
        if record.status == "stopped":
            model.set_status(name, "ready")


def find_retryable(
    model: ReadModel, name: str, position: int | None = None, tenant_id: str | None = None
) -> list[FailureRecord]:
    """Return the failures that `retry` affects: those that no operator has skipped."""
    records = find_failures(model, name, position, tenant_id)
    return [record for record in records if record.status != "passed"]


def find_failures(
    model: ReadModel, name: str, position: int | None = None, tenant_id: str | None = None
) -> list[FailureRecord]:
    """Return the failures of a projection, or the one at a position.

    Raises:
        NotFound: There is no such projection, or no failure at the position.

    """
    get_progress(model, name)
    records = [
        record
        for record in model.failures(name)
        if position in (None, record.failure.position)
        and tenant_id in (None, record.failure.tenant_id)
    ]
    if position is not None and not records:
        raise no_failure_error(name, position)
    return records
