"""The plan of the service suite, and the environment that its sections share."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.competitors import UmaServer
from bench.plan import BenchmarkPlan, read_arguments
from bench.seriatim_log import SeriatimLog
from bench.service.http_load import request_bytes
from bench.workload import Orders, streams_in
from seriatim import Log
from seriatim.core.event import NewEvent

_encode = msgspec.json.Encoder().encode
SECTIONS = ("singles", "batches", "tails", "flood", "isolation")


@dataclass(frozen=True, kw_only=True)
class ServicePlan(BenchmarkPlan):
    """The sizes of a run of the service suite."""

    sections: tuple[str, ...] = SECTIONS
    only: tuple[str, ...] = SECTIONS
    events: int = 1_000_000
    large_events: int = 0
    seconds: float = 4.0
    tails: int = 1000
    tail_seconds: float = 10.0
    tail_rate: int = 1000  # events per second over all tails

    @property
    def is_publishable(self) -> bool:
        """Whether the results of this run, at full size, may replace the published ones."""
        return super().is_publishable and self.events >= ServicePlan.events


def parse_plan(arguments: list[str] | None = None) -> ServicePlan:
    """Return the plan for command-line options."""
    options = read_arguments("service", SECTIONS, arguments)
    full = ServicePlan()
    return ServicePlan(
        only=options.only,
        events=options.events or (5000 if options.quick else full.events),
        rounds=options.rounds,
        seconds=options.seconds or (0.3 if options.quick else full.seconds),
        tails=20 if options.quick else full.tails,
        tail_seconds=0.5 if options.quick else full.tail_seconds,
        tail_rate=100 if options.quick else full.tail_rate,
        large=options.large,
        quick=options.quick,
    )


@dataclass(frozen=True, kw_only=True)
class ServiceEnvironment:
    """The service on a filled log, and the competitor."""

    plan: ServicePlan
    log: SeriatimLog
    remote: Log
    umadb: UmaServer
    port: int
    token: str
    other_token: str
    home: Path
    report: Callable[[str], None] = print

    def orders(self, seed: int = 1) -> Orders:
        """Return a generator of events for the streams of the filled log."""
        return Orders(streams_in(self.plan.events), seed)

    def request(self, path: str, events: list[NewEvent], token: str | None = None) -> bytes:
        """Return the bytes of an append request."""
        return request_bytes(path, token or self.token, _encode_body(events))


def _encode_body(events: list[NewEvent]) -> bytes:
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
