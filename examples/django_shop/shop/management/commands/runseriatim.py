"""`manage.py runseriatim`: keep the read models of the shop up to date."""

import signal
import sys
from typing import Any

from django.core.management.base import BaseCommand

from shop.log import get_log
from shop.read_models import orders


class Command(BaseCommand):
    """Follow the log in this process, until SIGTERM or Ctrl-C."""

    help = "Keep the read models of the shop up to date, until SIGTERM or Ctrl-C."

    def handle(self, *_: Any, **__: Any) -> None:
        """Run the follower; several processes may, and one of them works."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, leave)
        with get_log() as log, log.projections.follow(orders) as follower:
            self.stdout.write("following the log")
            follower.wait()


def leave(*_: object) -> None:
    """Leave the `with` blocks of the command, which stop the follower and close the log."""
    sys.exit(0)
