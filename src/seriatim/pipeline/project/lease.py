"""The lease of a projection's runner, renewed in a thread while batches run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from seriatim.core.errors import SeriatimError
from seriatim.factory import open_read_model


@contextmanager
def hold_lease(
    target: str, name: str, token: int, seconds: float, *, shadow: bool = False
) -> Iterator[None]:
    """Renew a lease while the block runs, and release it afterwards.

    A lost lease is not reported here: each commit compares the token and refuses an old one.

    Args:
        target: The URL of the read model.
        name: The name of the projection.
        token: The token of the claimed lease.
        seconds: The duration of the lease.
        shadow: Whether the lease is that of the shadow tables.

    """
    done = threading.Event()

    def renew() -> None:
        # A separate connection: a commit may hold the other one for longer than the lease.
        model = open_read_model(target)
        try:
            ended = False
            while not ended:
                ended = done.wait(seconds / 4)
                with suppress(SeriatimError):  # the database is unavailable: try again
                    # A duration of 0 releases the lease.
                    model.renew(name, token, 0.0 if ended else seconds, shadow=shadow)
        finally:
            model.close()

    keeper = threading.Thread(target=renew, name=f"lease of {name}", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        done.set()
        keeper.join()
