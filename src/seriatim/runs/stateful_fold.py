"""Fold the events of keys from their stored states: the one fold of every engine."""

from __future__ import annotations

from collections.abc import Sequence

from seriatim.core.event import EventRecord
from seriatim.core.fold import Fold, TenantKey
from seriatim.core.projection import Projection
from seriatim.store.readmodel.model import ReadModel

FAILED_KEY = ""  # stands for the key of an event whose key function failed


class StatefulFold:
    """A fold that loads the state of each key from a read model when the key first appears.

    Attributes:
        fold: The fold, with its states, rows and failures.
    """

    def __init__(
        self,
        projection: Projection,
        model: ReadModel,
        *,
        shadow: bool = False,
        only_key: TenantKey | None = None,
        with_states: bool = True,
    ) -> None:
        """Load the parked keys and the skipped positions.

        Args:
            projection: The projection.
            model: The read model.
            shadow: Whether to start from the shadow of a rebuild.
            only_key: The only key to fold, from its first event and even if it is parked.
            with_states: Whether to load stored states.
        """
        parked, skipped = model.load_exceptions(projection.name, shadow=shadow)
        self.fold = Fold(projection, parked=() if only_key else parked, skipped=skipped)
        self._model = model
        self._shadow = shadow
        self._with_states = with_states and only_key is None

    def add(self, keyed_events: Sequence[tuple[str, EventRecord]]) -> None:
        """Fold events in ascending position; an event whose key failed has the `FAILED_KEY`."""
        if self._with_states:
            self._load_states(keyed_events)
        fold = self.fold
        for key, event in keyed_events:
            if key:
                fold.add(key, event)
            else:
                self._record_failed_key(event)

    def _load_states(self, keyed_events: Sequence[tuple[str, EventRecord]]) -> None:
        """Load the states of all keys that are new, in one query."""
        projection, states = self.fold.projection, self.fold.states
        new = {(event.tenant_id, key) for key, event in keyed_events if key} - states.keys()
        if new:
            # A key without a stored state is remembered too, so that it is not looked up again.
            states.update(dict.fromkeys(new))
            states.update(self._model.load_states(projection, list(new), shadow=self._shadow))

    def _record_failed_key(self, event: EventRecord) -> None:
        # The key function failed before. Call it again, to record its error.
        try:
            self.fold.projection.extract_key(event)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            self.fold.record_failure((event.tenant_id, FAILED_KEY), event, error)
