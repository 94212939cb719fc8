"""The publisher on Spark, compared with a plain producer that sends the same messages."""

import uuid

import psycopg
from confluent_kafka import Producer

from bench.delivery.plan import DeliveryEnvironment
from bench.measurement import Figure, interleave, ratio, timed
from seriatim.config.delivery import PublisherSettings
from seriatim.core.times import parse_us
from seriatim.pipeline.kafka.address import Target, parse_target
from seriatim.pipeline.kafka.client import create_topics, get_offsets
from seriatim.pipeline.kafka.messages import HeaderBuilder, encode_key, encode_value
from seriatim.pipeline.publish.publisher import Publisher
from seriatim.store.postgres.statements import RECORD_COLUMNS, decode_record

GOAL = 0.6
_PARTITIONS = 6
_PAGE = 10_000


def publish(environment: DeliveryEnvironment) -> list[Figure]:
    """Publish the whole log with the publisher and with a plain producer, to new topics."""
    count = environment.plan.events
    settings = PublisherSettings(batch_size=20_000, flush_batch_size=100_000, step_events=200_000)

    def run_publisher() -> int:
        target = _create_topic(environment)
        checkpoints = environment.home / uuid.uuid4().hex
        with Publisher(
            environment.spark, environment.url, target, str(checkpoints), settings=settings
        ) as publisher:
            publisher.run()
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
    assert target.single_topic is not None
    create_topics(target, [target.single_topic], _PARTITIONS, 1)
    return target


def _check_sent(target: Target, count: int) -> int:
    topic = target.single_topic or ""
    bounds = get_offsets(target, [topic])[topic].values()
    assert sum(end - first for first, end in bounds) == count
    return count


def _produce_all(environment: DeliveryEnvironment, target: Target) -> None:
    """Read rows with a server-side cursor and send the same messages as the publisher."""
    producer = Producer(
        {
            **target.client_settings,
            "enable.idempotence": "true",
            "acks": "all",
            "linger.ms": "5",
            "compression.type": "lz4",
            "queue.buffering.max.messages": "200000",
            "queue.buffering.max.kbytes": "262144",
        }
    )
    headers = HeaderBuilder(environment.log.log.identity(), frozenset({"trace"}))
    topic = target.single_topic or ""
    with psycopg.connect(environment.url) as session, session.cursor("all_of_it") as cursor:
        cursor.itersize = _PAGE
        cursor.execute(f"select {RECORD_COLUMNS} from seriatim.events e order by position")
        for number, row in enumerate(cursor):
            event = decode_record(row)
            time_ms = (parse_us(event.recorded_at) or 0) // 1000
            while True:
                try:
                    producer.produce(
                        topic,
                        encode_value(event),
                        encode_key(event),
                        timestamp=time_ms,
                        headers=headers.build(event),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            if not number % _PAGE:
                producer.poll(0)
    producer.flush()
