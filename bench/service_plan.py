"""How large a run of the service is, and the stage that its sections share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.http_load import request_bytes
from bench.ours import OurLog
from bench.plan import Run, read_arguments
from bench.rivals import UmaDB
from bench.workload import Orders, streams_in
from seriatim import Log
from seriatim.core.event import NewEvent

_encode = msgspec.json.Encoder().encode
SECTIONS = ("singles", "batches", "tails", "flood", "isolation")


@dataclass(frozen=True, kw_only=True)
class ServicePlan(Run):
    """The sizes of a run."""

    sections: tuple[str, ...] = SECTIONS
    only: tuple[str, ...] = SECTIONS
    events: int = 1_000_000
    large_events: int = 0
    seconds: float = 4.0
    tails: int = 1000
    tail_seconds: float = 10.0
    tail_rate: int = 1000  # events a second, over all tails

    @property
    def whole(self) -> bool:
        """Whether this run may replace the results that are kept: only at its full size."""
        return super().whole and self.events >= ServicePlan.events


def plan_from(arguments: list[str] | None = None) -> ServicePlan:
    """Read the command line."""
    given = read_arguments("bench.service", __doc__, SECTIONS, arguments)
    full = ServicePlan()
    return ServicePlan(
        only=given.only,
        events=given.events or (5000 if given.quick else full.events),
        rounds=given.rounds,
        seconds=given.seconds or (0.3 if given.quick else full.seconds),
        tails=20 if given.quick else full.tails,
        tail_seconds=0.5 if given.quick else full.tail_seconds,
        tail_rate=100 if given.quick else full.tail_rate,
        large=given.large,
        quick=given.quick,
    )


@dataclass(frozen=True, kw_only=True)
class ServiceStage:
    """Everything that runs while sections measure: a service on a filled log, and a rival."""

    plan: ServicePlan
    log: OurLog
    remote: Log
    umadb: UmaDB
    port: int
    token: str
    other_token: str
    home: Path
    say: Callable[[str], None] = print

    def orders(self, seed: int = 1) -> Orders:
        """Return a maker of events for the streams that the prefilled logs have."""
        return Orders(streams_in(self.plan.events), seed)

    def request(self, path: str, events: list[NewEvent], token: str | None = None) -> bytes:
        """Return an append as it travels."""
        return request_bytes(path, token or self.token, _body(events))


def _body(events: list[NewEvent]) -> bytes:
    return _encode(
        {
            "events": [
                {
                    "event_type": event.event_type,
                    "event_id": event.event_id,
                    "stream": event.stream,
                    "payload": event.payload,
                }
                for event in events
            ]
        }
    )
