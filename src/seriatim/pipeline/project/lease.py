"""The lease of a projection's runner, renewed in a thread while batches run."""

from __future__ import annotations

import logging
from contextlib import suppress

from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import SeriatimError
from seriatim.factory import open_read_model
from seriatim.store.lease_keeper import LeaseKeeper
from seriatim.store.readmodel.model import ReadModel

logger = logging.getLogger("seriatim")


def hold_lease(
    target: str, name: str, token: int, seconds: float, *, shadow: bool = False
) -> LeaseKeeper:
    """Return a keeper that renews a lease while a block runs, and releases it afterwards.

    Nobody needs to ask it for a lost lease: each commit compares the token and refuses an old one.

    Args:
        target: The URL of the read model.
        name: The name of the projection.
        token: The token of the claimed lease.
        seconds: The duration of the lease.
        shadow: Whether the lease is that of the shadow tables.

    """
    own: list[ReadModel] = []

    def extend(duration_s: float) -> bool:
        if not own:
            # A separate connection: a commit may hold the other one for longer than the lease.
            own.append(open_read_model(target))
        return own[0].renew(name, token, duration_s, shadow=shadow)

    def end() -> None:
        with suppress(SeriatimError):  # the database is unavailable: the lease expires
            extend(0.0)
        for one in own:
            one.close()

    def note(error: Exception) -> None:
        logger.debug("renewing the lease of projection %s failed: %s", name, summarize_error(error))

    return LeaseKeeper(
        lambda: extend(seconds),
        seconds / 4,  # so that two failed renewals do not lose the lease
        name=f"the lease of projection {name}",
        on_error=note,
        on_end=end,
    )
