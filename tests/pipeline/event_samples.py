"""Events of every shape, to compare reads through Spark with reads of the log."""

from seriatim import EventRecord, NewEvent
from seriatim.factory import open_log


def make_varied_events(count: int, start: int = 0) -> list[NewEvent]:
    """Return events that use every column or none, with texts that need quoting."""
    return [_varied(number) for number in range(start, start + count)]


def _varied(number: int) -> NewEvent:
    kinds = ("order.placed", "order.paid", "seat taken", "orders.*", "Ö'\"\\ --")
    plain = NewEvent(event_type=kinds[number % len(kinds)], payload={"n": number})
    if number % 3 == 0:
        return plain
    if number % 3 == 1:
        return NewEvent(
            event_type=plain.event_type,
            payload={"n": number, "text": 'ü "quoted" \\ \n', "list": [1, None, {"a": 2.5}]},
            stream=("order", f"o-{number % 7}"),
            tags=(f"customer:{number}", ","),
            metadata={"a": ",", ":": '"' if number % 2 else "b"},
        )
    return NewEvent(
        event_type=plain.event_type,
        payload={"n": number},
        stream=("séance's", f"s {number % 5}"),
        event_id=f"event/{number}",
        event_version=2,
        occurred_at=f"2024-02-0{number % 9 + 1}T12:00:00.5+02:00",
        producer_id="producer",
        source_system="system",
        source_subsystem="part",
        actor_type="user",
        actor_id="ada",
        request_id=f"r{number}",
        correlation_id="c",
        causation_id="d",
        idempotency_key=f"key {number}",
        app_id="app",
        env_id="test",
        tags=("a\\b", "[x]", 'q"'),
        metadata={"path": "c:\\tmp", "x": ""},
    )


def read_stored_events(url: str, tenant_id: str = "default") -> list[EventRecord]:
    """Return the events as the log returns them."""
    with open_log(url, tenant_id=tenant_id) as log:
        return list(log.read())
