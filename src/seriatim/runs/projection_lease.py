"""The lease of a projection's runner, renewed in a thread while batches run."""

from __future__ import annotations

import logging
from contextlib import suppress

from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import SeriatimError
from seriatim.store.lease_keeper import LeaseKeeper
from seriatim.store.readmodel.model import ReadModel

logger = logging.getLogger("seriatim")


def hold_lease(
    model: ReadModel, name: str, token: int, seconds: float, *, shadow: bool = False
) -> LeaseKeeper:
    """Return a keeper that renews a lease while a block runs, and releases it afterwards.

    Callers need not check the keeper for a lost lease: each commit compares the token and refuses
    an old one.

    Args:
        model: The read model, of which a second connection is opened.
        name: The name of the projection.
        token: The token of the claimed lease.
        seconds: The duration of the lease.
        shadow: Whether the lease is that of the shadow tables.

    """
    connections: list[ReadModel] = []

    def renew(duration_s: float) -> bool:
        if not connections:
            # A separate connection: a commit may hold the other one for longer than the lease.
            connections.append(model.clone())
        return connections[0].renew(name, token, duration_s, shadow=shadow)

    def release() -> None:
        with suppress(SeriatimError):  # the database is unavailable: the lease expires
            renew(0.0)
        for connection in connections:
            connection.close()

    def log_failure(error: Exception) -> None:
        logger.debug("renewing the lease of projection %s failed: %s", name, summarize_error(error))

    return LeaseKeeper(
        lambda: renew(seconds),
        seconds / 4,  # so that two failed renewals do not lose the lease
        name=f"the lease of projection {name}",
        on_error=log_failure,
        on_end=release,
    )
