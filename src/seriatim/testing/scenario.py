"""Scenarios of decisions: given events, when a command runs, then it decides other events."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NoReturn, overload

import msgspec

from seriatim.core.canonical import canonical_text, check_and_encode, decode_stored_json
from seriatim.core.event import DEFAULT_TENANT, EventRecord, NewEvent, StreamRef
from seriatim.core.kinds import Declaration
from seriatim.core.query import Query
from seriatim.factory import Log, open_log
from seriatim.log.catalogue import Catalogue
from seriatim.log.decision import Decider
from seriatim.profiles.aggregate_class import AggregateT
from seriatim.profiles.aggregate_values import RequestFields
from seriatim.testing.history import HistoryEvent, append_history, to_event

_REQUEST: RequestFields = {
    "org_id": DEFAULT_TENANT,
    "actor_type": "user",
    "actor_id": "user-1",
    "request_id": "request-1",
}
_ALWAYS_COMPARED = ("event_type", "stream", "payload")


@overload
def given(
    events: Iterable[HistoryEvent] = (),
    *,
    context: StreamRef | Query | None = None,
    catalogue: Catalogue | None = None,
    declarations: Sequence[Declaration] = (),
) -> DeciderScenario: ...
@overload
def given(
    events: Iterable[HistoryEvent],
    aggregate_class: type[AggregateT],
    aggregate_id: str = "a-1",
    *,
    declarations: Sequence[Declaration] = (),
) -> AggregateScenario[AggregateT]: ...
def given(
    events: Iterable[HistoryEvent] = (),
    aggregate_class: Any = None,
    aggregate_id: str = "a-1",
    *,
    context: StreamRef | Query | None = None,
    catalogue: Catalogue | None = None,
    declarations: Sequence[Declaration] = (),
) -> Any:
    """Begin a scenario with the events that have happened.

    The events are appended to a log in memory, which numbers and checks them as any log does.

    Args:
        events: `NewEvent` values, mappings of their fields, event types, records, or instances of
            classes of the catalogue.
        aggregate_class: A subclass of `Aggregate`, whose methods are then the commands.
        aggregate_id: The id of the aggregate; events without a stream are events of it.
        context: The stream or query whose events a decider receives; by default it receives all.
        catalogue: The catalogue of the classes; by default that of the aggregate.
        declarations: What the log declares first, such as a `StreamKind`.

    Example:
        from seriatim.testing import given

        def book(records):
            return [] if records else [NewEvent("seat.booked", {"seat": "12A"})]

        given().when(book).then([NewEvent("seat.booked", {"seat": "12A"})])
        given([NewEvent("seat.booked", {"seat": "12A"})]).when(book).then_nothing()
    """
    log = open_log("memory:")
    log.declare(*declarations)
    if aggregate_class is None:
        append_history(log, events, catalogue)
        return DeciderScenario(log, context, catalogue)
    stream = aggregate_class.stream_type, aggregate_id
    append_history(log, events, aggregate_class.catalogue, stream)
    return AggregateScenario(log, aggregate_class, aggregate_id)


class DeciderScenario:
    """The events before a decision, for functions such as those of `log.decide`."""

    def __init__(
        self, log: Log, context: StreamRef | Query | None, catalogue: Catalogue | None
    ) -> None:
        self._log = log
        self._context = context
        self._catalogue = catalogue

    def when(self, decider: Decider) -> Decided:
        """Call a decider with the records, and append the events that it returns.

        Args:
            decider: A function from records to events, as for `log.decide`.
        """
        log = self._log

        def decide() -> object:
            if self._context is not None:
                return log.decide(self._context, decider, attempts=1)
            events = list(decider(list(log.read())))
            return log.append(events) if events else None

        return _run(log, decide, self._catalogue, None)


class AggregateScenario(Generic[AggregateT]):
    """The events of an aggregate before a command."""

    def __init__(self, log: Log, aggregate_class: type[AggregateT], aggregate_id: str) -> None:
        self._log = log
        self._aggregate_class = aggregate_class
        self._aggregate_id = aggregate_id

    @property
    def aggregate(self) -> AggregateT:
        """The aggregate as it is loaded now."""
        aggregates = self._log.aggregates.for_request(**_REQUEST)
        return aggregates.load(self._aggregate_class, self._aggregate_id)

    @property
    def state(self) -> Any:
        """The state of the aggregate, folded from the events."""
        return self.aggregate.state

    def when(self, command: Callable[[AggregateT], object]) -> Decided:
        """Load the aggregate, run a command on it and save it.

        Args:
            command: Calls a method of the aggregate, as for `log.aggregates.execute`.
        """
        aggregates = self._log.aggregates.for_request(**_REQUEST)

        def decide() -> object:
            return aggregates.execute(
                self._aggregate_class, self._aggregate_id, command, attempts=1
            )

        stream = self._aggregate_class.stream_type, self._aggregate_id
        return _run(self._log, decide, self._aggregate_class.catalogue, stream)


def _run(
    log: Log, decide: Callable[[], object], catalogue: Catalogue | None, stream: StreamRef | None
) -> Decided:
    head = log.head()
    error: Exception | None = None
    try:
        decide()
    except Exception as raised:  # noqa: BLE001 - `then` raises it again, `then_raises` compares it
        error = raised
    return Decided(list(log.read(after=head)), error, catalogue, stream)


class Decided:
    """What a command has decided: events, nothing, or an error.

    Attributes:
        events: The records of the decided events.
        error: The error of the command, or None.
    """

    def __init__(
        self,
        events: list[EventRecord],
        error: Exception | None,
        catalogue: Catalogue | None,
        stream: StreamRef | None,
    ) -> None:
        self.events = events
        self.error = error
        self._catalogue = catalogue
        self._stream = stream

    def then(self, events: Iterable[HistoryEvent]) -> None:
        """Check that exactly these events were decided, in this order.

        Type, stream and payload are compared, and of the other fields those that an expected event
        sets.

        Args:
            events: The expected events, in any form that `given` accepts.

        Raises:
            AssertionError: Other events were decided; the message is a diff.
        """
        self._raise_error()
        expected = [_describe_expected(event, self._catalogue, self._stream) for event in events]
        decided = [
            _describe_record(record, expected[index] if index < len(expected) else {})
            for index, record in enumerate(self.events)
        ]
        if list(map(canonical_text, expected)) != list(map(canonical_text, decided)):
            _fail(expected, decided)

    def then_nothing(self) -> None:
        """Check that no event was decided.

        Raises:
            AssertionError: Events were decided.
        """
        self.then([])

    def then_raises(self, error_type: type[Exception], match: str | None = None) -> None:
        """Check that the command raised an error, and decided nothing.

        Args:
            error_type: The class of the error.
            match: A regular expression that its text must contain.

        Raises:
            AssertionError: It raised no error, another one, or one with another text.
        """
        name = error_type.__name__
        if self.error is None:
            decided = ", ".join(record.event_type for record in self.events) or "nothing"
            msg = f"the command raised no {name}, but decided {decided}"
            raise AssertionError(msg)
        if not isinstance(self.error, error_type):
            msg = f"the command raised {self.error!r}, not {name}"
            raise AssertionError(msg) from self.error  # noqa: TRY004 - a test failed
        if match is not None and not re.search(match, str(self.error)):
            msg = f"the text of the {name} is {str(self.error)!r}, which {match!r} does not match"
            raise AssertionError(msg) from self.error

    def _raise_error(self) -> None:
        if self.error is not None:
            raise self.error


def _describe_expected(
    value: HistoryEvent, catalogue: Catalogue | None, stream: StreamRef | None
) -> dict[str, Any]:
    """Return the fields of an expected event that are compared, as JSON."""
    event = to_event(value, catalogue, stream)
    # An instance of a class stands for one version of its payload.
    is_instance = not isinstance(value, NewEvent | EventRecord | Mapping | str)
    fields = {
        name: getattr(event, name)
        for name, default in msgspec.structs.asdict(NewEvent("")).items()
        if name in _ALWAYS_COMPARED
        or getattr(event, name) != default
        or (is_instance and name == "event_version")
    }
    if isinstance(value, EventRecord):
        fields = {name: fields[name] for name in _ALWAYS_COMPARED}
    fields["payload"] = decode_stored_json(check_and_encode(fields["payload"]))
    return _to_json(fields)


def _describe_record(record: EventRecord, expected: dict[str, Any]) -> dict[str, Any]:
    """Return the same fields of a decided event."""
    names = expected.keys() or _ALWAYS_COMPARED
    return _to_json({name: getattr(record, name) for name in names})


def _to_json(fields: dict[str, Any]) -> dict[str, Any]:
    builtins: dict[str, Any] = msgspec.to_builtins(fields)
    return builtins


def _fail(expected: list[dict[str, Any]], decided: list[dict[str, Any]]) -> NoReturn:
    """Raise an `AssertionError` with a diff of both lists."""
    diff = difflib.unified_diff(
        _format_lines(expected), _format_lines(decided), "expected", "decided", lineterm=""
    )
    msg = "the command decided other events:\n" + "\n".join(diff)
    raise AssertionError(msg)


def _format_lines(events: list[dict[str, Any]]) -> list[str]:
    return json.dumps(events, indent=2, sort_keys=True, ensure_ascii=False).splitlines()
