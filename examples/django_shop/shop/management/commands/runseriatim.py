"""`manage.py runseriatim`: keep the read models up to date, and run the effects."""

import signal
import sys
from typing import Any

from django.core.management.base import BaseCommand

from shop.handlers import confirm_orders
from shop.log import get_log
from shop.read_models import orders


class Command(BaseCommand):
    """Follow the log in this process, until SIGTERM or Ctrl-C."""

    help = "Keep read models up to date and run effects, until SIGTERM or Ctrl-C."

    def handle(self, *_: Any, **__: Any) -> None:
        """Follow the log; several processes may, and take over from each other."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, leave)
        with (
            get_log() as log,
            log.projections.follow(orders) as projections,
            log.handlers.follow(confirm_orders),
        ):
            self.stdout.write("following the log")
            projections.wait()


def leave(*_: object) -> None:
    """Leave the `with` blocks of the command, which stop the followers and close the log."""
    sys.exit(0)
