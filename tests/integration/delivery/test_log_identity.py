"""A registry records the identity of its log, so that a restored log stops its handlers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import seriatim
from seriatim import Delivery, InvalidArgument, LogIdentityChanged, NewEvent, NotFound
from seriatim.core.event import LogIdentity
from seriatim.delivery.entries import EntryFilter
from seriatim.delivery.registry import Registry
from seriatim.factory import open_registry
from tests.integration.delivery.support import make_handler, statuses_of

HERE = LogIdentity("8a4f7d8e-2b58-4c6e-9d5b-000000000001", 1)
THERE = LogIdentity("8a4f7d8e-2b58-4c6e-9d5b-000000000002", 1)
LATER = LogIdentity(HERE.log_id, 2)


def event_of(number: int, log: LogIdentity | None, tenant: str = "default") -> Delivery:
    """Make the event at a position of a log."""
    return Delivery(
        event_id=f"e-{number}",
        tenant_id=tenant,
        position=number,
        stream=("order", "o-1"),
        stream_seq=number,
        event={"n": number},
        log=log,
    )


class Shop:
    """A log in a file that can be saved and restored, and a handler that counts its effects."""

    def __init__(self, folder: Path, registry_at: str) -> None:
        self.path = folder / "shop.db"
        self._copy = folder / "copy.db"
        self._at = registry_at
        self.effects: list[str] = []
        self.mailer = make_handler(run=self._run)

    def _run(self, record: Any, _context: Any) -> None:
        self.effects.append(record.payload["text"])

    def append(self, *texts: str, stream: str = "o-1", ids: bool = False) -> None:
        """Append one event for each text, each by itself."""
        with self.log() as log:
            for text in texts:
                name = f"id-{log.head() + 1}" if ids else None
                event = NewEvent("paid", {"text": text}, stream=("order", stream), event_id=name)
                log.append([event])

    def log(self) -> seriatim.Log:
        """Open the log."""
        return seriatim.open(f"sqlite:///{self.path}")

    def save(self) -> None:
        """Copy the log while it is closed."""
        shutil.copy(self.path, self._copy)

    def restore(self, *, raise_epoch: bool = True) -> None:
        """Replace the log by the copy."""
        for path in self.path.parent.glob("shop.db-*"):
            path.unlink()
        shutil.copy(self._copy, self.path)
        if raise_epoch:
            with self.log() as log:
                log.store.raise_epoch()

    def consume(self) -> None:
        """Handle every event of the log, one by one."""
        with self.log() as log:
            registry = open_registry(self._at, log=log)
            try:
                for record in log.read():
                    registry.handle(self.mailer, record)
            finally:
                registry.close()

    def reset(self, **more: Any) -> Any:
        """Reset the handler."""
        with self.log() as log:
            registry = open_registry(self._at)
            try:
                return registry.reset(self.mailer.name, log, reason="restored", **more)
            finally:
                registry.close()


@pytest.fixture
def shop(tmp_path: Path, registry_at: str) -> Shop:
    """A shop whose registry is on either database."""
    return Shop(tmp_path, registry_at)


@pytest.mark.parametrize("ids", [False, True])
def test_a_restored_log_stops_the_handler(shop: Shop, ids: bool) -> None:
    """G9: after a restore a handler fails until its reset, and then handles the new events."""
    shop.append("a1", "a2", "a3", ids=ids)
    shop.save()
    shop.append("a4", "a5", "a6", ids=ids)
    shop.consume()
    shop.restore()
    shop.append("b4", "b5", "b6", ids=ids)

    with pytest.raises(LogIdentityChanged, match="registry reset mailer"):
        shop.consume()
    assert shop.effects == ["a1", "a2", "a3", "a4", "a5", "a6"]

    if ids:  # the log holds events of the same ids at the same positions, but newer ones
        with pytest.raises(InvalidArgument, match="right after the restore"):
            shop.reset()
    [report] = shop.reset(position=3 if ids else None)
    assert (report.position, report.forgotten, report.epoch) == (3, {"done": 3}, 2)
    shop.consume()
    shop.consume()

    assert shop.effects[6:] == ["b4", "b5", "b6"]


def test_a_reset_lowers_streams_that_continued(shop: Shop) -> None:
    """G9: a reset lowers the streams with lost events and leaves the others alone."""
    shop.append("a1", stream="o-1")
    shop.append("a2", stream="o-2")
    shop.save()
    shop.append("a3", stream="o-2")
    shop.append("a4", stream="o-3")
    shop.consume()
    shop.restore()
    shop.append("b3", stream="o-3")
    shop.append("b4", stream="o-2")

    [report] = shop.reset()
    assert (report.position, report.streams) == (2, 2)
    shop.consume()

    assert shop.effects == ["a1", "a2", "a3", "a4", "b3", "b4"]


def test_a_dry_run_changes_nothing(shop: Shop) -> None:
    """G9: a dry run reports the entries that a reset would delete, and deletes none."""
    shop.append("a1")
    shop.save()
    shop.append("a2")
    shop.consume()
    shop.restore()

    [report] = shop.reset(dry_run=True)

    assert (report.position, report.forgotten) == (1, {"done": 1})
    with pytest.raises(LogIdentityChanged):
        shop.consume()


def test_reset_refuses_an_impossible_position(shop: Shop, registry: Registry) -> None:
    """G9: a reset refuses a position that its entries contradict, and an unknown handler."""
    shop.append("a1")
    shop.save()
    shop.append("a2")
    shop.consume()
    shop.restore()
    shop.append("b2")

    for position in (2, 3):
        with pytest.raises(InvalidArgument, match="position"):
            shop.reset(position=position)
    with shop.log() as log, pytest.raises(NotFound):
        registry.reset("nobody", log, reason="restored")
    with shop.log() as log, pytest.raises(InvalidArgument, match="reason"):
        registry.reset("mailer", log, reason=" ")
    [report] = shop.reset(position=0)

    assert report.forgotten == {"done": 2}


def test_reset_requires_a_position_without_shared_history(shop: Shop, registry: Registry) -> None:
    """G9: without an entry of the shared history a reset needs the restored head."""
    shop.append("a1")
    shop.save()
    shop.append("a2")
    shop.consume()
    registry.prune(shop.mailer.name, 0)
    shop.restore()

    with pytest.raises(InvalidArgument, match="right after the restore"):
        shop.reset()
    [report] = shop.reset(position=1)
    shop.append("b2")
    shop.consume()

    assert report.streams == 1
    assert shop.effects == ["a1", "a2", "b2"]


def test_deferred_events_of_a_lost_history(shop: Shop, registry: Registry) -> None:
    """G9: a failed event that is not in the restored log is not tried again."""
    shop.append("a1")
    shop.save()
    shop.append("a2")
    broken = make_handler(run=lambda _record, _context: 1 / 0)
    with shop.log() as log:
        bound = registry.clone()
        bound.close()
        first, second = log.read()
        identity = log.identity()
    registry.handle(shop.mailer, Delivery.of(first, log=identity))
    with pytest.raises(seriatim.EventNotSettled):
        registry.handle(broken, Delivery.of(second, log=identity))
    registry.retry(EntryFilter(status="failed"))
    shop.restore()

    with pytest.raises(LogIdentityChanged):
        shop.consume()
    shop.reset()
    shop.consume()

    assert shop.effects == ["a1"]
    assert set(statuses_of(registry).values()) == {"done"}


@pytest.mark.parametrize("other", [THERE, LATER, None], ids=["log", "epoch", "none"])
def test_events_of_another_log(registry: Registry, other: LogIdentity | None) -> None:
    """G9: events of another log, another epoch or without an identity are refused."""
    mailer = make_handler()
    registry.handle(mailer, event_of(1, HERE))

    for number in (1, 2):
        with pytest.raises(LogIdentityChanged) as raised:
            registry.handle(mailer, event_of(number, other))
        assert raised.value.details == {"handler": "mailer", "tenant_id": "default"}
    with pytest.raises(LogIdentityChanged):
        registry.claim_all(mailer, [event_of(2, HERE), event_of(3, other)])
    with pytest.raises(LogIdentityChanged), registry.claim(mailer, event_of(2, other)):
        pass
    with pytest.raises(LogIdentityChanged):
        registry.pass_over(mailer, [event_of(2, other)])

    assert "claimed" not in statuses_of(registry).values()
    registry.handle(mailer, event_of(2, HERE))


def test_identities_are_stored_per_handler_and_tenant(registry: Registry) -> None:
    """G9: the identity is stored per handler and tenant."""
    registry.handle(make_handler("one"), event_of(1, HERE))
    registry.handle(make_handler("one"), event_of(1, THERE, tenant="acme"))
    registry.handle(make_handler("two"), event_of(1, THERE))

    assert [(log.handler, log.tenant_id, log.log_id) for log in registry.logs()] == [
        ("one", "acme", THERE.log_id),
        ("one", "default", HERE.log_id),
        ("two", "default", THERE.log_id),
    ]


def test_events_without_a_log_identity(registry: Registry) -> None:
    """G9: events without an identity are handled until one with an identity is."""
    mailer = make_handler()
    registry.handle(mailer, event_of(1, None))
    registry.handle(mailer, event_of(2, HERE))

    with pytest.raises(LogIdentityChanged):
        registry.handle(mailer, event_of(3, None))


def test_a_batch_of_two_logs_is_refused(registry: Registry) -> None:
    """G9: a batch with events of two logs is refused, and nothing is claimed."""
    with pytest.raises(LogIdentityChanged):
        registry.claim_all(make_handler(), [event_of(1, HERE), event_of(2, THERE)])

    assert "claimed" not in statuses_of(registry).values()
    assert len(registry.logs()) == 1


@pytest.fixture
def old_registry(registry_at: str) -> str:
    """A registry without the table of log identities, with one event done."""
    made_before = open_registry(registry_at)
    made_before.handle(make_handler(), event_of(1, None))
    with made_before.engine.transaction() as session:
        session.run(f"drop table {made_before.engine.schema_prefix}seriatim_logs")
    made_before.close()
    return registry_at


@pytest.mark.parametrize("create", [True, False])
def test_an_old_registry_is_upgraded(old_registry: str, create: bool) -> None:
    """G9: an old registry keeps its entries and adopts the first identity."""
    registry = open_registry(old_registry, create=create)
    try:
        assert registry.handle(make_handler(), event_of(1, HERE)).duplicate == 1
        assert registry.logs()[0].log_id == HERE.log_id
        with pytest.raises(LogIdentityChanged):
            registry.handle(make_handler(), event_of(2, THERE))
    finally:
        registry.close()


def test_subscription_ends_after_a_restore(tmp_path: Path, registry: Registry) -> None:
    """G9: the run of a subscription raises the changed identity instead of retrying."""
    mailer = make_handler()
    registry.handle(mailer, event_of(1, HERE))
    with seriatim.open("memory:") as log:
        log.append([NewEvent("paid")])
        identity = log.identity()
        subscription = log.subscribe("mailer")

        with pytest.raises(LogIdentityChanged, match="registry reset"):
            subscription.run(
                lambda batch: registry.handle(
                    mailer, [Delivery.of(one, log=identity) for one in batch]
                )
            )
        assert subscription.position == 0
