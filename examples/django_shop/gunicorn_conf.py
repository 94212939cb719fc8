"""Followers in each gunicorn worker, for a deployment without `manage.py runseriatim`.

Start it with `gunicorn --config gunicorn_conf.py shop.wsgi`.
"""

from typing import Any

from shop.handlers import confirm_orders
from shop.log import get_log
from shop.read_models import orders

workers = 2
preload_app = True  # safe: nothing is followed before the fork


def post_worker_init(worker: Any) -> None:
    """Start the followers in the worker: the threads of the parent do not exist there."""
    log = get_log()
    worker.followers = [log.projections.follow(orders), log.handlers.follow(confirm_orders)]


def worker_exit(_server: Any, worker: Any) -> None:
    """Finish batches and effects, so that another worker takes over at once."""
    for follower in worker.followers:
        follower.stop(timeout_s=10)
    get_log().close()
