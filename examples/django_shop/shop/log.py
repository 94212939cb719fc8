"""The log of this process."""

import functools

from django.conf import settings

import seriatim
from seriatim import Log


@functools.cache
def get_log() -> Log:
    """Return the log, opened at the first call; all threads of the process share it.

    A log that was opened before a fork also works in the child, which makes its own connections.
    """
    return seriatim.open(settings.SHOP_LOG)
