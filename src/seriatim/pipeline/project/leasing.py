"""The lease of a runner, kept by a thread of its own while batches take their time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from seriatim.core.errors import SeriatimError
from seriatim.opening import open_read_model


@contextmanager
def kept_lease(
    target: str, name: str, token: int, seconds: float, *, shadow: bool = False
) -> Iterator[None]:
    """Renew a lease while the block runs, and give it up after.

    Whether it still holds is for the commit to say, which compares the token.
    """
    done = threading.Event()

    def keep() -> None:
        model = open_read_model(target)  # its own connection: a commit may hold the other one
        try:
            ended = False
            while not ended:
                ended = done.wait(seconds / 4)
                with suppress(SeriatimError):  # the database is away: try again
                    model.renew(name, token, 0.0 if ended else seconds, shadow=shadow)
        finally:
            model.close()

    keeper = threading.Thread(target=keep, name=f"lease of {name}", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        done.set()
        keeper.join()
