"""The local engine of projections: read the log, fold and write in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from seriatim.core.errors import InvalidArgument
from seriatim.core.event import DEFAULT_TENANT, EventRecord, LogIdentity
from seriatim.core.fold import TenantKey
from seriatim.core.patterns import WILDCARD
from seriatim.core.projection import Projection
from seriatim.core.tenants import ALL_TENANTS
from seriatim.runs.job_loop import ProgressCallback
from seriatim.runs.projection_batch import apply_batch, apply_range
from seriatim.runs.projection_job import (
    Ended,
    FoldOutcome,
    ModelLease,
    ProjectionJob,
    build_step,
)
from seriatim.runs.stateful_fold import FAILED_KEY, StatefulFold
from seriatim.store.common import read_pages
from seriatim.store.log_identity import changed_log_error, check_same_log
from seriatim.store.port import ReadSpec, Store
from seriatim.store.readmodel.model import ReadModel
from seriatim.store.readmodel.port import Progress

BATCH_EVENTS = 20_000
_PAGE_EVENTS = 2_000
_PAGE_BYTES = 16 * 1024 * 1024
_CACHED_STATES_MAX = 50_000  # bounds the memory of a run with many keys
_WAIT_S = 0.25  # how long a run that follows an idle log waits before it checks for a stop


def check_local(projection: Projection) -> None:
    """Raise `InvalidArgument` if only Spark can run a projection."""
    if projection.is_frame:
        msg = (
            f"projection {projection.name} is a DataFrame transformation, which only Spark runs: "
            "use seriatim.spark.Projector, or seriatim project run --engine spark"
        )
        raise InvalidArgument(msg, details={"projection": projection.name})


class LocalProjection(ProjectionJob):
    """A projection that is folded in this process, without Spark.

    States of recent keys stay in memory between batches. That is safe because only the holder of
    the lease writes them, and each commit compares the lease.
    """

    # Following the log commits as soon as there are events, in batches of any size.
    follow_max_lag = (1 << 63) - 1

    def __init__(
        self,
        projection: Projection,
        store: Store,
        model: ReadModel,
        *,
        tenant_id: str = DEFAULT_TENANT,
        batch_events: int = BATCH_EVENTS,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        """Create a job.

        Args:
            projection: The declaration.
            store: The store of the log.
            model: The read model.
            tenant_id: The tenant to project, or `*` for all.
            batch_events: How many positions a batch covers at most.
            on_progress: Called with a `RunReport` after each batch.

        Raises:
            InvalidArgument: The projection is a DataFrame transformation.
        """
        check_local(projection)
        super().__init__(projection, store, model, tenant_id=tenant_id, on_progress=on_progress)
        self.batch_events = batch_events
        self._extract_key = projection.make_key_extractor()
        self._live = _CachedFold()
        self._last_read: tuple[int, str] = (0, "")
        self._cursor: tuple[LogIdentity, int, str] = (store.identity(), 0, "")

    # -- batches

    def fold_range(self, after: int, until: int, *, shadow: bool) -> FoldOutcome:
        """Fold a range of the log, continuing from the states of the range before it."""
        outcome = self._fold_pages(self._read_pages(after, until), after, until, shadow=shadow)
        if not shadow:
            # After the read: a log that was replaced before or during it has another history.
            self._check_same_log(after, until)
        return outcome

    def _fold_pages(
        self, pages: Iterable[list[EventRecord]], after: int, until: int, *, shadow: bool
    ) -> FoldOutcome:
        cached = self._live if not shadow else _CachedFold()
        stateful = cached.resume(after)
        if stateful is None:
            stateful = StatefulFold(self.projection, self.model, shadow=shadow)
        events_read = 0
        for page in pages:
            events_read += len(page)
            stateful.add(self._add_keys(page))
        step = build_step(stateful.fold)
        cached.keep(stateful, until)
        return FoldOutcome(step, (after, until), events_read)

    def _read_pages(self, after: int, until: int) -> Iterator[list[EventRecord]]:
        for page in read_pages(self.store, self._make_spec(after), until):
            self._last_read = page[-1].position, page[-1].event_id
            yield page

    def _make_spec(self, after: int) -> ReadSpec:
        return ReadSpec(
            tenant_id=None if self.tenant_id == ALL_TENANTS else self.tenant_id,
            limit=_PAGE_EVENTS,
            after=after,
            types=None if WILDCARD in self.projection.events else self.projection.events,
            max_bytes=_PAGE_BYTES,
        )

    def _add_keys(self, page: list[EventRecord]) -> list[tuple[str, EventRecord]]:
        """Return the events of the projection that have a key, with their keys."""
        stream_types = self.projection.stream_types
        keyed: list[tuple[str, EventRecord]] = []
        for event in page:
            if stream_types is not None and event.stream_type not in stream_types:
                continue
            try:
                key = self._extract_key(event)
            except Exception:  # noqa: BLE001 - the fold records it with the event
                key = FAILED_KEY
            if key is not None:
                keyed.append((key, event))
        return keyed

    def _check_same_log(self, after: int, until: int) -> None:
        """Raise `LogIdentityChanged` if the range that was read is not of the log so far."""
        identity, position, event_id = self._cursor
        if position == after:
            check_same_log(self.store, identity, after, event_id, until)

    def event_id_at(self, position: int) -> str:
        """Return the id of the event at a position; the last one read needs no query."""
        read_position, event_id = self._last_read
        if position != read_position:
            event_id = super().event_id_at(position)
        # Asked for the position that is about to be committed, where the next batch starts.
        self._cursor = self._cursor[0], position, event_id
        return event_id

    def begin(self, *, shadow: bool = False) -> Progress:
        """Return the projection's progress; forget states, which another runner may change."""
        progress = super().begin(shadow=shadow)
        if not shadow:
            self._live = _CachedFold()
            identity = LogIdentity(progress.log_id, progress.epoch)
            self._cursor = identity, progress.position, progress.last_event_id
        return progress

    # -- rebuilds and refolds

    def fold_key(self, owner: TenantKey, until: int) -> tuple[FoldOutcome, list[int]]:
        """Fold one key from its first event."""
        stateful = StatefulFold(self.projection, self.model, only_key=owner)
        positions: list[int] = []
        for page in self._read_pages(0, until):
            keyed = [
                (key, event)
                for key, event in self._add_keys(page)
                if (event.tenant_id, key) == owner
            ]
            positions += [event.position for _, event in keyed]
            stateful.add(keyed)
        return FoldOutcome(build_step(stateful.fold), (0, until)), positions

    def build_shadow(self, lease: ModelLease, until: int, report: Callable[[float], None]) -> None:
        """Apply the log to the shadow in batches."""
        position = 0
        while position < until:
            end = min(until, position + self.batch_events)
            position = apply_range(self, position, end, lease)
            report(position / until)

    def count_stored(self, after: int, until: int) -> int | None:
        """Return the number of positions if all events are read: positions are gapless."""
        reads_all = self.tenant_id == ALL_TENANTS and WILDCARD in self.projection.events
        return until - after if reads_all else None

    def count_read(self, after: int, until: int) -> int:
        """Read a range again, and return the number of events."""
        return sum(map(len, self._read_pages(after, until)))

    # -- live

    def follow(
        self, position: int, lease: ModelLease, report: Callable[[int], None], ended: Ended
    ) -> None:
        """Apply new events as soon as they are committed."""
        while not ended():
            reached = self._apply_next_page(position, lease)
            if reached == position and (head := self.store.head()) > position:
                # The cursor moves past events that the projection does not read.
                end = min(head, position + self.batch_events)
                reached = apply_range(self, position, end, lease)
            if reached > position:
                position = reached
                report(position)
            else:
                self.store.wait(position, _WAIT_S)

    def _apply_next_page(self, position: int, lease: ModelLease) -> int:
        """Apply the next page of the projection's events, if there are any."""
        page = self._read_next_page(position)
        if not page:
            return position
        self._last_read = page[-1].position, page[-1].event_id

        def compute(last: int | None) -> FoldOutcome:
            if last is not None:
                return self.fold_range(position, last, shadow=False)
            return self._fold_pages([page], position, page[-1].position, shadow=False)

        return apply_batch(self, compute, position, lease)

    def _read_next_page(self, position: int) -> list[EventRecord]:
        """Return the page after a position, and check that it is of the log so far."""
        if position and self._last_read[0] == position:
            # One statement less per append: the last event is read again instead of looked up. If
            # it is another one, the log was replaced.
            page = list(self.store.read(self._make_spec(position - 1)))
            same = page and (page[0].position, page[0].event_id) == self._last_read
            if not same or self.store.identity() != self._cursor[0]:
                raise changed_log_error(position, self.store.head())
            return page[1:]
        page = list(self.store.read(self._make_spec(position)))
        if page:
            self._check_same_log(position, page[-1].position)
        return page


class _CachedFold:
    """The fold of the last batch, if the next batch continues it."""

    def __init__(self) -> None:
        self._stateful: StatefulFold | None = None
        self._position = 0

    def resume(self, after: int) -> StatefulFold | None:
        """Return the fold if it ended at this position."""
        # After a batch that was not committed, the next one begins elsewhere.
        stateful, self._stateful = self._stateful, None
        return stateful if self._position == after else None

    def keep(self, stateful: StatefulFold, until: int) -> None:
        """Keep a fold that ended at a position, unless it is too large."""
        fold = stateful.fold
        if fold.stopped or len(fold.states) > _CACHED_STATES_MAX:
            return
        fold.begin_batch()
        self._stateful, self._position = stateful, until
