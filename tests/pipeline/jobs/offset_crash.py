"""A driver that kills itself right before it stores the offsets of a topic."""

import json
import os
import signal
import sys

from seriatim.delivery.registry import Registry
from seriatim.pipeline.kafka.address import parse_target
from seriatim.pipeline.source.spark_session import session
from seriatim.pipeline.work.worker import Worker
from tests.fixtures.spark import SETTINGS, kafka_packages
from tests.pipeline.delivery.test_documents import index_of


def main() -> None:
    """Handle the messages of a topic, then crash."""
    port, target, place = json.loads(sys.argv[1])

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Registry.move_cursor = die  # type: ignore[method-assign,assignment]
    spark = session("local[2]", settings=SETTINGS | kafka_packages())
    with Worker(spark, index_of(port), source=parse_target(target), registry=place) as worker:
        worker.run()


if __name__ == "__main__":
    main()
