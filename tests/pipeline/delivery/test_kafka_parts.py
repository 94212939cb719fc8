"""Parts of the publisher without a broker: URLs, messages, checkpoints."""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import msgspec
import pytest
from confluent_kafka import KafkaError, KafkaException

from seriatim import NewEvent
from seriatim.core.canonical import canonical_text
from seriatim.core.errors import BackendFailure, Conflict, InvalidArgument, LogIdentityChanged
from seriatim.core.event import LogIdentity
from seriatim.factory import open_log
from seriatim.pipeline.kafka import client
from seriatim.pipeline.kafka.address import Target, escape_name, java_settings, parse_target
from seriatim.pipeline.kafka.messages import HeaderBuilder, decode_record, encode_key, encode_value
from seriatim.pipeline.object_storage import FolderStorage
from seriatim.pipeline.publish.checkpoint import CHECKPOINT_FOLDER, Checkpoint, CheckpointStore
from tests.pipeline.event_samples import make_varied_events, read_stored_events

LOG = LogIdentity("00000000-0000-0000-0000-000000000001", 1)
ALIKE = ["a b", "a_b", "a.b", "A b", "a  b", "a/b", "a_20b", "caf\u00e9", "cafe\u0301", "_", "a"]


def checkpoint_at(position: int, **more: object) -> Checkpoint:
    """Make a checkpoint at a position."""
    known = {
        "log_id": LOG.log_id,
        "epoch": 1,
        "target": "kafka://k/t",
        "last_event_id": f"e{position}",
    }
    return Checkpoint(position=position, written_at="2026-01-01T00:00:00Z", **(known | more))  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> FolderStorage:
    """A storage for checkpoints."""
    return FolderStorage(str(tmp_path / "place"))


def test_a_kafka_url_is_parsed() -> None:
    """H1: a URL has servers, a topic template and client settings; secrets are not displayed."""
    found = parse_target("kafka://a:1,b:2/x.{tenant}?linger.ms=7", {"sasl.password": "hidden"})

    assert (found.servers, found.topic_template) == ("a:1,b:2", "x.{tenant}")
    assert found.client_settings["linger.ms"] == "7"
    assert found.client_settings["sasl.password"] == "hidden"
    assert "hidden" not in f"{found} {found!r}"
    assert parse_target("kafka://a:1").single_topic == "seriatim"


def test_settings_are_translated_for_the_java_client() -> None:
    """H1: settings of the Kafka client are translated for Spark's Java client."""
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": 'a"b\\c',
        "ssl.ca.location": "/ca.pem",
        "linger.ms": "9",
        "java.fetch.max.wait.ms": "7",
    }
    found = java_settings(settings)

    assert found["sasl.jaas.config"].endswith(
        'ScramLoginModule required username="ada" password="a\\"b\\\\c";'
    )
    assert (found["ssl.truststore.location"], found["ssl.truststore.type"]) == ("/ca.pem", "PEM")
    assert found["fetch.max.wait.ms"] == "7"
    assert not {"linger.ms", "sasl.password", "sasl.username"} & set(found)
    assert "java.fetch.max.wait.ms" not in Target("a:1", "t", settings).client_settings
    with pytest.raises(InvalidArgument, match=r"sasl\.username"):
        java_settings({"sasl.mechanisms": "PLAIN"})
    assert java_settings({"sasl.mechanisms": "GSSAPI"}) == {"sasl.mechanism": "GSSAPI"}


@pytest.mark.parametrize("target", ["kafka://K/t", "kafka://k/T", "kafka://k/t of a"])
def test_checkpoints_of_similar_targets_are_refused(folder: FolderStorage, target: str) -> None:
    """H2: 003 §6.7: a checkpoint of a similar target is refused."""
    with pytest.raises(Conflict, match="name another place"):
        CheckpointStore(folder, target).check(checkpoint_at(5), LOG, 10, "e5")


@pytest.mark.parametrize(
    "url",
    [
        "http://a/b",
        "kafka:///topic",
        "kafka://user:pw@a:1/t",
        "kafka://a:1/{nothing}",
        "kafka://a:1/{tenant",
        "kafka://a:1/a b",
        "kafka://a:1/..",
        "kafka://a:1/t?sasl.password=x",
        f"kafka://a:1/{'t' * 250}",
    ],
)
def test_invalid_kafka_urls_are_refused(url: str) -> None:
    """H1: an invalid URL, or one with a secret, is refused."""
    with pytest.raises(InvalidArgument):
        parse_target(url)


def test_topics_do_not_collide() -> None:
    """H1: 003 §6.7: similar tenants and stream types have different topics."""
    target = Target("a:1", "x.{tenant}.{stream_type}")
    topics = [target.topic_for(one, two) for one in ALIKE for two in (*ALIKE, None)]

    assert len(set(topics)) == len(topics)
    assert all(
        set(topic)
        <= set(escape_name.__doc__ or "")
        | set("x._-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        for topic in topics
    )
    long = [target.topic_for("t" * 300 + end, None) for end in "ab"]
    assert long[0] != long[1]
    assert len(long[0]) <= 249


def test_keys_do_not_collide() -> None:
    """H1: 003 §6.7: similar streams and ids have different keys."""
    events = [
        NewEvent("t", stream=(one, two), tenant_id=three)
        for one in ALIKE[:5]
        for two in ALIKE
        for three in ('a","b', "a")
    ]
    kept = []
    for tenant in ('a","b', "a"):
        with open_log("memory:", tenant_id=tenant) as log:
            log.append([event for event in events if event.tenant_id == tenant])
            kept += list(log.read())

    assert len({encode_key(one) for one in kept}) == len(events)


def test_a_message_contains_the_record(tmp_path: Path) -> None:
    """H1: a message holds the record in a versioned schema; headers name log and position."""
    url = f"sqlite:///{tmp_path}/log.db"
    with open_log(url) as log:
        for event in make_varied_events(30):
            log.append([event])
    kept = read_stored_events(url)

    assert [decode_record(encode_value(one)) for one in kept] == kept
    headers = dict(HeaderBuilder(LOG, frozenset({"order"})).build(kept[1]))
    assert headers["seriatim-log"] == LOG.log_id.encode()
    assert headers["seriatim-position"] == b"2"
    assert headers["seriatim-first-seq"] == b"0"
    assert headers["seriatim-hash"] == kept[1].payload_hash.encode()
    with pytest.raises(ValueError, match="schema"):
        decode_record(encode_value(kept[0]).replace(b"seriatim.event/1", b"seriatim.event/2"))


def test_checkpoints_advance(folder: FolderStorage) -> None:
    """H2: the highest complete checkpoint is loaded, and a lower one is refused."""
    checkpoints = CheckpointStore(folder, "kafka://k/t")
    assert checkpoints.load_last() is None
    for position in (5, 7, 90):
        checkpoints.advance(checkpoint_at(position))

    assert checkpoints.load_last() == checkpoint_at(90)
    with pytest.raises(Conflict, match="another publisher"):
        checkpoints.advance(checkpoint_at(8))
    assert len(folder.list_names(CHECKPOINT_FOLDER)) == 2


@pytest.mark.parametrize("left", [0, 1, 40, -2])
def test_a_torn_checkpoint(folder: FolderStorage, left: int) -> None:
    """H2: an incomplete checkpoint is ignored, and the one before it is loaded."""
    checkpoints = CheckpointStore(folder, "kafka://k/t")
    checkpoints.advance(checkpoint_at(5))
    checkpoints.advance(checkpoint_at(7))
    name = folder.list_names(CHECKPOINT_FOLDER)[-1]
    whole = folder.read(name)
    Path(folder.path, name).write_bytes(whole[:left])

    assert checkpoints.load_last() == checkpoint_at(5)


@pytest.mark.parametrize(
    ("checkpoint", "words"),
    [
        (checkpoint_at(5, log_id="another"), "another log"),
        (checkpoint_at(5, epoch=2), "epoch"),
        (checkpoint_at(50), "ends at 10"),
        (checkpoint_at(5, last_event_id="other"), "another event"),
    ],
    ids=["another log", "epoch", "future", "event id"],
)
def test_a_checkpoint_of_another_history_is_refused(
    folder: FolderStorage, checkpoint: Checkpoint, words: str
) -> None:
    """H2: a checkpoint of another log, epoch or history is refused."""
    with pytest.raises(LogIdentityChanged, match=words):
        CheckpointStore(folder, "kafka://k/t").check(checkpoint, LOG, 10, "e5")


def test_a_checkpoint_of_another_target(folder: FolderStorage) -> None:
    """H2: a checkpoint of another target is refused."""
    with pytest.raises(Conflict, match="name another place"):
        CheckpointStore(folder, "kafka://k/other").check(checkpoint_at(5), LOG, 10, "e5")


def test_recent_ids_without_tenants_are_ignored(folder: FolderStorage) -> None:
    """H3: recent ids of an old checkpoint, which lack their tenants, are ignored."""
    text = canonical_text(msgspec.to_builtins(checkpoint_at(7)) | {"recent": ["order-1"]})
    data = f"{text}\n{sha256(text.encode()).hexdigest()}\n".encode()
    folder.put_if_absent(f"{CHECKPOINT_FOLDER}/{7:020d}-{'0' * 16}.json", data)
    found = CheckpointStore(folder, "kafka://k/t").load_last()

    assert found is not None
    assert (found.position, found.delivered) == (7, ())


class NewTopicConsumer:
    """A consumer of a topic whose partitions get their leaders a moment later."""

    codes: ClassVar[list[int]] = []

    def __init__(self, *_: object, **__: object) -> None:
        """Connect to nothing."""

    def list_topics(self, topic: str, timeout: float) -> SimpleNamespace:  # noqa: ARG002
        """Return the broker's metadata of the topic."""
        found = SimpleNamespace(error=None, partitions={0: None, 1: None})
        return SimpleNamespace(topics={topic: found})

    def get_watermark_offsets(self, _place: object, timeout: float) -> tuple[int, int]:  # noqa: ARG002
        """Return offsets, or fail like a broker that is not the leader."""
        if self.codes:
            raise KafkaException(KafkaError(self.codes.pop()))
        return 0, 7

    def close(self) -> None:
        """Close."""


def test_offsets_of_a_new_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: a new topic without leaders is waited for; any other error is raised at once."""
    monkeypatch.setattr(client, "Consumer", NewTopicConsumer)
    target = parse_target("kafka://a:1/t")
    codes = NewTopicConsumer.codes
    codes[:] = [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION]

    assert client.get_offsets(target, ["t"]) == {"t": {0: (0, 7), 1: (0, 7)}}

    codes[:] = [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(BackendFailure, match="AUTHORIZATION"):
        client.get_offsets(target, ["t"])
    codes[:] = [KafkaError.NOT_LEADER_FOR_PARTITION]
    monkeypatch.setattr(client, "_METADATA_TIMEOUT_S", -1.0)
    with pytest.raises(BackendFailure, match="NOT_LEADER") as raised:
        client.get_offsets(target, ["t"])
    assert raised.value.retryable


def test_librdkafka_has_its_own_logger(caplog: pytest.LogCaptureFixture) -> None:
    """Messages of librdkafka are logged as `seriatim.kafka`, so that they can be filtered."""
    sender = client.MessageSender(parse_target("kafka://127.0.0.1:1/t"), timeout_s=1.0)

    deadline = time.monotonic() + 20
    while not caplog.records and time.monotonic() < deadline:
        sender.poll()

    assert {record.name for record in caplog.records} == {"seriatim.kafka"}
