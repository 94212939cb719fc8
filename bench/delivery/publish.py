"""The publisher on Spark, compared with a plain producer that sends the same messages."""

import uuid

import psycopg
from confluent_kafka import Producer

from bench.delivery.plan import DeliveryEnvironment
from bench.measurement import Figure, interleave, ratio, timed
from seriatim.config.delivery import Publishing
from seriatim.core.times import instant_us
from seriatim.pipeline.kafka.address import Target, parse_target
from seriatim.pipeline.kafka.client import make_topics, offsets
from seriatim.pipeline.kafka.messages import Headers, key_of, value_of
from seriatim.pipeline.publish.publishing import Publisher
from seriatim.store.postgres.rows import record_of
from seriatim.store.postgres.statements import COLUMNS

GOAL = 0.6
_PARTITIONS = 6
_PAGE = 10_000


def publish(environment: DeliveryEnvironment) -> list[Figure]:
    """Publish the whole log with the publisher and with a plain producer, to new topics."""
    count = environment.plan.events
    settings = Publishing(batch_size=20_000, flush_batch_size=100_000, step_events=200_000)

    def run_publisher() -> int:
        target = _create_topic(environment)
        checkpoints = environment.home / uuid.uuid4().hex
        with Publisher(
            environment.spark, environment.url, target, str(checkpoints), settings=settings
        ) as one:
            one.run()
        return _check_sent(target, count)

    def run_producer() -> int:
        target = _create_topic(environment)
        _produce_all(environment, target)
        return _check_sent(target, count)

    spark, loop = interleave(
        {"publisher on Spark": timed(run_publisher), "bare producer": timed(run_producer)},
        rounds=environment.plan.rounds,
        seconds=environment.plan.seconds,
        report=environment.report,
    ).values()
    name = "publisher / bare producer"
    return [ratio(name, spark, loop, against="confluent-kafka in a loop", goal=GOAL)]


def _create_topic(environment: DeliveryEnvironment) -> Target:
    target = parse_target(f"kafka://{environment.broker.servers}/b-{uuid.uuid4().hex}")
    assert target.one_topic is not None
    make_topics(target, [target.one_topic], _PARTITIONS, 1)
    return target


def _check_sent(target: Target, count: int) -> int:
    topic = target.one_topic or ""
    bounds = offsets(target, [topic])[topic].values()
    assert sum(end - first for first, end in bounds) == count
    return count


def _produce_all(environment: DeliveryEnvironment, target: Target) -> None:
    """Read rows with a server-side cursor and send the same messages as the publisher."""
    producer = Producer(
        {
            **target.client,
            "enable.idempotence": "true",
            "acks": "all",
            "linger.ms": "5",
            "compression.type": "lz4",
            "queue.buffering.max.messages": "200000",
            "queue.buffering.max.kbytes": "262144",
        }
    )
    headers = Headers(environment.log.log.identity(), frozenset({"trace"}))
    topic = target.one_topic or ""
    with psycopg.connect(environment.url) as session, session.cursor("all_of_it") as cursor:
        cursor.itersize = _PAGE
        cursor.execute(f"select {COLUMNS} from seriatim.events e order by position")
        for number, row in enumerate(cursor):
            event = record_of(row)
            time_ms = (instant_us(event.recorded_at) or 0) // 1000
            while True:
                try:
                    producer.produce(
                        topic,
                        value_of(event),
                        key_of(event),
                        timestamp=time_ms,
                        headers=headers.of(event),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            if not number % _PAGE:
                producer.poll(0)
    producer.flush()
