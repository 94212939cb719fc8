"""A follower in each gunicorn worker, for a deployment without `manage.py runseriatim`.

Start it with `gunicorn --config gunicorn_conf.py shop.wsgi`.
"""

from typing import Any

from shop.log import get_log
from shop.read_models import orders

workers = 2
preload_app = True  # safe: nothing is followed before the fork


def post_worker_init(worker: Any) -> None:
    """Start the follower in the worker: the threads of the parent do not exist there."""
    worker.follower = get_log().projections.follow(orders)


def worker_exit(_server: Any, worker: Any) -> None:
    """Let the follower finish its batch, so that another worker takes over at once."""
    worker.follower.stop(timeout_s=20)
    get_log().close()
