"""Snapshots of aggregates: states stored beside the log, used only if they are proven current."""

from __future__ import annotations

import dataclasses
import logging
import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from seriatim.core.canonical import canonical_text, hash_text
from seriatim.core.error_summary import summarize_error
from seriatim.core.errors import NotFound, SeriatimError
from seriatim.core.event import EventRecord, LogIdentity, StreamRef
from seriatim.log.base import BaseLog
from seriatim.profiles.aggregate_class import Aggregate, AggregateT, replay
from seriatim.store.engine import Engine, load_engine_statements
from seriatim.store.readmodel.model import ReadModel

logger = logging.getLogger("seriatim")

_TABLE = "seriatim_snapshots"


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an aggregate after one of its events, and what it was computed from.

    Attributes:
        tenant_id: The tenant.
        stream_type: The type of the stream.
        stream_id: The id of the stream.
        stream_seq: The number of the last event in the state.
        position: The position of that event.
        event_id: The id of that event.
        log_id: The log.
        epoch: Its epoch.
        code: The fingerprint of the aggregate class, see `fingerprint_code`.
        state: The state as JSON.
    """

    tenant_id: str
    stream_type: str
    stream_id: str
    stream_seq: int
    position: int
    event_id: str
    log_id: str
    epoch: int
    code: str
    state: str


class SnapshotProof(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of a stored snapshot with a fold of the events.

    Attributes:
        stream_seq: The number of the last event in the snapshot.
        equal: Whether the state of the snapshot is that of the fold, in values and types.
        problem: Why loads ignore the snapshot, or empty if they use it.
        stored: The hash of the stored state.
        folded: The hash of the folded state.
    """

    stream_seq: int
    equal: bool
    problem: str
    stored: str
    folded: str


class SnapshotStore:
    """The snapshots in one database, by tenant and stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sql = load_engine_statements(__package__, engine, "snapshots.sql")
        self._ready = False

    def find(self, tenant_id: str, stream: StreamRef) -> Snapshot | None:
        """Return the snapshot of a stream, or None."""
        self._ready = self._ready or self._engine.is_ready(_TABLE)
        if not self._ready:
            return None
        values = {"tenant_id": tenant_id, "stream_type": stream[0], "stream_id": stream[1]}
        with self._engine.transaction(write=False) as session:
            rows = session.run(self._sql["select_snapshot"], values)
        if not rows:
            return None
        return Snapshot(**dict(zip(Snapshot.__struct_fields__, rows[0], strict=True)))

    def put(self, snapshot: Snapshot) -> None:
        """Store a snapshot, unless a newer one of the same log and code is stored."""
        if not (self._ready or self._engine.is_ready(_TABLE)):
            # Only here: a load must not write, and may run as a role that cannot.
            self._engine.create_tables([self._sql["create_snapshots"]])
        self._ready = True
        with self._engine.transaction() as session:
            session.run(self._sql["upsert_snapshot"], msgspec.structs.asdict(snapshot))


def fingerprint_code(cls: type[Aggregate[Any]]) -> str:
    """Return a hash of the name and version of an aggregate class and of the type of its state."""
    try:
        schema: Any = msgspec.json.schema(cls.state_type)
    except TypeError:  # a type that has no schema, but can be encoded
        schema = str(cls.state_type)
    name = f"{cls.__module__}.{cls.__qualname__}"
    return hash_text(canonical_text({"class": name, "version": cls.version, "state": schema}))


def encode_state(aggregate: Aggregate[Any]) -> str:
    """Return the state of an aggregate as JSON, with dicts in their own order.

    Raises:
        TypeError: The state is not the same after encoding and decoding, so no snapshot can replace
            the fold.
    """
    text = msgspec.json.encode(aggregate.state).decode()
    if not is_same(msgspec.json.decode(text, type=aggregate.state_type), aggregate.state):
        msg = (
            f"the state of {type(aggregate).__name__} is not restored from JSON as its declared "
            "type: give its fields the types of their values, or declare no snapshot_every"
        )
        raise TypeError(msg)
    return text


def is_same(one: Any, other: Any) -> bool:
    """Return whether two states are equal, of the same types, and with dicts in the same order.

    Equality alone is not enough: a `defaultdict` equals the dict that JSON restores, and 1 equals
    True, but the next event may find a difference.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return _are_same(one, other) and _are_same(one.values(), other.values())
    if isinstance(one, list | tuple):
        return _are_same(one, other)
    if isinstance(one, set | frozenset):
        return one == other and Counter(map(type, one)) == Counter(map(type, other))
    if fields := _list_fields(one):
        values = [[getattr(state, name) for name in fields] for state in (one, other)]
        return _are_same(*values)
    return bool(one == other)


def _are_same(ones: Collection[Any], others: Collection[Any]) -> bool:
    return len(ones) == len(others) and all(map(is_same, ones, others))


def _list_fields(state: Any) -> Sequence[str]:
    """Return the names of the fields of a struct or a dataclass."""
    if isinstance(state, msgspec.Struct):
        return state.__struct_fields__
    if dataclasses.is_dataclass(state):
        return [field.name for field in dataclasses.fields(state)]
    return ()


def load_with_snapshot(
    log: BaseLog, aggregate: AggregateT, snapshot: Snapshot | None
) -> tuple[AggregateT, EventRecord | None]:
    """Load a new aggregate object from a snapshot and the events after it, or from all events.

    Args:
        log: The log of the tenant.
        aggregate: The object, in its first state.
        snapshot: A stored snapshot, which is checked before it is used.

    Returns:
        The aggregate and its last event, or None if it does not exist.
    """
    if snapshot is not None and find_snapshot_problem(log, type(aggregate), snapshot) is None:
        # From the event of the snapshot on: if it differs, the history is not that of the snapshot.
        since = snapshot.stream_seq - 1
        records = _read_stream(log, aggregate.stream, since if since >= 0 else None)
        first = next(records, None)
        if first is not None and _is_event_of(snapshot, first) and _restore(aggregate, snapshot):
            return aggregate, replay(aggregate, records) or first
    return aggregate, replay(aggregate, _read_stream(log, aggregate.stream, None))


def _restore(aggregate: Aggregate[Any], snapshot: Snapshot) -> bool:
    """Give an aggregate the state of a snapshot; return False if that cannot be decoded."""
    try:
        aggregate.state = msgspec.json.decode(snapshot.state, type=aggregate.state_type)
    except msgspec.MsgspecError:
        return False
    aggregate.aggregate_seq = snapshot.stream_seq
    return True


def _read_stream(log: BaseLog, stream: StreamRef, since: int | None) -> Iterator[EventRecord]:
    return log.read_stream(stream, since=since)


def _is_event_of(snapshot: Snapshot, record: EventRecord) -> bool:
    stored = snapshot.stream_seq, snapshot.position, snapshot.event_id
    return stored == (record.stream_seq, record.position, record.event_id)


def find_snapshot_problem(
    log: BaseLog, cls: type[Aggregate[Any]], snapshot: Snapshot
) -> str | None:
    """Return why a snapshot must not be used, or None; its event is not compared here."""
    if snapshot.code != fingerprint_code(cls):
        return "it was taken by another class, version or type of state"
    if LogIdentity(snapshot.log_id, snapshot.epoch) != log.identity():
        return "it was taken from another log or epoch"
    return None


def take_snapshot(
    log: BaseLog, cls: type[Aggregate[Any]], aggregate_id: str, earlier: Snapshot | None
) -> Snapshot | None:
    """Return a snapshot of the stored events of an aggregate, or None if there are none.

    It is folded from the log and not taken from an object that ran commands, so that code which
    changes the state outside of `apply` cannot enter it.
    """
    aggregate, last = load_with_snapshot(log, cls(aggregate_id), earlier)
    if last is None or aggregate.aggregate_seq is None:
        return None
    identity = log.identity()
    return Snapshot(
        tenant_id=log.tenant_id,
        stream_type=aggregate.stream_type,
        stream_id=aggregate_id,
        stream_seq=aggregate.aggregate_seq,
        position=last.position,
        event_id=last.event_id,
        log_id=identity.log_id,
        epoch=identity.epoch,
        code=fingerprint_code(cls),
        state=encode_state(aggregate),
    )


def verify_snapshot(
    log: BaseLog, cls: type[Aggregate[Any]], snapshot: Snapshot | None, aggregate_id: str
) -> SnapshotProof:
    """Compare a snapshot with a fold of all events up to it.

    Raises:
        NotFound: There is no snapshot.
    """
    if snapshot is None:
        msg = f"there is no snapshot of {cls.stream_type} {aggregate_id!r:.80}"
        raise NotFound(msg, details={"aggregate_id": aggregate_id})
    aggregate = cls(aggregate_id)
    records = log.read(stream=aggregate.stream, until=snapshot.position)
    last = replay(aggregate, records)
    problem = find_snapshot_problem(log, cls, snapshot) or ""
    if not problem and (last is None or not _is_event_of(snapshot, last)):
        problem = "the event at its number is another one"
    restored = cls(aggregate_id)
    is_restored = _restore(restored, snapshot)
    return SnapshotProof(
        stream_seq=snapshot.stream_seq,
        equal=is_restored and is_same(restored.state, aggregate.state),
        problem=problem,
        stored=_hash_state(restored) if is_restored else hash_text(snapshot.state),
        folded=_hash_state(aggregate),
    )


def _hash_state(aggregate: Aggregate[Any]) -> str:
    # Sorted, because sets are encoded in any order.
    state = msgspec.to_builtins(aggregate.state, str_keys=True, order="deterministic")
    return hash_text(canonical_text(state))


# One store for each open read model, which lives as long as that.
_STORES: weakref.WeakKeyDictionary[ReadModel, SnapshotStore] = weakref.WeakKeyDictionary()


class Snapshots:
    """The snapshots of one tenant, in the read model at a URL."""

    def __init__(self, log: BaseLog, url: str | None) -> None:
        self._log = log
        self._url = url

    def load(self, aggregate: AggregateT) -> AggregateT:
        """Load the events of an aggregate, from its snapshot on if it has one."""
        snapshot = None
        if aggregate.snapshot_every is not None:
            snapshot = self._find_or_log(aggregate)
        return load_with_snapshot(self._log, aggregate, snapshot)[0]

    def find(self, aggregate: Aggregate[Any]) -> Snapshot | None:
        """Return the stored snapshot of an aggregate, or None."""
        store = self._find_store()
        return None if store is None else store.find(self._log.tenant_id, aggregate.stream)

    def _find_or_log(self, aggregate: Aggregate[Any]) -> Snapshot | None:
        try:
            return self.find(aggregate)
        except SeriatimError as error:
            # All events give the same state, so the load is only slower.
            logger.warning("a snapshot cannot be read: %s", summarize_error(error))
            return None

    def update(self, aggregate: Aggregate[Any], before: int | None) -> None:
        """Store a snapshot if a multiple of `snapshot_every` was passed since a number.

        The events are stored already, so a failure is logged and not raised.
        """
        every, after = aggregate.snapshot_every, aggregate.aggregate_seq
        if every is None or after is None or (before or 0) // every == after // every:
            return
        try:
            self.take(aggregate)
        except (SeriatimError, TypeError, msgspec.MsgspecError) as error:
            logger.warning(
                "no snapshot of %s was stored: %s", aggregate.stream_type, summarize_error(error)
            )

    def take(self, aggregate: Aggregate[Any]) -> None:
        """Store a snapshot of the stored events of an aggregate."""
        store = self._find_store(create=True)
        if store is None:
            return
        earlier = store.find(self._log.tenant_id, aggregate.stream)
        snapshot = take_snapshot(self._log, type(aggregate), aggregate.aggregate_id, earlier)
        if snapshot is not None:
            store.put(snapshot)

    def _find_store(self, *, create: bool = False) -> SnapshotStore | None:
        connections = self._log.read_models
        if self._url is None and not connections.has_default:
            return None  # the log of a service: name a place with `snapshots_at`
        url = self._url or connections.default_url(self._log.tenant_id)
        model = connections.find(url)
        if model is None and create:
            connections.create(url).close()
            model = connections.find(url)
        if model is None:
            return None
        return _STORES.setdefault(model, SnapshotStore(model.engine))
